// Processors, memory, limits and log-in manager of this machine: facts, and what they mean for a
// job.
//
// The rules are pure. look_at_...() read /proc, /sys and /etc below `root` ("/" but in tests) and
// may block as long as those do: call them in a check (run_checks.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/finding.h"

namespace surefoot::doctor {

// ---- processors ----

struct ProcessorFacts {
  int usable = 1;               // those this process may run on
  int cores = 0;                // of which so many are cores of their own; 0: not known
  std::optional<double> quota;  // of the tightest control group, in processors
  double load = 0;              // processes that ran or wanted to, mean of the last minute
};
struct ProcessorNeed {
  int workers = 0;  // on this machine; 0: no job
  int threads = 1;  // of each
};
[[nodiscard]] ProcessorFacts look_at_processors(const std::filesystem::path& root);
[[nodiscard]] Finding check_processors(const ProcessorFacts& facts, const ProcessorNeed& need);

// ---- memory ----

struct MemoryFacts {
  std::int64_t total_bytes = 0;
  std::int64_t available_bytes = 0;  // without swap
  std::int64_t swap_bytes = 0;
  std::int64_t swap_used_bytes = 0;
  std::int64_t cgroup_bytes = -1;         // left in the tightest control group; -1: no limit
  std::optional<double> stalled_percent;  // of the last minute, by /proc/pressure/memory "some"
};
// From here on processes wait for memory often enough to be seen in a step's time; arbitrary.
inline constexpr double kStalledPercent = 10;
[[nodiscard]] MemoryFacts look_at_memory(const std::filesystem::path& root);
[[nodiscard]] Finding check_memory(const MemoryFacts& facts);

// ---- shared memory ----

struct SharedMemoryFacts {
  std::string folder;  // of arenas
  std::string fault;   // of check_arena_base(); empty: it can be written and has room to start
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;
  bool memory = false;            // a tmpfs
  std::int64_t arenas_bytes = 0;  // of jobs that are there
  int arenas = 0;
};
// What Docker gives a container that was not asked for more (--shm-size).
inline constexpr std::int64_t kContainerDefaultBytes = 64 << 20;
// `base`: checkpoint.arena; empty: /dev/shm.
[[nodiscard]] SharedMemoryFacts look_at_shared_memory(const std::string& base, int workers);
[[nodiscard]] Finding check_shared_memory(const SharedMemoryFacts& facts);

// ---- limits ----

struct Limit {
  std::uint64_t soft = 0;
  std::uint64_t hard = 0;
};
inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};  // RLIM_INFINITY on Linux
struct LimitFacts {
  Limit open_files;
  Limit locked_bytes;
  Limit core_bytes;
  std::string core_pattern;  // /proc/sys/kernel/core_pattern
  bool rdma = false;         // a port of an RDMA device is active
};
// mpirun has pipes and a socket for each rank, a rank may have a socket to each other; with room
// for libraries. Arbitrary, and generous.
inline constexpr std::uint64_t kFilesBase = 256;
inline constexpr std::uint64_t kFilesPerWorker = 8;
[[nodiscard]] LimitFacts look_at_limits(const std::filesystem::path& root);
// `workers`: of the whole job; 0: no job. "open files", "locked memory", "core files".
[[nodiscard]] std::vector<Finding> check_limits(const LimitFacts& facts, int workers);

// ---- the log-in manager ----

struct LogindFacts {
  bool runs = false;                 // systemd-logind manages log-ins here
  bool remove_ipc = true;            // its default
  bool kill_user_processes = false;  // the default of Debian, Ubuntu and Red Hat
  std::uint32_t uid = 0;
  bool lingers = false;          // `loginctl enable-linger`
  bool arena_in_dev_shm = true;  // what RemoveIPC looks through
};
// systemd's own boundary, chosen when it is built; 999 on all large distributions.
inline constexpr std::uint32_t kLastSystemUid = 999;
// Pure: takes what a configuration file says over what is there. An unknown word is left out.
void apply_logind_conf(const std::string& text, LogindFacts& facts);
[[nodiscard]] LogindFacts look_at_logind(const std::filesystem::path& root,
                                         const std::string& arena_base);
[[nodiscard]] Finding check_logind(const LogindFacts& facts);

}  // namespace surefoot::doctor
