// The command line and environment with which Open MPI 4.1 starts the workers of one attempt on
// this machine.
//
// Pure. Every option is there for a measured reason:
//   --bind-to none                  OpenBLAS takes its thread count from the affinity mask, and
//   mpirun binds 1 or 2 ranks but not 3: other bits, same job
//   --oversubscribe                 more workers than cores is a choice of the user
//   --allow-run-as-root             only for root, whom mpirun refuses otherwise
//   mpi_yield_when_idle 1           a rank that waits gives its core to one that works
//   odls_base_sigkill_timeout 0     else mpirun takes 1 to 2 s to end after a rank was killed
//   pml ob1, btl self,vader,tcp     MPI_Init takes 0.04 s rather than 0.25 s: UCX and OFI are not
//   opened btl_vader_backing_directory,    mpirun leaves shared memory and a session folder behind
//   when it is killed; so each attempt has a folder of its orte_tmpdir_base                own, and
//   whoever ends the attempt removes it
// The environment of an outer mpirun (OMPI_*, PMIX_*, ...) would make ours part of that job, so
// none of it is passed on.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/launch_book.h"
#include "common/ids.h"
#include "common/process.h"

namespace surefoot {

struct GangSpec {
  std::filesystem::path program;   // surefoot-worker
  std::filesystem::path job_file;  // resolved: <dir>/job.yaml
  std::filesystem::path job_directory;
  std::filesystem::path arena_folder;
  Attempt attempt;
  int workers = 1;
  std::string faults;  // SUREFOOT_FAULTS: faults joined by ';'; empty: none
  std::int32_t supervisor_pid = 0;
  Step known_step;  // SUREFOOT_KNOWN_STEP: the furthest that is known to have been finished
  bool accept_changes = false;
  bool root = false;  // the effective user is root
};

// argv, environment and output file (logs/attempt-003/mpirun.log; each rank writes
// logs/attempt-003/rank-R.log itself, see SUREFOOT_LOG_DIR).
[[nodiscard]] SpawnOptions mpirun_command(const GangSpec& spec);

// The entries of a process' environment, as in /proc/<pid>/environ, that say it belongs to this job
// and, if not 0, this attempt.
[[nodiscard]] bool belongs_to_gang(std::string_view environ_block,
                                   const std::filesystem::path& job_directory, Attempt attempt);

}  // namespace surefoot
