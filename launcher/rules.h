// The supervisor's rules of a job file.
#pragma once

#include "configs/job.h"
#include "launcher/supervisor.h"

namespace surefoot::supervisor {

// `injected_faults` and `faults_count` come from the command line and are left as they are by
// default.
[[nodiscard]] Rules rules_of(const config::Job& job);

}  // namespace surefoot::supervisor
