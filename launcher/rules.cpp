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
  const auto& resources = job.resources();
  FleetRules& fleet = rules.fleet;
  fleet.alone = resources.hosts().empty() && resources.hostfile().empty() &&
                resources.discovery_command().empty();
  fleet.min_nodes = fleet.alone ? 1 : resources.num_nodes().min();
  fleet.max_nodes = fleet.alone ? 1 : resources.num_nodes().max();
  fleet.workers_per_node = resources.workers_per_node().max();
  fleet.micro_batches = job.train().global_batch_size() / job.train().micro_batch_size();
  fleet.heartbeat_timeout = ms(recovery.heartbeat_timeout());
  fleet.check_timeout = ms(recovery.check_timeout());
  fleet.capacity_timeout = ms(recovery.capacity_timeout());
  fleet.grow_after = ms(recovery.grow_after());
  fleet.node_backoff = ms(recovery.node_backoff());
  fleet.allow_mixed_hardware = resources.allow_mixed_hardware();
  fleet.looks_again = resources.device() == config::Resources::cuda;
  return rules;
}

}  // namespace surefoot::supervisor
