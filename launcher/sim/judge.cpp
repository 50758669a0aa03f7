// The judge: safety after each event, liveness at the end. It looks at the doubles; the core's
// opinion is what it doubts.
#include "launcher/sim/world.h"

namespace surefoot::sim {

using namespace supervisor;  // NOLINT: the whole file speaks of its types

void World::check_launch(Attempt attempt) {
  for (const SimGang& g : gangs_) {
    if (g.mpirun || g.workers)
      violated(fmt::format("attempt {} is launched while something of attempt {} lives", attempt,
                           g.attempt));
  }
  check_any_launch(attempt);
}

void World::check_free() {
  for (const SimGang& g : gangs_) {
    if (g.mpirun || g.workers) violated("the arena is freed under a living gang");
  }
  if (!stored_ && ready_ > 0 && (!cancel_asked_ || durable_ < ready_))
    violated("the arena of an unfinished job is freed");
}

// How a recorded end must read, by what the doubles did.
void World::check_end(const AttemptEnd& end) {
  SimGang* g = gang(end.attempt.value);
  if (g == nullptr) {  // the launch failed, or never happened
    count_setback(SimGang{}, end);
    return;
  }
  if (g->mpirun || g->workers)
    violated(fmt::format("attempt {} is recorded as ended while it lives", end.attempt));
  if (!g->own_child) {
    ++sights_.abandoned;
    if (end.outcome != Outcome::kAbandoned)
      violated("a gang of a dead supervisor is not recorded as abandoned");
    return;
  }
  switch (end.outcome) {
    case Outcome::kDone:
      if (finished_ < rules_.max_steps.value || g->code != 0)
        violated("recorded as done before the last step");
      break;
    case Outcome::kDrained:
      ++sights_.drained;
      if (!user_stops_ || g->code != kExitInterrupted)
        violated("recorded as drained, but was not asked to");
      break;
    case Outcome::kPreempted:
      ++sights_.preempted;
      break;
    case Outcome::kFailed:
      ++sights_.failed;
      break;
    case Outcome::kHung:
      ++sights_.hung;
      if (!g->hung && g->stage != Stage::kLaunching)
        violated("recorded as hung, but it made steps");
      break;
    case Outcome::kRefused:
      ++sights_.refused;
      final_ = true;
      break;
    case Outcome::kEnded:
      ++sights_.ended;
      break;
    case Outcome::kRegrouped:
      violated("recorded as regrouped, but there is one machine");
      break;
    case Outcome::kAbandoned:
      violated("its own gang is recorded as abandoned");
      break;
  }
  const bool refused = g->exit_told && g->left_by_itself && g->code >= 64 && g->code <= 66;
  if (refused && end.outcome != Outcome::kRefused)
    violated("a user's error is not recorded as such");
  if (!g->exit_told || user_stops_ || !g->left_by_itself || g->hung) return count_setback(*g, end);
  const bool early = g->code == 0 && finished_ < rules_.max_steps.value;
  if ((g->signal != 0 || g->code == 1 || g->code == 76 || early) &&
      end.outcome != Outcome::kFailed && end.outcome != Outcome::kHung) {
    violated("a crash is not recorded as failed");
  }
  if (g->code == kExitInterrupted && end.outcome != Outcome::kPreempted)
    violated("a gang that left unasked is not recorded as preempted");
  count_setback(*g, end);
}

void World::count_setback(const SimGang& g, const AttemptEnd& end) {
  const bool failed = end.outcome == Outcome::kFailed || end.outcome == Outcome::kHung;
  if (end.injected) {
    ++forgiven_;
    ++sights_.forgiven;
    if (!g.injected || rules_.faults_count || forgiven_ > rules_.injected_faults)
      violated("forgiven without a fault of ours");
    return;
  }
  if (g.injected && !g.fault_untold && !rules_.faults_count && failed && g.exit_told &&
      forgiven_ < rules_.injected_faults) {
    violated("an injected fault counted");
  }
  count_end(end);
}

void World::check_stop(const Stop& stop) {
  bool lives = false;
  for (const SimGang& g : gangs_) lives = lives || g.mpirun || g.workers;
  const bool gave_up = state_.history.attempt_open;
  steps_unseen_ = steps_unseen_ || gave_up;
  if (lives && !gave_up) violated("the job stopped and a gang goes on");
  if (gave_up && interrupts_ < 3 && !hard_to_end_)
    violated("a gang was given up that could be ended");
  if (!steps_unseen_ && state_.history.steps_lost != redone_) {
    violated(fmt::format("{} steps were done again, {} are counted", redone_,
                         state_.history.steps_lost));
  }
  check_any_stop(stop, user_stops_);
  if (stop.exit_code == kExitDone && freed_ && (service_ || ready_ >= 0))
    violated("done, but something is left");
}

}  // namespace surefoot::sim
