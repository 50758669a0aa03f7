// Where the processes of a gang that hangs are: for logs/attempt-N/traces.txt.
//
// A worker prints its own stack on SIGQUIT, into its log; what it added there is copied. A process
// that is stopped or stuck in the kernel cannot; of every process what /proc says (state, wait
// channel, system call, kernel stack where allowed) is written. Bounded: never longer than
// `deadline`.
#pragma once

#include <filesystem>
#include <vector>

#include "checkpoint/service.pb.h"
#include "common/clock.h"
#include "common/process.h"
#include "common/status.h"

namespace surefoot {

// `status`: the last answer of the service, for ranks and phases; null: not known. `processes`: of
// the gang, mpirun included.
Status write_traces(const std::filesystem::path& attempt_logs, const service::StatusReply* status,
                    const std::vector<ProcessId>& processes, Time deadline);

}  // namespace surefoot
