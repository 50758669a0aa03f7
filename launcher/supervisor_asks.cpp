// What the user, the machine and the clock ask for.
#include <algorithm>

#include "launcher/supervisor_machine.h"

namespace surefoot::supervisor {
namespace {

constexpr Duration kGrowthPatience = std::chrono::seconds(1);

}  // namespace

void Machine::on(const Interrupted&) {
  ++s_.interrupts;
  stop_when_free(kExitInterrupted, JobState::kInterrupted, "interrupted");
  switch (s_.doing) {
    case Doing::kAssembling:
    case Doing::kBackingOff:
    case Doing::kSaving:
      if (!s_.history.attempt_open) return close("interrupted while nothing runs");
      return proceed("interrupted before a gang left behind was ended");
    case Doing::kRunning:
      if (!worth_a_drain(s_.stage))
        return end_gang(Outcome::kEnded,
                        "interrupted outside of a step: the newest one is safe already");
      return drain(Outcome::kEnded, s_.now + rules_.drain_timeout,
                   "interrupted: all leave after the step in hand");
    case Doing::kDraining:
    case Doing::kCollecting:
      if (s_.interrupts < 2) return because("interrupted: the gang is to leave already");
      return end_gang(s_.leftover ? Outcome::kAbandoned : s_.verdict.value_or(Outcome::kEnded),
                      "interrupted again: the gang is ended now");
    case Doing::kFinishing:
      if (!s_.finish_asked) return close("interrupted while the store was waited for");
      if (s_.interrupts < 2)
        return because("interrupted: the job is all but done, once more leaves now");
      return close("interrupted again while the job was finished");
    case Doing::kEnding:
      if (s_.interrupts < 3) return because("interrupted: the gang is being ended");
      return leave("interrupted for the third time; a gang may be left");
    case Doing::kClosing:
      if (s_.interrupts < 2)
        return because("interrupted: the job is closing, once more leaves now");
      return leave("interrupted again while the job was closing");
    default:
      return ignore("nothing to interrupt");
  }
}

void Machine::on(const NoticeReceived& e) {
  Node* node = this->node(e.node);
  if (node == nullptr) return ignore("there is no such machine");
  if (e.leaves && s_.now >= *e.leaves + kOutlivedNotice) return ignore("its time is long over");
  node->is_here() ? own_machine_goes(*node, e.leaves) : node_goes(*node, e.leaves);
}

void Machine::announce(Node& node, std::optional<Time> leaves) {
  node.leaves = true;
  if (leaves) node.leaves_at = *leaves;
  if (!node.noticed_at) node.noticed_at = s_.now;
  if (node.up()) {
    node.noticed_boot = node.facts.boot_id;
    set_due(node, node.outlives_notice());
  }
  weigh_growth(false);
  tell_everyone_if_all_go();
}

// The job stops: nobody would see to it any more.
void Machine::own_machine_goes(Node& node, std::optional<Time> leaves) {
  const bool sooner = leaves && (!node.leaves_at || *leaves < *node.leaves_at);
  if (!alone() && (!node.leaves || sooner)) announce(node, leaves);
  const Time latest = s_.now + rules_.drain_timeout;
  const Time until = leaves ? std::clamp(*leaves, s_.now, latest) : latest;
  if (s_.doing == Doing::kDraining) s_.deadline = std::min(s_.deadline, until);
  if (stopping()) return because("the machine goes; the job is to stop already", false);
  s_.notice = true;
  stop_when_free(kExitInterrupted, JobState::kInterrupted, "the machine goes");
  switch (s_.doing) {
    case Doing::kAssembling:
    case Doing::kBackingOff:
    case Doing::kSaving:
      if (!s_.history.attempt_open) return close("the machine goes and nothing runs on it");
      return proceed("the machine goes before a gang left behind was ended");
    case Doing::kRunning:
      if (!worth_a_drain(s_.stage))
        return end_gang(Outcome::kPreempted,
                        "the machine goes outside of a step: the newest one is safe already");
      return drain(Outcome::kPreempted, until,
                   "the machine goes: all leave after the step in hand");
    default:
      break;
  }
  because("the machine goes");
}

// The others go on without it.
void Machine::node_goes(Node& node, std::optional<Time> leaves) {
  const bool sooner = leaves && (!node.leaves_at || *leaves < *node.leaves_at);
  const bool anew = leaves && node.leaves_at && s_.now >= *node.leaves_at && *leaves > s_.now;
  if (!node.up()) node.noticed_boot.clear();
  if (node.leaves && !sooner && !anew) return ignore("the machine is known to go");
  announce(node, leaves);
  if (!node.in_gang || !gang_may_run()) {
    if (s_.doing == Doing::kAssembling) return proceed("a machine goes that no worker runs on");
    return because("a machine goes that no worker runs on");
  }
  s_.notice = true;
  const Time latest =
      std::clamp(node.leaves_at.value_or(Time::max()), s_.now, s_.now + rules_.drain_timeout);
  if (s_.doing == Doing::kDraining) {
    s_.deadline = std::min(s_.deadline, latest);
    s_.verdict = stopping() ? s_.verdict : Outcome::kPreempted;
  } else if (s_.doing == Doing::kRunning && worth_a_drain(s_.stage)) {
    return drain(Outcome::kPreempted, latest, "a machine goes: all leave after the step in hand");
  } else if (s_.doing == Doing::kRunning) {
    return end_gang(Outcome::kPreempted,
                    "a machine goes outside of a step: the newest one is safe already");
  }
  because("a machine goes while the gang is leaving anyway");
}

// A gang that was thought to hang goes on, and one of its machines was to leave meanwhile.
void Machine::part_from_leavers() {
  bool unlisted = false;
  Time latest = s_.now + rules_.drain_timeout;
  for (const Node& node : s_.fleet) {
    if (!node.in_gang || alone()) continue;
    s_.notice = s_.notice || node.leaves;
    unlisted = unlisted || !node.listed;
    if (node.leaves) latest = std::clamp(node.leaves_at.value_or(latest), s_.now, latest);
  }
  if (!s_.notice && !unlisted) return;
  s_.regroup = true;
  drain(s_.notice ? Outcome::kPreempted : Outcome::kRegrouped, latest,
        "one of its machines is to leave: all leave after the step in hand");
}

void Machine::on(const CancelAsked&) {
  if (s_.stop.state == JobState::kCancelled) return ignore("the job is being cancelled already");
  if (s_.stop.state == JobState::kDone) return ignore("the job is done");
  stop_when_free(kExitDoNotRequeue, JobState::kCancelled, "the job was cancelled");
  if (s_.doing == Doing::kEnding) return because("cancelled: the gang is being ended");
  if (s_.doing == Doing::kClosing)
    return because("cancelled: the arena is freed once it is stored");
  if (s_.history.attempt_open) {
    if (s_.leftover && !gang_may_run()) open_attempt_end();
    return end_gang(s_.leftover ? Outcome::kAbandoned : Outcome::kEnded,
                    "cancelled: the gang is ended now");
  }
  close("cancelled");
}

void Machine::grow() {
  s_.grow_at = Time::max();
  weigh_growth(false);
  if (s_.grow_at == Time::max()) return because("the machines that came are gone again", false);
  if (s_.stage != Stage::kStepping) {
    s_.grow_at = s_.now + kGrowthPatience;
    return because("more machines are taken once the gang makes steps", false);
  }
  s_.grow_at = Time::max();
  s_.regroup = true;
  drain(Outcome::kRegrouped, s_.now + rules_.drain_timeout,
        "steps are faster with the machines that have come: all leave after the step in hand");
}

void Machine::on(const TimerFired&) {
  if (s_.now < deadline(rules_, s_)) return ignore("no deadline has passed");
  // One thing at a time: what else is due is told once more.
  if (look_after_machines()) return;
  if (s_.doing == Doing::kRunning && s_.now >= s_.grow_at) return grow();
  if (s_.now < own_deadline(s_)) return ignore("no deadline has passed");
  switch (s_.doing) {
    case Doing::kAssembling:
      s_.history.accounting.spend(Cause::kCapacity, s_.now);
      if (s_.members.empty() && !alone()) settle_reference();
      if (!s_.history.attempt_open && !choose(rules_.fleet, s_.fleet, s_.reference).empty()) {
        s_.launched = true;
        s_.deadline = s_.now + rules_.fleet.check_timeout;
        return proceed("there are enough machines, more are not waited for any longer");
      }
      stop_when_free(
          kExitInterrupted, JobState::kInterrupted,
          "not enough machines within capacity_timeout: " + shortage(rules_.fleet, s_.fleet));
      return close("there are not enough machines");
    case Doing::kRunning:
      return hang();
    case Doing::kDraining:
      return end_gang(s_.verdict.value_or(Outcome::kEnded), "not drained in time");
    case Doing::kCollecting:
      return end_gang(Outcome::kHung, "the traces took too long");
    case Doing::kEnding:
      if (s_.now >= s_.end_limit) return give_up_ending();
      s_.deadline = s_.now + rules_.end_retry;
      perform(EndGang{s_.history.attempt});
      return because("the gang is not known to be gone: once more", false);
    case Doing::kBackingOff:
      s_.history.accounting.spend(Cause::kBackoff, s_.now);
      return proceed("the pause is over");
    case Doing::kSaving:
      return on(ArenaFlushed{false, "it took longer than close_timeout"});
    case Doing::kFinishing:
      if (s_.finish_asked) {
        return on(
            FinishFailed{"it took longer than hang_timeout" +
                         (s_.not_finished.empty() ? "" : "; the try before: " + s_.not_finished)});
      }
      ask_to_finish();
      return because("the pause is over: the job is finished");
    case Doing::kClosing:
      s_.stop.line += s_.freeing ? "; its memory could not be freed in time"
                                 : "; the newest step is in memory only: not stored in time";
      return leave("the service did not close in time");
    default:
      return ignore("no deadline has passed");
  }
}

}  // namespace surefoot::supervisor
