#include "launcher/sim/world.h"

namespace surefoot::sim {

using supervisor::Stage;

World::World(std::uint64_t seed, Plant plant, bool narrate)
    : Life(seed, plant, narrate, 20'000), plan_(make_schedule(rng_)) {
  rules_ = plan_.rules;
  for (std::size_t i = 0; i < plan_.faults.size(); ++i) {
    say("planned: {} at {:.3f}", name(plan_.faults[i].kind), seconds(plan_.faults[i].at));
    schedule(plan_.faults[i].at, Kind::kFault, static_cast<std::int64_t>(i));
  }
  schedule(Duration::zero(), Kind::kStart);
}

void World::handle(const Item& item) {
  switch (item.kind) {
    case Kind::kGang:
      if (SimGang* g = gang(item.number); g != nullptr && g->workers && !g->hung) advance(*g);
      return;
    case Kind::kFault:
      return inject(plan_.faults[static_cast<std::size_t>(item.number)].kind);
    case Kind::kStart:
      if (!alive_ && !over_) start_supervisor();
      return;
    default:
      return deliver(item);
  }
}

// ---- The gang ----

SimGang* World::gang(std::int64_t attempt) {
  for (auto it = gangs_.rbegin(); it != gangs_.rend(); ++it) {
    if (it->attempt.value == attempt) return &*it;
  }
  return nullptr;
}

SimGang* World::newest_gang() {
  if (gangs_.empty() || !gangs_.back().workers) return nullptr;
  return &gangs_.back();
}

void World::advance(SimGang& g) {
  switch (g.stage) {
    case Stage::kLaunching:
      g.stage = Stage::kLoading;
      schedule(rng_.ms(100, 800), Kind::kGang, g.attempt.value);
      break;
    case Stage::kLoading:
      if (refuse_code_ != 0)
        return leave(g, std::exchange(refuse_code_, 0), 0, "data.path: no such file");
      g.stage = Stage::kRestoring;
      schedule(rng_.ms(10, 400), Kind::kGang, g.attempt.value);
      break;
    case Stage::kRestoring:
      restore(g);
      break;
    case Stage::kStepping:
      make_step(g);
      break;
    case Stage::kEvaluating:
      g.stage = Stage::kStepping;
      schedule(plan_.step_time, Kind::kGang, g.attempt.value);
      break;
    case Stage::kFinishing:
      return leave(g, supervisor::kExitDone, 0, "");
  }
  schedule(rng_.ms(0, 100), Kind::kPoll, 0, true);
}

void World::restore(SimGang& g) {
  if (snapshot_bad_) {
    snapshot_bad_ = false;
    memory_lost_ = memory_lost_ || ready_ > durable_;
    ready_ = durable_;
  }
  const std::int64_t from = std::max(ready_, durable_);
  if (from < 0 && finished_ > 0)
    return leave(g, kExitNoGoodCopy, 0, "no good copy of the state is left");
  if (!memory_lost_ && std::max<std::int64_t>(from, 0) < finished_) {
    violated(
        fmt::format("a finished step was lost: attempt {} begins after step {}, {} was finished",
                    g.attempt, from, finished_));
  }
  g.step = ready_ = std::max<std::int64_t>(from, 0);
  g.stage = g.step >= rules_.max_steps.value ? Stage::kFinishing : Stage::kStepping;
  schedule(plan_.step_time, Kind::kGang, g.attempt.value);
}

void World::make_step(SimGang& g) {
  if (bug_step_ > 0 && g.step + 1 == bug_step_) return leave(g, -1, 8, "division by zero");
  ++g.step;
  ready_ = g.step;
  ++sights_.steps;
  if (g.step <= g.known_before) {
    ++redone_;
    ++sights_.steps_redone;
  }
  if (g.step >= finished_) memory_lost_ = false;
  finished_ = std::max(finished_, g.step);
  records_.push_back({g.attempt.value, g.step, now_});
  say("    step {} of attempt {} is finished", g.step, g.attempt);
  if (rng_.chance(4)) durable_ = std::max(durable_, g.step);
  if (g.drain) return leave(g, supervisor::kExitInterrupted, 0, "");
  const bool last = g.step >= rules_.max_steps.value;
  g.stage = last ? Stage::kFinishing : rng_.chance(8) ? Stage::kEvaluating : Stage::kStepping;
  schedule(plan_.step_time, Kind::kGang, g.attempt.value);
}

void World::leave(SimGang& g, int code, int signal, std::string reason) {
  say("    attempt {} leaves: code {}, signal {} {}", g.attempt, code, signal, reason);
  g.workers = false;
  g.left_by_itself = true;
  g.died = now_;
  g.reason = std::move(reason);
  if (!g.mpirun) return;  // nobody is left to tell of it
  g.code = code;
  g.signal = signal;
  g.mpirun = false;
  schedule(rng_.ms(0, rng_.chance(8) ? 2000 : 100), Kind::kExited, g.attempt.value, true);
}

// ---- Faults ----

void World::inject(FaultKind kind) {
  say("    fault: {}", name(kind));
  if (kind <= FaultKind::kBug) return inject_into_gang(kind);
  inject_into_job(kind);
}

void World::inject_into_gang(FaultKind kind) {
  if (kind == FaultKind::kRefuse) {
    refuse_code_ = static_cast<int>(64 + rng_.below(3));
    return;
  }
  if (kind == FaultKind::kBug) {
    bug_step_ = 1 + rng_.below(rules_.max_steps.value);
    return;
  }
  SimGang* g = newest_gang();
  if (g == nullptr) return;
  switch (kind) {
    case FaultKind::kCrashInjected:
      g->injected = g->fault_untold = true;
      [[fallthrough]];
    case FaultKind::kCrash:
      return leave(*g, -1, 9, fmt::format("killed {}", rng_.below(1000)));
    case FaultKind::kExitCode:
      return leave(*g, rng_.chance(2) ? 1 : 76, 0, fmt::format("left {}", rng_.below(1000)));
    case FaultKind::kLeaveEarly:
      if (g->stage != Stage::kFinishing) leave(*g, 0, 0, "");
      return;
    case FaultKind::kLeaveUnasked:
      if (g->stage != Stage::kStepping) return leave(*g, supervisor::kExitInterrupted, 0, "");
      g->drain = true;
      return;
    case FaultKind::kMpirunKilled:
      if (!g->mpirun) return;
      g->mpirun = false;
      g->left_by_itself = true;
      g->signal = 9;
      g->died = now_;
      g->reason = fmt::format("mpirun killed {}", rng_.below(1000));
      return schedule(rng_.ms(0, 100), Kind::kExited, g->attempt.value, true);
    case FaultKind::kHangInjected:
      g->injected = g->fault_untold = true;
      [[fallthrough]];
    case FaultKind::kHang:
      g->hung = true;
      return;
    default:
      return;
  }
}

void World::inject_into_job(FaultKind kind) {
  hard_to_end_ = hard_to_end_ || kind == FaultKind::kUnkillable ||
                 kind == FaultKind::kServiceWontStart || kind == FaultKind::kServiceSilent;
  switch (kind) {
    case FaultKind::kServiceKilled:
      return kill_service();
    case FaultKind::kServiceWontStart:
      starts_fail_ = static_cast<int>(1 + rng_.below(7));
      return kill_service();
    case FaultKind::kServiceSilent:
      starts_silent_ = 1;
      return kill_service();
    case FaultKind::kSupervisorKilled:
      dies_after_effects_ = static_cast<int>(rng_.below(4)) - 1;
      return;
    case FaultKind::kReboot:
      return reboot();
    case FaultKind::kSnapshotBad:
      snapshot_bad_ = true;
      return inject_into_gang(FaultKind::kCrash);
    case FaultKind::kLaunchFails:
      ++launches_fail_;
      return;
    case FaultKind::kUnkillable:
      unkillable_until_ = now_ + rng_.ms(0, 100'000);
      return;
    case FaultKind::kTracesHang:
      ++traces_hang_;
      return;
    case FaultKind::kFinishFails:
      ++finishes_fail_;
      return;
    case FaultKind::kFlushFails:
      ++flushes_fail_;
      return;
    case FaultKind::kFreeFails:
      ++frees_fail_;
      return;
    case FaultKind::kInterruptThrice:
      schedule(rng_.ms(0, 400), Kind::kInterrupt, 0, true);
      [[fallthrough]];
    case FaultKind::kInterruptTwice:
      schedule(rng_.ms(0, 200), Kind::kInterrupt, 0, true);
      [[fallthrough]];
    case FaultKind::kInterrupt:
      schedule(Duration::zero(), Kind::kInterrupt, 0, true);
      return;
    case FaultKind::kNotice:
      if (!alive_) return;
      user_stops_ = true;
      return feed({now_, supervisor::NoticeReceived{rng_.chance(2)
                                                        ? std::optional(now_ + rng_.ms(0, 120'000))
                                                        : std::nullopt}});
    case FaultKind::kCancel:
      if (!alive_) return;
      user_stops_ = cancel_asked_ = true;
      return feed({now_, supervisor::CancelAsked{}});
    case FaultKind::kStaleEvents:
      return tell_stale();
    default:
      return;
  }
}

void World::kill_service() {
  if (!service_) return;
  service_ = false;
  schedule(rng_.ms(0, 300), Kind::kServiceLost, 0, true);
}

void World::reboot() {
  ++sights_.reboots;
  if (alive_) die();
  for (SimGang& g : gangs_) g.mpirun = g.workers = false;
  service_ = false;
  memory_lost_ = memory_lost_ || ready_ > durable_ || finished_ > durable_;
  ready_ = -1;
  records_.clear();
  unkillable_until_ = {};
}

void World::free_arena() {
  ready_ = -1;
  service_ = false;
  records_.clear();
}

}  // namespace surefoot::sim
