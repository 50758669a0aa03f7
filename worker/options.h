// The command line and environment of a worker. Pure but for reading the environment.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/status.h"

namespace surefoot {

struct WorkerOptions {
  std::string job_file;
  std::string directory;  // --dir; empty: runs/<name>/ beside the job file
  std::vector<std::string> sets;
  bool describe = false;        // print what the job needs as one JSON object, and leave
  bool accept_changes = false;  // go on although training keys have changed
  // From mpirun. Without it the worker is a world of one.
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_size = 1;
  // From the supervisor.
  Attempt attempt;            // 0: no supervisor
  std::string faults;         // SUREFOOT_FAULTS
  int supervisor = 0;         // pid
  Step known_step;            // SUREFOOT_KNOWN_STEP: the furthest it knows to have been finished
  std::string log_directory;  // SUREFOOT_LOG_DIR: rank-N.log is written there instead of standard
                              // output and error
  std::string network;        // SUREFOOT_NETWORK: that of the job's machines, as Open MPI was told
  [[nodiscard]] bool supervised() const { return attempt.value > 0; }
};

// kInvalid: with a usage line.
[[nodiscard]] Result<WorkerOptions> parse_options(int argc, const char* const* argv);

// Sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which PyTorch
// programs know, from Open MPI's variables.
void export_standard_variables(const WorkerOptions& options);

}  // namespace surefoot
