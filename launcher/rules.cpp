#include "launcher/rules.h"

namespace surefoot::supervisor {

Rules rules_of(const config::Job& job) {
  const auto ms = [](std::int64_t value) -> Duration { return std::chrono::milliseconds(value); };
  const auto& recovery = job.recovery();
  Rules rules;
  rules.max_steps = Step{job.train().max_steps()};
  rules.max_failures = recovery.max_failures();
  rules.max_failures_total = recovery.max_failures_total();
  rules.max_preemptions = recovery.max_preemptions();
  rules.hang_timeout = ms(recovery.hang_timeout());
  rules.startup_timeout = ms(recovery.startup_timeout());
  rules.backoff = ms(recovery.backoff());
  return rules;
}

}  // namespace surefoot::supervisor
