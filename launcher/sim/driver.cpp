// The driver's double: performs effects, tells events, and dies at any point of it.
#include "launcher/sim/world.h"

namespace surefoot::sim {

using namespace supervisor;  // NOLINT: the whole file speaks of its types

void World::start_supervisor() {
  records_read_ = 0;
  bool lives = false;
  for (SimGang& g : gangs_) {
    g.own_child = false;
    lives = lives || g.mpirun || g.workers;
  }
  open();
  // Between spawn and the note of its pid in the journal a gang is not known by name; the service
  // finds it later.
  feed({now_, JobOpened{journal_, lives && !rng_.chance(8)}});
}

// What the service shows of the gang: fired faults, finished steps, the stage. It did so too when
// it said that the gang is gone.
void World::poll(bool with_end_of_gang) {
  if (!service_ && !with_end_of_gang) return;
  const int life = life_;
  const auto here = [&] { return alive_ && life_ == life && violation_.empty(); };
  for (SimGang& g : gangs_) {
    if (!g.fault_untold || g.attempt != state_.history.attempt) continue;
    g.fault_untold = false;
    feed({now_, FaultFired{g.attempt}});
    if (!here()) return;
  }
  while (here() && records_read_ < records_.size()) {
    const Record record = records_[records_read_++];
    feed(
        {now_, StepFinished{Attempt{record.attempt}, Step{record.step}, record.at, rng_.ms(0, 3)}});
  }
  SimGang* g = newest_gang();
  if (!here() || g == nullptr || g->stage == stage_told_) return;
  stage_told_ = g->stage;
  feed({now_, StageReached{g->attempt, g->stage, now_ - rng_.ms(0, 20)}});
}

void World::deliver(const Item& item) {
  const Attempt attempt{item.number};
  switch (item.kind) {
    case Kind::kPoll:
      return poll();
    case Kind::kExited:
      poll();
      if (SimGang* g = gang(item.number); alive_ && g != nullptr) {
        g->exit_told = g->own_child;
        const Culprit culprit{1, "host", Step{g->step + 1}, Phase::kForwardBackward,
                              g->own_child ? g->reason : ""};
        feed({now_, GangExited{attempt, g->own_child ? g->code : -1, g->own_child ? g->signal : 0,
                               culprit, g->died}});
      }
      return;
    case Kind::kEnded:
      poll(true);
      return feed({now_, GangEnded{attempt}});
    case Kind::kNotEnded:
      return feed({now_, GangNotEnded{attempt, "pid 17 on host"}});
    case Kind::kServiceUp:
      return feed({now_, ServiceAnswered{Step{ready_}, Step{durable_}}});
    case Kind::kServiceFailed:
      return feed({now_, ServiceStartFailed{"address in use"}});
    case Kind::kServiceLost:  // told again as long as it is so
      if (service_ || freed_) return;
      schedule(std::chrono::seconds(1), Kind::kServiceLost, 0, true);
      return feed({now_, ServiceLost{}});
    case Kind::kTraces:
      return feed({now_, TracesCollected{attempt}});
    case Kind::kLaunched:
      return feed({now_, GangLaunched{attempt}});
    case Kind::kLaunchFailed:
      return feed({now_, LaunchFailed{attempt, fmt::format("out of memory {}", rng_.below(1000))}});
    case Kind::kFinished:
      return feed({now_, JobFinished{}});
    case Kind::kFinishFailed:
      return feed(
          {now_, FinishFailed{fmt::format("disk full {}", rng_.below(1000)), rng_.chance(2)}});
    case Kind::kFlushed:
      return feed({now_, ArenaFlushed{item.number != 0, "disk full"}});
    case Kind::kFreed:
      return feed({now_, ArenaFreed{item.number != 0, "busy"}});
    case Kind::kTimer:
      return time_is_up(item.number);
    case Kind::kInterrupt:
      user_stops_ = true;
      ++interrupts_;
      return feed({now_, Interrupted{}});
    default:
      return;
  }
}

void World::perform(const Effect& effect) {
  say("  {}", name(effect));
  if (std::holds_alternative<StartService>(effect)) return perform_start();
  if (const auto* e = std::get_if<LaunchGang>(&effect)) return perform_launch(e->attempt);
  if (const auto* e = std::get_if<EndGang>(&effect)) return perform_end(e->attempt);
  if (const auto* e = std::get_if<Stop>(&effect)) return perform_stop(*e);
  if (const auto* e = std::get_if<RequestDrain>(&effect)) {
    SimGang* g = gang(e->attempt.value);
    if (service_ && g != nullptr) g->drain = true;
    return;
  }
  if (const auto* e = std::get_if<CollectTraces>(&effect)) {
    if (traces_hang_ > 0) return void(--traces_hang_);
    return schedule(rng_.ms(10, 3000), Kind::kTraces, e->attempt.value, true);
  }
  if (std::holds_alternative<FinishJob>(effect)) {
    if (!service_) return;
    // The service stores the last step and no other: a gang that left with 0 too early is found out
    // here at the latest.
    if (finishes_fail_ > 0 || ready_ != rules_.max_steps.value) {
      finishes_fail_ -= finishes_fail_ > 0;
      return schedule(rng_.ms(10, 500), Kind::kFinishFailed, 0, true);
    }
    durable_ = ready_;
    stored_ = true;
    return schedule(rng_.ms(10, 500), Kind::kFinished, 0, true);
  }
  if (std::holds_alternative<FlushAndKeepArena>(effect)) {
    const bool stored = service_ && flushes_fail_ == 0;
    if (flushes_fail_ > 0) --flushes_fail_;
    if (stored) durable_ = std::max(durable_, ready_);
    return schedule(rng_.ms(10, 1000), Kind::kFlushed, stored, true);
  }
  if (std::holds_alternative<FreeArena>(effect)) {
    check_free();
    const bool freed = frees_fail_ == 0;
    freed_ = freed;
    if (freed) free_arena();
    if (!freed) --frees_fail_;
    return schedule(rng_.ms(1, 100), Kind::kFreed, freed, true);
  }
}

void World::perform_start() {
  if (starts_silent_ > 0) return void(--starts_silent_);
  if (!service_ && starts_fail_ > 0)
    return --starts_fail_, schedule(rng_.ms(10, 3000), Kind::kServiceFailed, 0, true);
  if (!service_) ++sights_.service_restarts;
  freed_ = false;
  service_ = true;
  schedule(rng_.ms(10, 300), Kind::kServiceUp, 0, true);
}

void World::perform_launch(Attempt attempt) {
  check_launch(attempt);
  stage_told_ = Stage::kLaunching;
  if (launches_fail_ > 0)
    return --launches_fail_, schedule(rng_.ms(1, 100), Kind::kLaunchFailed, attempt.value, true);
  SimGang g;
  g.attempt = attempt;
  g.known_before = finished_;
  gangs_.push_back(std::move(g));
  schedule(rng_.ms(1, 50), Kind::kLaunched, attempt.value, true);
  schedule(rng_.ms(50, 300), Kind::kGang, attempt.value);
}

void World::perform_end(Attempt attempt) {
  SimGang* g = gang(attempt.value);
  if (g != nullptr) {
    if (g->mpirun && now_ >= unkillable_until_) {
      g->mpirun = false;
      g->signal = 9;
      g->died = now_;
      if (rng_.chance(2)) schedule(rng_.ms(0, 50), Kind::kExited, attempt.value, true);
    }
    // Only the service knows the workers.
    if (g->workers && service_ && now_ >= unkillable_until_) {
      if (g->left_by_itself) ++sights_.orphans_ended;
      g->workers = false;
    }
  }
  const bool gone = service_ && (g == nullptr || (!g->workers && !g->mpirun));
  schedule(rng_.ms(5, 1000), gone ? Kind::kEnded : Kind::kNotEnded, attempt.value, true);
}

void World::perform_stop(const Stop& stop) {
  say("stopped with {}: {}", stop.exit_code, stop.line);
  check_stop(stop);
  alive_ = false;
  dies_after_effects_ = -2;
  const bool again = stop.exit_code == kExitInterrupted ||
                     (stop.exit_code == kExitDoNotRequeue && stop.state == JobState::kFailed &&
                      std::exchange(plan_.reruns_a_failed_job, false));
  if (again) return schedule(rng_.ms(100, 20'000), Kind::kStart);
  over_ = true;
}

}  // namespace surefoot::sim
