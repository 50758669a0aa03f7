#include "launcher/sim/schedule.h"

#include <array>

namespace surefoot::sim {

std::string_view name(FaultKind kind) {
  static constexpr std::array<std::string_view, static_cast<std::size_t>(FaultKind::kCount)>
      kNames = {"crash",
                "injected crash",
                "exit code",
                "leave early",
                "leave unasked",
                "refuse",
                "mpirun killed",
                "hang",
                "injected hang",
                "bug",
                "service killed",
                "service won't start",
                "service silent",
                "supervisor killed",
                "reboot",
                "snapshot bad",
                "launch fails",
                "unkillable",
                "traces hang",
                "finish fails",
                "flush fails",
                "free fails",
                "interrupt",
                "interrupt twice",
                "interrupt thrice",
                "notice",
                "cancel",
                "stale events"};
  return kNames[static_cast<std::size_t>(kind)];
}

namespace {

// Rare and final ones would end most jobs early: they get less room than what a job survives.
FaultKind draw_kind(Rng& rng) {
  const auto kind = static_cast<FaultKind>(rng.below(static_cast<std::int64_t>(FaultKind::kCount)));
  const bool final =
      kind == FaultKind::kRefuse || kind == FaultKind::kBug || kind == FaultKind::kCancel;
  return final && !rng.chance(4) ? FaultKind::kCrash : kind;
}

}  // namespace

Schedule make_schedule(Rng& rng) {
  using std::chrono::seconds;
  Schedule schedule;
  supervisor::Rules& rules = schedule.rules;
  rules.max_steps = Step{1 + rng.below(6)};
  rules.max_failures = rng.chance(4) ? -1 : rng.below(4);
  rules.max_failures_total = rng.chance(2) ? -1 : rng.below(6);
  rules.max_preemptions = rng.chance(2) ? -1 : rng.below(3);
  rules.hang_timeout = seconds(10);
  rules.startup_timeout = seconds(20);
  rules.backoff = rng.chance(4) ? Duration::zero() : Duration(seconds(1));
  rules.faults_count = rng.chance(4);
  schedule.step_time = rng.ms(50, 2500);
  schedule.reruns_a_failed_job = rng.chance(4);
  const std::int64_t count = rng.below(7);
  Duration at = rng.ms(0, 3000);
  for (std::int64_t i = 0; i < count; ++i) {
    schedule.faults.push_back({draw_kind(rng), at});
    at += rng.chance(3) ? rng.ms(0, 5) : rng.ms(0, rng.chance(4) ? 30000 : 2500);
  }
  for (const PlannedFault& fault : schedule.faults) {
    rules.injected_faults +=
        fault.kind == FaultKind::kCrashInjected || fault.kind == FaultKind::kHangInjected;
  }
  return schedule;
}

}  // namespace surefoot::sim
