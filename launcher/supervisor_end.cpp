// How an attempt is judged, what it costs, and how the job stops.
#include <fmt/format.h>

#include <algorithm>

#include "launcher/supervisor_machine.h"

namespace surefoot::supervisor {
namespace {

bool is_user_error(int code) {
  return code >= kExitUserErrorFirst && code <= kExitUserErrorLast;
}

// Reaches its limit as documented, -1: has none.
bool reached(std::int64_t count, std::int64_t limit) {
  return limit >= 0 && count >= limit;
}

// A stop that weighs more replaces one that was decided earlier.
int weight(JobState state) {
  switch (state) {
    case JobState::kRunning:
      return 0;
    case JobState::kInterrupted:
      return 1;
    case JobState::kFailed:
      return 2;
    case JobState::kCancelled:
      return 3;
    case JobState::kDone:
      return 4;
  }
  return 0;
}

std::string why(const AttemptEnd& end, const std::string& lost) {
  if (end.outcome == Outcome::kPreempted) {
    if (!lost.empty()) return lost;
    return end.code == kExitInterrupted ? "left since its machine goes"
                                        : "ended since its machine goes";
  }
  if (!end.culprit.reason.empty()) return end.culprit.reason;
  if (end.signal != 0) return fmt::format("killed by signal {}", end.signal);
  if (end.code == 0) return "left with exit code 0 before the last step";
  if (end.code > 0) return fmt::format("exit code {}", end.code);
  return "its end was not seen";
}

}  // namespace

Outcome Machine::outcome() const {
  if (s_.leftover) return Outcome::kAbandoned;
  if (s_.exited) {
    if (s_.end.code == kExitDone && s_.history.finished_step >= rules_.max_steps)
      return Outcome::kDone;
    if (is_user_error(s_.end.code)) return Outcome::kRefused;
    // A gang that drains unasked was told by its machine (SIGTERM).
    if (s_.end.code == kExitInterrupted) {
      if (s_.notice || !s_.lost.empty()) return Outcome::kPreempted;
      return stopping()   ? Outcome::kDrained
             : s_.regroup ? Outcome::kRegrouped
                          : Outcome::kPreempted;
    }
  }
  if (!s_.lost.empty() && s_.verdict.value_or(Outcome::kFailed) == Outcome::kFailed)
    return Outcome::kPreempted;
  return s_.verdict.value_or(Outcome::kFailed);
}

bool Machine::forgiven() const {
  return s_.fault_fired && !rules_.faults_count &&
         s_.history.failures_forgiven < rules_.injected_faults;
}

void Machine::judge() {
  History& h = s_.history;
  AttemptEnd& end = s_.end;
  const bool progress = h.finished_step > end.first_step;
  end.last_step = h.finished_step;
  end.outcome = outcome();
  const bool setback = end.outcome == Outcome::kFailed || end.outcome == Outcome::kHung ||
                       end.outcome == Outcome::kPreempted;
  end.injected = setback && forgiven();
  if (setback) end.culprit.reason = why(end, s_.lost);
  note_notice(end);
  const bool cured = close_gang(end);
  h.attempt_open = s_.leftover = false;
  s_.recovering = true;
  s_.recovery = Recovery{};
  s_.recovery.detect = s_.now - s_.mark;
  s_.mark = s_.now;
  perform(RecordAttemptEnd{end});
  if (end.injected) {
    ++h.failures_forgiven;
    return after_setback("an injected fault ended the attempt: it does not count");
  }
  switch (end.outcome) {
    case Outcome::kDone:
      if (s_.stop.state == JobState::kCancelled) return close("cancelled after the last step");
      s_.doing = Doing::kFinishing;
      s_.finish_limit = s_.now + time_limit(rules_, Stage::kFinishing);
      s_.finish_pauses = 0;
      s_.not_finished.clear();
      ask_to_finish();
      return because("all steps are finished");
    case Outcome::kRefused:
      stop_when_free(end.code, JobState::kFailed,
                     fmt::format("refused with exit code {}: {}", end.code, why(end, s_.lost)));
      return close("a user's error: the same job file will never work");
    case Outcome::kFailed:
    case Outcome::kHung:
      count_failure(end.culprit.step, end.culprit.reason, progress, cured);
      return after_setback(end.outcome == Outcome::kHung ? "the attempt hung"
                                                         : "the attempt failed");
    case Outcome::kPreempted:
      count_preemption(progress);
      return after_setback("the attempt was preempted");
    case Outcome::kAbandoned:
      return proceed("the gang left behind is gone");
    case Outcome::kRegrouped:
      return proceed("the gang has left: it goes on with other machines");
    case Outcome::kDrained:
      return proceed("the gang has left after a finished step");
    case Outcome::kEnded:
      return proceed("the gang was ended for the user");
  }
}

void Machine::count_failure(Step step, const std::string& reason, bool progress, bool cured) {
  History& h = s_.history;
  // Twice on one machine, of several: it is the machine until another one has it, too.
  const bool same = !cured && h.has_last_failure && h.last_failure_step == step &&
                    h.last_failure_reason == reason;
  h.has_last_failure = true;
  h.last_failure_step = step;
  h.last_failure_reason = reason;
  ++h.failures_total;
  if (!progress) {
    ++h.failures_in_row;
    ++h.idle_in_row;
  }
  if (same) {
    stop_when_free(
        kExitDoNotRequeue, JobState::kFailed,
        fmt::format("the same failure twice at step {}, so a restart does not cure it: {}", step,
                    reason));
  } else if (reached(h.failures_in_row, rules_.max_failures)) {
    stop_when_free(kExitDoNotRequeue, JobState::kFailed,
                   fmt::format("failed attempts in a row without a new finished step: {} "
                               "(recovery.max_failures is {}), the last one: {}",
                               h.failures_in_row, rules_.max_failures, reason));
  }
  stop_if_totals_are_used_up();
}

void Machine::stop_if_totals_are_used_up() {
  const History& h = s_.history;
  if (h.failures_total > 0 && reached(h.failures_total, rules_.max_failures_total)) {
    stop_when_free(
        kExitDoNotRequeue, JobState::kFailed,
        fmt::format(
            "failed attempts in all: {} (recovery.max_failures_total is {}), the last one: {}",
            h.failures_total, rules_.max_failures_total, h.last_failure_reason));
  } else if (h.preemptions > 0 && reached(h.preemptions, rules_.max_preemptions)) {
    stop_when_free(kExitDoNotRequeue, JobState::kFailed,
                   fmt::format("preemptions in all: {} (recovery.max_preemptions is {})",
                               h.preemptions, rules_.max_preemptions));
  }
}

void Machine::count_preemption(bool progress) {
  History& h = s_.history;
  ++h.preemptions;
  if (!progress) ++h.idle_in_row;
  stop_if_totals_are_used_up();
}

void Machine::after_setback(std::string_view sentence) {
  if (stopping() || s_.history.idle_in_row == 0 || rules_.backoff <= Duration::zero())
    return proceed(sentence);
  const std::int64_t doublings = std::min<std::int64_t>(s_.history.idle_in_row - 1, 6);
  s_.doing = Doing::kBackingOff;
  s_.deadline =
      s_.now + rules_.backoff * std::min<std::int64_t>(std::int64_t{1} << doublings, kBackoffLimit);
  because(sentence);
}

void Machine::stop_when_free(int exit_code, JobState state, std::string line) {
  if (weight(state) > weight(s_.stop.state)) s_.stop = Stop{exit_code, state, std::move(line)};
}

void Machine::give_up_ending() {
  stop_when_free(kExitInterrupted, JobState::kInterrupted,
                 fmt::format("processes of attempt {} could not be ended: {}", s_.history.attempt,
                             s_.not_ended.empty() ? "no answer" : s_.not_ended));
  s_.history.accounting.spend(Cause::kEnd, s_.now);
  close("the gang cannot be ended; the next supervisor must do that first");
}

void Machine::close(std::string_view sentence) {
  History& h = s_.history;
  s_.doing = Doing::kClosing;
  s_.deadline = s_.now + rules_.close_timeout;
  h.state = s_.stop.state;
  because(sentence);
  // Finished steps are stored before anything is freed, for a cancelled job too. Where nobody could
  // be asked, an earlier attempt may have finished some. Who may still be alive keeps the arena.
  const bool all_seen =
      s_.service_seen && (alone() || std::all_of(s_.fleet.begin(), s_.fleet.end(),
                                                 [](const Node& node) { return node.up(); }));
  const bool may_have_steps = h.finished_step.value > 0 || (h.attempt.value > 0 && !all_seen);
  if (h.attempt_open || (may_have_steps && s_.stop.state != JobState::kDone)) {
    s_.saving = newest_held();
    perform(FlushAndKeepArena{holders()});
  } else {
    free_arena();
  }
}

void Machine::free_arena() {
  s_.freeing = true;
  s_.deadline = s_.now + rules_.close_timeout;
  perform(FreeArena{});
}

void Machine::leave(std::string_view sentence) {
  History& h = s_.history;
  h.accounting.spend(Cause::kFinish, s_.now);
  h.state = s_.stop.state;
  s_.doing = Doing::kStopped;
  s_.stop.line += fmt::format("; {} of {} steps are finished", h.finished_step, rules_.max_steps);
  perform(Stop{s_.stop});
  because(sentence);
}

void Machine::on(const JobFinished&) {
  if (s_.doing != Doing::kFinishing) return ignore("the job was not asked to finish");
  s_.history.accounting.spend(Cause::kFinish, s_.now);
  stop_when_free(kExitDone, JobState::kDone, "done");
  close("the job is done: stored and exported");
}

// On a machine that holds the last step. Where none does, who makes it again brings it to one.
void Machine::ask_to_finish() {
  s_.finish_asked = true;
  s_.deadline = s_.finish_limit;
  const std::vector<NodeId> nodes = holders();
  const auto holder = std::find_if(nodes.begin(), nodes.end(), [&](NodeId id) {
    return alone() || (s_.fleet[id].up() && s_.fleet[id].ready >= rules_.max_steps);
  });
  if (holder == nodes.end()) {
    s_.history.accounting.spend(Cause::kFinish, s_.now);
    return proceed("no machine that holds the last step is left");
  }
  s_.finishing_node = *holder;
  perform(FinishJob{*holder});
}

// Of a gang that has left for a notice: how long that took, and what time was left.
void Machine::note_notice(AttemptEnd& end) const {
  for (const Node& node : s_.fleet) {
    if (!s_.notice || !node.in_gang || !node.leaves || !node.noticed_at) continue;
    const Duration took = s_.now - *node.noticed_at;
    end.drained_after = std::max(end.drained_after.value_or(Duration::zero()), took);
    if (node.leaves_at) {
      const Duration left = *node.leaves_at - s_.now;
      end.time_left = std::min(end.time_left.value_or(left), left);
    }
  }
}

void Machine::on(const FinishFailed& e) {
  if (s_.doing != Doing::kFinishing || !s_.finish_asked)
    return ignore("the job was not asked to finish");
  const Duration pause = std::min<Duration>(
      kFinishPause * (std::int64_t{1} << std::min(s_.finish_pauses, 5)), kLongestFinishPause);
  if (e.may_pass && s_.now + pause < s_.finish_limit && !stopping()) {
    s_.finish_asked = false;
    ++s_.finish_pauses;
    s_.not_finished = e.message;
    s_.deadline = s_.now + pause;
    return because("the store may come back: the job is finished after a pause");
  }
  s_.history.accounting.spend(Cause::kFinish, s_.now);
  count_failure(s_.history.finished_step, "the job could not be finished: " + e.message, false);
  after_setback("the last step could not be stored or exported");
}

// What could not be stored is done again, unless who holds it takes part after all. Machines that
// have come meanwhile may hold more: proceed() looks.
void Machine::steps_secured(const ArenaFlushed& e) {
  s_.history.accounting.spend(Cause::kFinish, s_.now);
  s_.secured = std::max(s_.secured, s_.saving);
  proceed(e.stored ? "the newest step is stored: machines that do not hold it go on"
                   : "the newest step could not be stored: the job goes on from an older one");
}

void Machine::on(const ArenaFlushed& e) {
  if (s_.doing == Doing::kSaving) return steps_secured(e);
  if (s_.doing != Doing::kClosing || s_.freeing)
    return ignore("the arena was not asked to be flushed");
  if (!e.stored) {
    s_.stop.line += "; the newest step is in memory only: " + e.message;
    return leave("the newest step could not be stored, so the arena stays");
  }
  if (s_.stop.state == JobState::kCancelled && !s_.history.attempt_open) {
    if (newest_held() > s_.saving && !alone()) {
      s_.saving = newest_held();
      perform(FlushAndKeepArena{holders()});
      return because("a machine has come that holds a newer step: that is stored too");
    }
    free_arena();
    return because("the newest step is stored, nothing else of a cancelled job is kept");
  }
  leave("the newest step is stored and the arena stays");
}

void Machine::on(const ArenaFreed& e) {
  if (s_.doing != Doing::kClosing || !s_.freeing)
    return ignore("the arena was not asked to be freed");
  if (!e.freed) s_.stop.line += "; its memory is not freed: " + e.message;
  leave("nothing of the job is left");
}

}  // namespace surefoot::supervisor
