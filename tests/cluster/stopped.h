// Stopping all processes of a PID namespace at once, as a machine that hangs does.
//
// By SIGSTOP, which a parent namespace may send to a first process too, and not by a control group:
// those are the machine's, and would be left behind by a keeper that is killed.
#pragma once

#include <sys/types.h>

#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace surefoot::cluster {

// Stops everything in the PID namespace of `first` and returns who was stopped by this: who had
// been stopped before stays so afterwards. kRestart: some do not stop in time.
[[nodiscard]] Result<std::vector<pid_t>> stop_all(pid_t first, Time deadline);
void go_on(const std::vector<pid_t>& stopped);

}  // namespace surefoot::cluster
