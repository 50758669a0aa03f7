// The judge of every world: of decisions, launches and stops, and of budgets and books, by what was
// known when.
#include "launcher/sim/life.h"

namespace surefoot::sim {

using namespace supervisor;  // NOLINT: the whole file speaks of its types

void Life::check_decision(const Decision& decision, Attempt attempt, Step finished) {
  const State& next = decision.next;
  if (decision.reason.empty()) violated("a decision has no reason");
  if (next.doing != Doing::kStopped && deadline(rules_, next) == Time::max()) {
    violated(fmt::format("no deadline while {}", name(next.doing)));
  }
  if (next.history.finished_step.value > finished_)
    violated("the core claims a step that nobody has finished");
  if (next.history.attempt < attempt) violated("the number of the attempt went back");
  if (next.history.finished_step < finished) violated("a finished step is not known any more");
  const bool waits_for_gang = next.doing == Doing::kRunning || next.doing == Doing::kDraining ||
                              next.doing == Doing::kCollecting;
  if (interrupts_ >= 2 && waits_for_gang)
    violated("interrupted twice, and the gang is still waited for");
  note_failures(decision);
  // By what was known when it was decided: steps of a gang left behind may become known later.
  rightly_given_up_ =
      rightly_given_up_ || (next.stop.exit_code == kExitDoNotRequeue && may_be_given_up());
}

void Life::check_any_launch(Attempt attempt) {
  if (attempt.value <= highest_attempt_)
    violated(fmt::format("attempt {} is launched again", attempt));
  if (final_) violated("launched again after a user's error");
  if (user_stops_) violated("launched although the user or the machine asked to stop");
  if (!journal_.attempt_open || journal_.attempt != attempt)
    violated("launched before the journal knows of it");
  check_budgets();
  highest_attempt_ = std::max(highest_attempt_, attempt.value);
  ++sights_.launches;
}

void Life::check_any_stop(const Stop& stop, bool called_for) {
  check_books();
  const bool gave_up = state_.history.attempt_open;
  sights_.given_up += gave_up;
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
      if (!called_for && !gave_up) violated("interrupted, but nobody asked for it");
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

// Counts failures by what was known when: what a job may at most have used of its budgets. It is
// stopped for no less.
void Life::note_failures(const Decision& decision) {
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

bool Life::may_be_given_up() const {
  const Rules& rules = rules_;
  return known_same_ ||
         (rules.max_failures >= 0 && known_failures_ > 0 && known_row_ >= rules.max_failures) ||
         (rules.max_failures_total >= 0 && known_failures_ >= rules.max_failures_total) ||
         (rules.max_preemptions >= 0 && preemptions_ > 0 && preemptions_ >= rules.max_preemptions);
}

void Life::check_budgets() {
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

void Life::count_end(const AttemptEnd& end) {
  const bool failed = end.outcome == Outcome::kFailed || end.outcome == Outcome::kHung;
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
  const auto node = static_cast<std::size_t>(end.culprit.node);
  const bool left_out = node < state_.fleet.size() && state_.fleet[node].barred;
  same_twice_ = !left_out && last_failure_step_ == end.culprit.step.value &&
                last_failure_ == end.culprit.reason;
  last_failure_step_ = end.culprit.step.value;
  last_failure_ = end.culprit.reason;
}

void Life::check_books() {
  const Accounting& accounting = state_.history.accounting;
  if (accounting.elapsed() - elapsed_before_ != clock() - opened_) {
    violated(fmt::format("the causes add up to {:.3f} s, {:.3f} s have elapsed",
                         seconds(accounting.elapsed() - elapsed_before_),
                         seconds(clock() - opened_)));
  }
}

}  // namespace surefoot::sim
