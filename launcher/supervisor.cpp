#include "launcher/supervisor.h"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/supervisor_machine.h"

namespace surefoot::supervisor {
namespace {

Cause cause_of(Stage stage) {
  switch (stage) {
    case Stage::kLaunching:
      return Cause::kLaunch;
    case Stage::kLoading:
      return Cause::kLoad;
    case Stage::kRestoring:
      return Cause::kRestore;
    case Stage::kStepping:
      return Cause::kUnfinished;
    case Stage::kEvaluating:
      return Cause::kEvaluation;
    case Stage::kFinishing:
      return Cause::kFinish;
  }
  return Cause::kLaunch;
}

std::string_view hang_reason(Stage stage) {
  return stage < Stage::kStepping     ? "no first step within startup_timeout"
         : stage == Stage::kFinishing ? "not finished within hang_timeout"
                                      : "no step finished within hang_timeout";
}

}  // namespace

Duration time_limit(const Rules& rules, Stage stage) {
  switch (stage) {
    case Stage::kLaunching:
    case Stage::kLoading:
    case Stage::kRestoring:
      return rules.startup_timeout;
    case Stage::kStepping:
    case Stage::kEvaluating:
    case Stage::kFinishing:
      return rules.hang_timeout;
  }
  return rules.hang_timeout;
}

Decision decide(const Rules& rules, State state, const Event& event) {
  return Machine(rules, std::move(state)).run(event);
}

Decision Machine::run(const Event& event) {
  s_.now = std::max(s_.now, event.at);
  if (s_.doing == Doing::kStopped) {
    ignore("the job has stopped");
  } else if (s_.doing == Doing::kNothing && !std::holds_alternative<JobOpened>(event.what)) {
    ignore("the job is not open yet");
  } else {
    std::visit([this](const auto& e) { on(e); }, event.what);
    tend();
  }
  return Decision{std::move(s_), std::move(effects_), reason_, record_};
}

bool Machine::is_current(Attempt attempt) {
  if (attempt < s_.history.attempt) {
    ignore("it is of an older attempt");
  } else if (attempt > s_.history.attempt) {
    ignore("it is of an attempt that was never launched");
  } else if (!s_.history.attempt_open) {
    ignore("this attempt is over");
  } else if (!gang_may_run()) {
    ignore("no gang is in hand");
  } else {
    return true;
  }
  return false;
}

Time Machine::clamped(Time when) const {
  return std::clamp(when, s_.history.accounting.mark, s_.now);
}

void Machine::on(const JobOpened& e) {
  if (s_.doing != Doing::kNothing) return ignore("the job is open already");
  History& h = s_.history;
  h = e.history;
  h.accounting.open(s_.now);
  s_.mark = s_.now;
  s_.gang_alive = e.gang_alive;
  if (h.state == JobState::kDone && h.finished_step >= rules_.max_steps && !h.attempt_open) {
    stop_when_free(kExitDone, JobState::kDone, "the job is done already");
    return close("all steps were done and stored before");
  }
  // A stop was the supervisor's word to its user, who now asks anew. The total stays: it is what
  // ends a loop of requeues.
  if (h.state != JobState::kRunning) h.failures_in_row = h.idle_in_row = 0;
  h.state = JobState::kRunning;
  stop_if_totals_are_used_up();
  s_.leftover = h.attempt_open;
  open_fleet();
  assemble();
  because(h.attempt_open ? "an earlier supervisor left a gang, which the service must help to end"
                         : "the service comes before the gang");
}

// ---- The gang ----

void Machine::proceed(std::string_view sentence) {
  if (s_.history.attempt_open) {
    if (asks_gang_first()) {
      assemble();
      return because("the machines of the gang left behind are asked first");
    }
    open_attempt_end();
    close_the_asking();
    if (s_.gang_alive && !stopping()) {
      s_.stage = Stage::kStepping;
      return drain(Outcome::kAbandoned, s_.now + rules_.drain_timeout,
                   "a gang is never adopted: the one left behind is drained, then ended");
    }
    return end_gang(Outcome::kAbandoned, "a gang is never adopted: the one left behind is ended");
  }
  if (stopping()) return close(sentence);
  because(sentence);
  std::vector<Member> members = members_for_launch();
  if (members.empty()) return assemble();
  if (!secures_steps(members)) launch(std::move(members));
}

void Machine::open_attempt_end() {
  s_.end = AttemptEnd{};
  s_.end.attempt = s_.history.attempt;
  s_.end.first_step = s_.history.finished_step;
}

void Machine::launch(std::vector<Member> members) {
  History& h = s_.history;
  if (s_.members.empty() && !alone()) settle_reference();
  h.attempt = h.attempt.next();
  h.attempt_open = true;
  h.gang.clear();
  for (const Member& member : members) {
    s_.fleet[member.node].in_gang = true;
    h.gang.push_back(s_.fleet[member.node].host.name);
  }
  if (!alone()) {
    h.numerics_id = s_.reference.numerics_id;
    h.training_hash = s_.reference.training_hash;
  }
  s_.members = std::move(members);
  s_.launched = true;
  s_.grow_at = Time::max();
  s_.doing = Doing::kRunning;
  s_.stage = Stage::kLaunching;
  s_.deadline = s_.now + time_limit(rules_, s_.stage);
  s_.attempt_step = Step{-1};
  s_.leftover = s_.exited = s_.fault_fired = s_.notice = s_.regroup = false;
  s_.lost.clear();
  s_.verdict.reset();
  s_.not_ended.clear();
  open_attempt_end();
  if (s_.recovering) {
    s_.recovery.attempt = h.attempt;
    s_.recovery.wait = s_.now - s_.mark;
  }
  s_.mark = s_.now;
  perform(LaunchGang{h.attempt, s_.members});
}

void Machine::on(const GangLaunched& e) {
  if (is_current(e.attempt)) because("mpirun was started", false);
}

void Machine::on(const LaunchFailed& e) {
  if (!is_current(e.attempt)) return;
  if (s_.exited || s_.doing == Doing::kEnding) return ignore("the gang is being ended anyway");
  s_.exited = true;
  s_.end.culprit.reason = "launch failed: " + e.message;
  s_.end.culprit.step = s_.history.finished_step;
  s_.history.accounting.spend(Cause::kLaunch, s_.now);
  s_.mark = s_.now;
  end_gang(Outcome::kFailed, "the launch failed; whether something of it runs is looked at first");
}

void Machine::leave_stage(Time when) {
  s_.history.accounting.spend(cause_of(s_.stage), when);
  if (!s_.recovering || s_.stage >= Stage::kStepping) return;
  Duration& phase = s_.stage == Stage::kLaunching ? s_.recovery.launch
                    : s_.stage == Stage::kLoading ? s_.recovery.load
                                                  : s_.recovery.restore;
  if (when > s_.mark) {
    phase += when - s_.mark;
    s_.mark = when;
  }
}

void Machine::on(const StageReached& e) {
  if (!is_current(e.attempt)) return;
  if (s_.doing != Doing::kRunning) return ignore("the gang is to leave, its stage does not matter");
  const bool back = s_.stage == Stage::kEvaluating && e.stage == Stage::kStepping;
  if (e.stage <= s_.stage && !back) return ignore("this stage was reached before");
  // What lies between the last finished step and an evaluation or the end is no step in hand.
  if (s_.stage == Stage::kStepping) {
    s_.history.accounting.spend(cause_of(e.stage), clamped(e.when));
  } else {
    leave_stage(clamped(e.when));
  }
  s_.stage = e.stage;
  if (e.stage >= Stage::kStepping) s_.deadline = s_.now + time_limit(rules_, e.stage);
  because("the gang has come further", false);
}

void Machine::learn(Step finished) {
  if (finished <= s_.history.finished_step) return;
  s_.history.finished_step = finished;
  s_.history.failures_in_row = s_.history.idle_in_row = 0;
}

// While its machines are asked for, the gang left behind goes on.
bool Machine::is_of_leftover(Attempt attempt) const {
  return s_.leftover && s_.doing == Doing::kAssembling && attempt == s_.history.attempt;
}

void Machine::on(const StepFinished& e) {
  if (is_of_leftover(e.attempt) && e.step > s_.attempt_step && e.step <= rules_.max_steps) {
    s_.attempt_step = e.step;
    learn(e.step);
    return because("a step of the gang left behind is finished", false);
  }
  if (!is_current(e.attempt)) return;
  if (e.step <= s_.attempt_step) return ignore("this step was told before");
  if (e.step > rules_.max_steps) return ignore("the job has no such step");
  const bool first = s_.attempt_step.value < 0;
  const Time when = clamped(e.when);
  if (s_.stage < Stage::kStepping) {
    leave_stage(when);
    s_.stage = Stage::kStepping;
  }
  // What was known to be finished when the attempt was launched had to be done again.
  const std::int64_t from = first ? e.step.value - 1 : s_.attempt_step.value;
  const std::int64_t lost = std::min(e.step.value, s_.end.first_step.value) - from;
  s_.history.steps_lost += s_.leftover ? 0 : std::max<std::int64_t>(lost, 0);
  s_.history.accounting.spend_step(!s_.leftover && lost > 0, e.snapshot_exposed, when);
  s_.attempt_step = e.step;
  learn(e.step);
  if (s_.recovering && !s_.leftover) {
    s_.recovery.first_step = std::max(when - s_.mark, Duration::zero());
    s_.recovery.steps_lost = std::max<std::int64_t>(s_.end.first_step.value - from, 0);
    s_.recovering = false;
    perform(RecordRecovery{s_.recovery});
  }
  const bool goes_on = s_.doing == Doing::kCollecting && !s_.exited && !stopping();
  if (goes_on) {
    s_.doing = Doing::kRunning;
    s_.verdict.reset();
    s_.end.culprit = {};
  }
  if (s_.doing == Doing::kRunning) {
    // Others may have come while it started, or was thought to hang.
    if (first || goes_on) weigh_growth(false);
    if (s_.stage == Stage::kEvaluating) s_.stage = Stage::kStepping;
    s_.deadline = s_.now + time_limit(rules_, s_.stage);
  }
  because("a step is finished", first);
  if (goes_on) part_from_leavers();
}

void Machine::on(const FaultFired& e) {
  if (!is_current(e.attempt)) return;
  if (s_.fault_fired) return ignore("a fault of this attempt was told before");
  s_.fault_fired = true;
  because("a fault was injected into this attempt", false);
}

void Machine::on(const GangExited& e) {
  if (is_of_leftover(e.attempt)) {
    s_.gang_alive = false;
    return because("the gang left behind has exited, it needs no drain", false);
  }
  if (!is_current(e.attempt)) return;
  if (s_.exited) return ignore("its exit was told before");
  const Time died = clamped(e.died);
  Accounting& accounting = s_.history.accounting;
  s_.exited = true;
  s_.end.code = e.code;
  s_.end.signal = e.signal;
  if (s_.doing == Doing::kEnding) return because("the gang exited while it was being ended", false);
  if (s_.doing == Doing::kCollecting) {
    accounting.spend(Cause::kHang, s_.now);
  } else {
    s_.end.culprit = e.culprit;
    // Only a gang that we end is judged by our reason to do so; on a machine that goes everything
    // is its fault.
    if (s_.doing == Doing::kDraining && !s_.notice) s_.verdict.reset();
    if (s_.doing == Doing::kDraining) accounting.spend(Cause::kDrain, s_.now);
    accounting.spend(cause_of(s_.stage), e.code == 0 ? s_.now : died);
    accounting.spend(Cause::kDetect, s_.now);
    s_.mark = std::max(s_.mark, died);
  }
  s_.doing = Doing::kEnding;
  s_.deadline = s_.now + rules_.end_retry;
  s_.end_limit = s_.now + rules_.end_timeout;
  perform(EndGang{e.attempt});
  because("the gang has exited; that nobody of it is left is made sure of");
}

void Machine::hang() {
  s_.end.culprit.step = s_.history.finished_step.next();
  s_.end.culprit.reason = hang_reason(s_.stage);
  s_.verdict = Outcome::kHung;
  s_.mark = std::max(s_.mark, s_.history.accounting.mark);
  s_.history.accounting.spend(Cause::kHang, s_.now);
  s_.doing = Doing::kCollecting;
  s_.deadline = s_.now + rules_.traces_timeout;
  perform(CollectTraces{s_.history.attempt});
  because(hang_reason(s_.stage));
}

void Machine::on(const TracesCollected& e) {
  if (!is_current(e.attempt)) return;
  if (s_.doing != Doing::kCollecting) return ignore("no traces are waited for");
  if (e.culprit.rank >= 0) {
    std::string reason = std::move(s_.end.culprit.reason);
    s_.end.culprit = e.culprit;
    s_.end.culprit.reason = std::move(reason);
  }
  end_gang(Outcome::kHung, "the traces of the hang are taken");
}

void Machine::drain(Outcome verdict, Time deadline, std::string_view sentence) {
  s_.doing = Doing::kDraining;
  s_.verdict = verdict;
  s_.deadline = deadline;
  perform(RequestDrain{s_.history.attempt});
  because(sentence);
}

void Machine::end_gang(Outcome verdict, std::string_view sentence) {
  // In doing so nothing is cut that counts: finished steps are READY in the arena.
  Accounting& accounting = s_.history.accounting;
  if (s_.doing == Doing::kDraining) accounting.spend(Cause::kDrain, s_.now);
  if (s_.doing == Doing::kCollecting) accounting.spend(Cause::kHang, s_.now);
  if (s_.doing == Doing::kRunning) leave_stage(s_.now);
  s_.verdict = verdict;
  s_.doing = Doing::kEnding;
  s_.deadline = s_.now + rules_.end_retry;
  s_.end_limit = s_.now + rules_.end_timeout;
  // Only the service knows who of the gang is left.
  if (alone() && s_.fleet[0].standing == Standing::kOut && s_.fleet[0].due == Time::max())
    start_service(s_.fleet[0]);
  perform(EndGang{s_.history.attempt});
  because(sentence);
}

void Machine::on(const GangEnded& e) {
  if (!is_current(e.attempt)) return;
  if (s_.doing != Doing::kEnding) return ignore("the gang was not asked to end");
  const auto returning = std::find_if(s_.fleet.begin(), s_.fleet.end(), [this](const Node& node) {
    return !alone() && node.in_gang && node.standing == Standing::kPreparing;
  });
  if (returning != s_.fleet.end()) {
    s_.end_limit = std::max(s_.end_limit, returning->due + rules_.end_retry);
    return because("a machine's service is on its way back: who is left there is not known yet",
                   false);
  }
  s_.history.accounting.spend(s_.verdict == Outcome::kHung ? Cause::kHang : Cause::kEnd, s_.now);
  judge();
}

void Machine::on(const GangNotEnded& e) {
  if (!is_current(e.attempt)) return;
  if (s_.doing != Doing::kEnding) return ignore("the gang was not asked to end");
  s_.not_ended = e.message;
  if (s_.now >= s_.end_limit) return give_up_ending();
  because("somebody of the gang may be left; asked again in a moment", false);
}

}  // namespace surefoot::supervisor
