// Where processes of a gang that hangs are: for logs/attempt-N/traces.txt.
//
// A worker prints its own stack on SIGQUIT, into its log; what it adds there is copied. A process
// that is stopped or stuck in the kernel cannot; of every process what /proc says (state, wait
// channel, system call, kernel stack where allowed) is written.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/process.h"

namespace surefoot {

struct TracedProcess {
  ProcessId process;
  std::string who;            // "rank 1, step 7, reduction for 3.2 s"
  std::filesystem::path log;  // of a worker; empty: it is no worker and is sent no signal
};

inline constexpr std::size_t kMaxTraceBytes = 1 << 20;

// At most kMaxTraceBytes, and until the deadline or for 2 s, whichever comes first; it blocks for
// as long, and where logs lie on a disk that hangs.
[[nodiscard]] std::string trace_processes(const std::vector<TracedProcess>& processes,
                                          Time deadline);

}  // namespace surefoot
