// The judge: safety after each event, liveness at the end. It looks at the doubles; the core's
// opinion is what it doubts.
#include "launcher/sim/world.h"

namespace surefoot::sim {

using namespace supervisor;  // NOLINT: the whole file speaks of its types

void World::check_decision(const Decision& decision, Attempt before) {
  const State& next = decision.next;
  if (decision.reason.empty()) violated("a decision has no reason");
  if (next.doing != Doing::kStopped && deadline(rules_, next) == Time::max()) {
    violated(fmt::format("no deadline while {}", name(next.doing)));
  }
  if (next.history.finished_step.value > finished_)
    violated("the core claims a step that nobody has finished");
  note_failures(decision);
  // By what was known when it was decided: steps of a gang left behind may become known later.
  rightly_given_up_ =
      rightly_given_up_ || (next.stop.exit_code == kExitDoNotRequeue && may_be_given_up());
  const bool waits_for_gang = next.doing == Doing::kRunning || next.doing == Doing::kDraining ||
                              next.doing == Doing::kCollecting;
  if (interrupts_ >= 2 && waits_for_gang)
    violated("interrupted twice, and the gang is still waited for");
  if (next.history.attempt < before) violated("the number of the attempt went back");
}

// Counts failures by what was known when: what a job may at most have used of its budgets. It is
// stopped for no less.
void World::note_failures(const Decision& decision) {
  const History& next = decision.next.history;
  if (next.finished_step.value > known_step_) {
    known_step_ = next.finished_step.value;
    known_row_ = 0;
  }
  if (next.failures_total == failures_seen_) return;
  failures_seen_ = next.failures_total;
  const auto* record =
      decision.effects.empty() ? nullptr : std::get_if<RecordAttemptEnd>(&decision.effects[0]);
  // A failure of the service or of the last export counts too, and then the next crash is not the
  // same twice in a row.
  if (record == nullptr) last_failure_.clear();
  known_row_ += record == nullptr || record->end.last_step == record->end.first_step;
  ++known_failures_;
  const std::string failure =
      fmt::format("{} {}", next.last_failure_step, next.last_failure_reason);
  known_same_ = known_same_ || failure == known_failure_;
  known_failure_ = failure;
}

bool World::may_be_given_up() const {
  const Rules& rules = rules_;
  return known_same_ ||
         (rules.max_failures >= 0 && known_failures_ > 0 && known_row_ >= rules.max_failures) ||
         (rules.max_failures_total >= 0 && known_failures_ >= rules.max_failures_total) ||
         (rules.max_preemptions >= 0 && preemptions_ > 0 && preemptions_ >= rules.max_preemptions);
}

void World::check_launch(Attempt attempt) {
  for (const SimGang& g : gangs_) {
    if (g.mpirun || g.workers)
      violated(fmt::format("attempt {} is launched while something of attempt {} lives", attempt,
                           g.attempt));
  }
  if (attempt.value <= highest_attempt_)
    violated(fmt::format("attempt {} is launched again", attempt));
  if (final_) violated("launched again after a user's error");
  if (user_stops_) violated("launched although the user or the machine asked to stop");
  if (!journal_.attempt_open || journal_.attempt != attempt)
    violated("launched before the journal knows of it");
  const Rules& rules = rules_;
  if (rules.max_failures >= 0 && failures_in_row_ > 0 && failures_in_row_ >= rules.max_failures)
    violated("launched beyond max_failures");
  if (rules.max_failures_total >= 0 && failures_total_ > 0 &&
      failures_total_ >= rules.max_failures_total) {
    violated("launched beyond max_failures_total");
  }
  if (rules.max_preemptions >= 0 && preemptions_ > 0 && preemptions_ >= rules.max_preemptions &&
      setbacks_ > 0) {
    violated("launched beyond max_preemptions");
  }
  if (same_twice_) violated("launched after the same failure twice");
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
  if (end.outcome == Outcome::kPreempted) {
    ++preemptions_;
    ++setbacks_;
  }
  if (!failed) return;
  ++setbacks_;
  ++failures_total_;
  failures_in_row_ = finished_ > finished_at_failure_ ? 0 : failures_in_row_;
  failures_in_row_ += finished_ == end.first_step.value;
  finished_at_failure_ = finished_;
  same_twice_ = last_failure_step_ == end.culprit.step.value && last_failure_ == end.culprit.reason;
  last_failure_step_ = end.culprit.step.value;
  last_failure_ = end.culprit.reason;
}

void World::check_stop(const Stop& stop) {
  bool lives = false;
  for (const SimGang& g : gangs_) lives = lives || g.mpirun || g.workers;
  const bool gave_up = state_.history.attempt_open;
  if (gave_up) ++sights_.given_up;
  steps_unseen_ = steps_unseen_ || gave_up;
  if (lives && !gave_up) violated("the job stopped and a gang goes on");
  if (gave_up && interrupts_ < 3 && !hard_to_end_)
    violated("a gang was given up that could be ended");
  const Accounting& accounting = state_.history.accounting;
  if (accounting.elapsed() - elapsed_before_ != now_ - opened_) {
    violated(fmt::format("the causes add up to {:.3f} s, {:.3f} s have elapsed",
                         seconds(accounting.elapsed() - elapsed_before_), seconds(now_ - opened_)));
  }
  if (!steps_unseen_ && state_.history.steps_lost != redone_) {
    violated(fmt::format("{} steps were done again, {} are counted", redone_,
                         state_.history.steps_lost));
  }
  switch (stop.state) {
    case JobState::kDone:
      ++sights_.done;
      if (!stored_ || finished_ != rules_.max_steps.value) violated("done, but it is not");
      break;
    case JobState::kCancelled:
      ++sights_.cancelled;
      if (!cancel_asked_) violated("cancelled, but nobody asked for it");
      break;
    case JobState::kInterrupted:
      ++sights_.interrupted;
      if (!user_stops_ && !gave_up) violated("interrupted, but nobody asked for it");
      break;
    case JobState::kFailed:
      if (stop.exit_code == kExitDoNotRequeue) {
        ++sights_.do_not_requeue;
        if (!rightly_given_up_ && !may_be_given_up()) violated("given up within the budgets");
      } else if (!final_) {
        violated("refused, but no worker did");
      }
      break;
    case JobState::kRunning:
      violated("stopped while running");
      break;
  }
}

std::string World::check_finally() {
  if (exit_code_ == kExitDone && freed_ && (service_ || ready_ >= 0)) {
    return "done, but something is left";
  }
  return violation_;
}

}  // namespace surefoot::sim
