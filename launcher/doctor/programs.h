// The programs that a job runs: ours, mpirun, ssh. Rules are pure; look_at_...() run programs, each
// until `asked.deadline` at the longest, and say what came of it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "launcher/doctor/finding.h"
#include "launcher/doctor/machine.h"
#include "launcher/doctor/run_checks.h"
#include "launcher/nodes/run_program.h"

namespace surefoot::doctor {

// ---- ours ----

// "programs": which of surefoot-node, surefoot-worker, surefoot-rsh are not beside this one.
[[nodiscard]] Finding check_programs(const std::string& folder,
                                     const std::vector<std::string>& missing);

struct LibraryFile {
  std::string name;  // "libmpi.so.40"
  std::string path;  // empty: not found
};
// Of what the loader lists (as ldd does) for the worker's program.
[[nodiscard]] std::vector<LibraryFile> parse_libraries(const std::string& listed);
// The path of the first whose name begins so; empty: none.
[[nodiscard]] std::string path_of(const std::vector<LibraryFile>& libraries,
                                  const std::string& prefix);
[[nodiscard]] Result<std::vector<LibraryFile>> list_libraries(const std::filesystem::path& program,
                                                              const Asked& asked);
[[nodiscard]] Finding check_libraries(const std::vector<LibraryFile>& libraries);

// ---- the worker's own word ----

// What `surefoot-worker JOB --describe` prints. kInvalid: it refuses, and why; kRetry: no answer.
[[nodiscard]] Result<nlohmann::json> describe(const std::filesystem::path& worker,
                                              const std::filesystem::path& job,
                                              const std::vector<std::string>& sets,
                                              const Asked& asked);
// "blas": from the numerics id: libtorch, the BLAS and the kernel that it chose.
[[nodiscard]] Finding check_numerics(const std::string& numerics_id);

// What the job takes of this machine, by the worker's word.
struct JobNeeds {
  std::int64_t state_bytes = 0;
  std::int64_t arena_bytes = 0;
  std::int64_t worker_bytes = 0;  // gradients and receive buffers of one; activations are not in it
  int workers = 1;                // here
};
[[nodiscard]] JobNeeds needs_of(const nlohmann::json& description, int workers);
// "arena": three snapshots in the arena's folder. `held_bytes`: what this job has there already.
[[nodiscard]] Finding check_arena(const JobNeeds& needs, const SharedMemoryFacts& facts,
                                  std::int64_t held_bytes);
// "job memory": the arena and the workers in what is left of memory and control group.
[[nodiscard]] Finding check_job_memory(const JobNeeds& needs, const SharedMemoryFacts& shared,
                                       std::int64_t held_bytes, const MemoryFacts& memory);
// "checkpoint room": `keep` checkpoints and the one that is written before an old one goes.
[[nodiscard]] Finding check_checkpoint_room(const JobNeeds& needs, const std::string& folder,
                                            std::int64_t free_bytes, int keep, bool keeps_some);

// ---- mpirun ----

struct MpirunFacts {
  bool late = false;    // no answer within its patience
  std::string fault;    // it cannot be run
  std::string version;  // what `mpirun --version` prints first
  bool root = false;    // this user is
  bool runs = false;    // it started a program as this user
  std::string run_fault;
};
// `scratch`: a folder that somebody else removes, whatever becomes of this process.
[[nodiscard]] MpirunFacts look_at_mpirun(const std::filesystem::path& scratch, const Asked& asked);
[[nodiscard]] Finding check_mpirun(const MpirunFacts& facts);

// What `surefoot-reduction` or `surefoot-gpu-links` prints, run by mpirun over ranks of this
// machine.
struct Measured {
  std::string unavailable;  // why it was not measured
  std::string fault;        // it was, and failed
  int ranks = 0;
  double bytes = 0;
  double seconds = 0;        // of the median one
  double bus_bandwidth = 0;  // bytes/s; of surefoot-gpu-links
};
[[nodiscard]] Measured measure(const std::filesystem::path& program, int ranks,
                               const std::vector<std::string>& environment,
                               const std::filesystem::path& scratch, const Asked& asked);
[[nodiscard]] Finding check_reduction(const Measured& facts);

// ---- ssh ----

struct SshFacts {
  bool late = false;    // no answer within its patience
  std::string fault;    // it cannot be run
  std::string version;  // "OpenSSH_9.2p1 ..."
};
// `command`: resources.ssh.
[[nodiscard]] SshFacts look_at_ssh(const std::string& command, const Asked& asked);
[[nodiscard]] Finding check_ssh(const SshFacts& facts, bool needed);

}  // namespace surefoot::doctor
