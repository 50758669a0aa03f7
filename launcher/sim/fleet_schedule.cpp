#include "launcher/sim/fleet_schedule.h"

#include <array>

namespace surefoot::sim {

std::string_view name(FleetFault fault) {
  static constexpr std::array<std::string_view, static_cast<std::size_t>(FleetFault::kCount)>
      kNames = {"power off",
                "reboot",
                "burst",
                "one by one",
                "cut",
                "unseen",
                "freeze",
                "isolated",
                "notice",
                "notice without a time",
                "false notice",
                "notice for all",
                "service killed",
                "starts fail",
                "start slow",
                "other numerics",
                "other data",
                "listed",
                "unlisted",
                "relisted",
                "crash",
                "crash again",
                "exit code",
                "leave unasked",
                "refuse",
                "mpirun killed",
                "hang",
                "launch fails",
                "traces hang",
                "finish fails",
                "flush fails",
                "supervisor killed",
                "clock jump",
                "stale events",
                "interrupt",
                "cancel"};
  return kNames[static_cast<std::size_t>(fault)];
}

namespace {

// What ends a job gets less room than what it survives.
FleetFault draw(Rng& rng) {
  const auto kind =
      static_cast<FleetFault>(rng.below(static_cast<std::int64_t>(FleetFault::kCount)));
  const bool final = kind == FleetFault::kRefuse || kind == FleetFault::kCancel;
  return final && !rng.chance(4) ? FleetFault::kPowerOff : kind;
}

}  // namespace

FleetSchedule make_fleet_schedule(Rng& rng, int machines) {
  using std::chrono::seconds;
  FleetSchedule schedule;
  schedule.machines = machines > 0 ? machines : static_cast<int>(1 + rng.below(16));
  schedule.same_slots = rng.chance(2);
  schedule.has_own_machine = rng.chance(4);
  schedule.heals = !rng.chance(8);
  schedule.step_time = rng.ms(100, 2500);
  supervisor::Rules& rules = schedule.rules;
  rules.max_steps = Step{rng.chance(4) ? 40 : 1 + rng.below(12)};
  rules.max_failures = rng.chance(4) ? -1 : 1 + rng.below(4);
  rules.max_failures_total = rng.chance(2) ? -1 : 1 + rng.below(6);
  rules.max_preemptions = rng.chance(2) ? -1 : 1 + rng.below(5);
  rules.hang_timeout = seconds(20);
  rules.startup_timeout = seconds(30);
  rules.backoff = rng.chance(4) ? Duration::zero() : Duration(seconds(1));
  supervisor::FleetRules& fleet = rules.fleet;
  fleet.alone = false;
  fleet.min_nodes = static_cast<int>(1 + rng.below((schedule.machines + 1) / 2));
  fleet.max_nodes =
      rng.chance(2) ? 100'000 : static_cast<int>(fleet.min_nodes + rng.below(schedule.machines));
  fleet.workers_per_node = static_cast<int>(1 + rng.below(3));
  fleet.micro_batches = fleet.min_nodes + rng.below(6 * schedule.machines);
  fleet.heartbeat_timeout = seconds(5);
  fleet.check_timeout = seconds(10);
  fleet.capacity_timeout = seconds(120);
  fleet.grow_after = seconds(5);
  fleet.node_backoff = seconds(2);
  const std::int64_t count = rng.below(9);
  Duration at = rng.ms(0, 5000);
  for (std::int64_t i = 0; i < count; ++i) {
    schedule.faults.push_back({draw(rng), at});
    at += rng.chance(3) ? rng.ms(0, 200) : rng.ms(0, rng.chance(4) ? 40000 : 4000);
  }
  fleet.looks_again = rng.chance(3);
  return schedule;
}

}  // namespace surefoot::sim
