// Machines and their services: which come, answer, are left out, go, are lost, and what that means
// for the gang.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "launcher/supervisor_machine.h"

namespace surefoot::supervisor {
namespace {

constexpr Duration kBurst = std::chrono::milliseconds(100);

bool sees_gang(const State& state) {
  return std::any_of(state.fleet.begin(), state.fleet.end(),
                     [](const Node& node) { return node.in_gang && node.up(); });
}

// While a job closes, machines that do not answer are left to themselves.
bool tends(const Rules& rules, const State& state) {
  if (state.doing == Doing::kNothing || state.doing == Doing::kStopped) return false;
  return state.doing != Doing::kClosing || (rules.fleet.alone && !state.freeing);
}

}  // namespace

// A gang that no service tells of cannot be seen to make steps, so its clock stands still. The
// tries to start a service are limited, so this ends.
Time own_deadline(const State& state) {
  const bool blind = state.doing == Doing::kRunning && !sees_gang(state);
  return blind ? Time::max() : state.deadline;
}

Time deadline(const Rules& rules, const State& state) {
  if (state.doing == Doing::kNothing || state.doing == Doing::kStopped) return Time::max();
  Time next = own_deadline(state);
  if (state.doing == Doing::kRunning) next = std::min(next, state.grow_at);
  return tends(rules, state) ? std::min(next, state.fleet_due) : next;
}

bool Machine::tends() const {
  return supervisor::tends(rules_, s_);
}

Node* Machine::node(NodeId id) {
  return id >= 0 && id < static_cast<NodeId>(s_.fleet.size()) ? &s_.fleet[id] : nullptr;
}

void Machine::open_fleet() {
  s_.fleet_due = s_.now;
  if (alone()) {
    s_.fleet.emplace_back();
    s_.fleet[0].host = {"localhost", 0, true};
    s_.fleet[0].in_gang = s_.history.attempt_open;
    return;
  }
  s_.reference.numerics_id = s_.history.numerics_id;
  // Until a step is finished, and where the user says so, other data are as good.
  if (s_.history.finished_step.value > 0 && !rules_.accept_changes)
    s_.reference.training_hash = s_.history.training_hash;
  if (!s_.history.attempt_open) return;
  // Whoever ran it is to be rid of it, also where the list does not name him any more.
  for (const std::string& name : s_.history.gang) {
    Node node;
    node.host.name = name;
    node.listed = false;
    node.in_gang = true;
    s_.fleet.push_back(std::move(node));
  }
}

// ---- Services ----

void Machine::start_service(Node& node) {
  node.standing = Standing::kPreparing;
  node.barred = false;
  node.spared = s_.history.attempt_open ? s_.history.attempt : s_.history.attempt.next();
  const bool at_work = node.in_gang && gang_may_run();
  set_due(node, s_.now + (alone()   ? rules_.service_timeout
                          : at_work ? rules_.fleet.heartbeat_timeout
                                    : rules_.fleet.check_timeout));
  perform(StartService{id_of(node), node.spared});
}

// Looks at the machines only when one of them may be due, since there may be thousands.
void Machine::tend() {
  if (s_.now < s_.fleet_due || !tends()) return;
  s_.fleet_due = Time::max();
  for (Node& node : s_.fleet) {
    if (node.standing == Standing::kOut && s_.now >= node.due) start_service(node);
    s_.fleet_due = std::min(s_.fleet_due, node.due);
  }
}

void Machine::set_due(Node& node, Time due) {
  node.due = due;
  s_.fleet_due = std::min(s_.fleet_due, due);
}

// Tried again after a pause, if anybody wants it. One that is lost to the attempt in hand is not
// taken before that is over, so that nobody doubts whether the gang's end was verified there too.
void Machine::take_out(Node& node, const std::string& why, Duration pause) {
  s_.up -= node.up();
  node.unsure = false;
  node.standing = Standing::kOut;
  node.tried = true;
  node.why = why;
  node.back_at = s_.now + pause;
  const bool wanted = alone() || node.listed || node.in_gang;
  set_due(node, wanted && !is_lost(node) ? node.back_at : Time::max());
}

// The machines whose time is over; those that are to be tried again are left to tend(). False:
// there are none.
bool Machine::look_after_machines() {
  if (s_.now < s_.fleet_due || !tends()) return false;
  const std::string message = "it did not answer in time";
  bool again = false;
  bool out = false;
  bool lost = false;
  bool stays = false;
  for (Node& node : s_.fleet) {
    if (s_.now < node.due) continue;
    if (node.up()) {
      node.forget_notice();
      node.due = Time::max();
      stays = true;
      continue;
    }
    if (node.standing == Standing::kOut) {
      again = true;
      continue;
    }
    ++node.failures;
    if (alone()) {
      service_failed(node, message);
      return true;
    }
    (node.in_gang && gang_may_run() ? lost : out) = true;
    left_out(node, message, false);
  }
  if (stays) {
    go_on_with_machines("a machine that was to go has stayed");
  } else if (out) {
    go_on_with_machines("machines have not answered in time");
  } else if (again && !lost) {
    because("the service is started once more", false);
  }
  return again || out || lost || stays;
}

void Machine::on(const ServiceAnswered& e) {
  Node* node = this->node(e.node);
  if (node == nullptr) return ignore("there is no such machine");
  if (node->up()) return ignore("the service was known to be up");
  if (s_.doing == Doing::kClosing && s_.freeing) return ignore("the service is being ended");
  node->here = e.here;
  if (is_lost(*node)) {
    node->back = true;
    node->ready = std::max(node->ready, e.ready);
    return because("the machine is lost to the attempt in hand, and taken again after it", false);
  }
  if (const std::string why = mismatch(rules_.fleet, s_.reference, e.facts); !why.empty()) {
    ++node->failures;
    return left_out(*node, why);
  }
  if (node->in_gang && gang_may_run() && !node->facts.boot_id.empty() &&
      node->facts.boot_id != e.facts.boot_id) {
    return lose(*node, "it was restarted");
  }
  const bool still_its_gang = s_.history.attempt_open && node->in_gang;
  if (!still_its_gang && node->stain.value > 0 && node->spared <= node->stain) {
    start_service(*node);
    node->unsure = true;
    return because("the machine may still run a part of an attempt that is over: once more");
  }
  if (!still_its_gang) node->stain = Attempt{};
  const bool another_life = !node->noticed_boot.empty() && node->noticed_boot != e.facts.boot_id;
  if (node->leaves && (another_life || s_.now >= node->outlives_notice())) node->forget_notice();
  if (node->leaves && node->noticed_boot.empty()) node->noticed_boot = e.facts.boot_id;
  node->facts = e.facts;
  node->ready = e.ready;
  node->durable = e.durable;
  s_.service_seen = true;
  // Steps may have finished while nobody looked.
  learn(std::max(e.ready, e.durable));
  arrived(*node);
}

void Machine::arrived(Node& node) {
  s_.up += !node.up();
  node.unsure = false;
  node.standing = Standing::kReady;
  node.tried = true;
  node.failures = 0;
  set_due(node, node.leaves ? node.outlives_notice() : Time::max());
  node.why.clear();
  node.lost = false;
  s_.everyone_told = s_.everyone_told && !usable(node);
  if (s_.doing == Doing::kRunning) weigh_growth(!node.in_gang);
  switch (s_.doing) {
    case Doing::kAssembling:
      s_.history.accounting.spend(s_.launched && !alone() ? Cause::kCapacity : Cause::kLaunch,
                                  s_.now);
      return proceed("the service is up");
    case Doing::kRunning:
      if (!node.in_gang) return because("a machine has come");
      // Nobody looked while the service was away.
      s_.deadline = std::max(s_.deadline, s_.now + time_limit(rules_, s_.stage));
      return because("the service is back, training has gone on");
    case Doing::kDraining:
      if (!node.in_gang) return because("a machine has come");
      perform(RequestDrain{s_.history.attempt});
      return because("the service is back, it may not have heard of the drain");
    case Doing::kEnding:
      if (!node.in_gang) return because("a machine has come");
      perform(EndGang{s_.history.attempt});
      s_.deadline = s_.now + rules_.end_retry;
      return because("the service is back, it can tell who of the gang is left");
    case Doing::kFinishing:
      if (s_.finish_asked && s_.finishing_node != id_of(node)) return because("a machine has come");
      ask_to_finish();
      return because("the service is back, it may not have heard that the job is to be finished");
    case Doing::kClosing:
      if (!alone()) return because("a machine has come");
      perform(FlushAndKeepArena{holders()});
      return because(
          "the service is back, it may not have heard that the newest step is to be stored");
    default:
      return because("the service is back");
  }
}

void Machine::on(const ServiceLost& e) {
  Node* node = this->node(e.node);
  if (node == nullptr || !node->up()) return ignore("the service was known to be away");
  take_out(*node, "its service died", Duration::zero());
  if (s_.doing == Doing::kClosing && s_.freeing) return because("the service was to end");
  weigh_growth(false);
  because(gang_may_run() && node->in_gang ? "the service died; the gang goes on without it"
                                          : "the service died");
}

void Machine::on(const ServiceStartFailed& e) {
  Node* node = this->node(e.node);
  if (node == nullptr || node->standing != Standing::kPreparing)
    return ignore("no start of the service was asked for");
  ++node->failures;
  service_failed(*node, e.message);
}

void Machine::service_failed(Node& node, const std::string& message) {
  if (!alone()) return left_out(node, message);
  node.standing = Standing::kOut;
  node.tried = true;
  if (s_.doing == Doing::kAssembling) {
    s_.history.accounting.spend(Cause::kLaunch, s_.now);
    node.due = Time::max();
    count_failure(s_.history.finished_step, "the checkpoint service did not start: " + message,
                  false);
    return after_setback("the service did not start, nothing can be launched");
  }
  set_due(node, s_.now + std::max<Duration>(rules_.backoff, kFirstRetry));
  if (s_.doing == Doing::kRunning && node.failures >= kServiceTries) {
    s_.end.culprit.reason = "the checkpoint service did not start: " + message;
    s_.end.culprit.step = s_.history.finished_step;
    return end_gang(Outcome::kFailed, "the service cannot be started and the gang cannot be seen");
  }
  because("the service did not start; once more in a moment");
}

// ---- Machines ----

// What follows from machines that are out now and that no gang of ours runs on.
void Machine::go_on_with_machines(std::string_view sentence) {
  weigh_growth(false);
  tell_everyone_if_all_go();
  const Node* finisher = node(s_.finishing_node);
  if (s_.doing == Doing::kFinishing && s_.finish_asked && !alone() &&
      finisher->standing == Standing::kOut && finisher->due > s_.now) {
    ask_to_finish();
    return because("the machine that stored the last step is away: another one does it");
  }
  if (s_.doing == Doing::kAssembling) return proceed(sentence);
  because(sentence);
}

// `last`: of those that are left out in this moment.
void Machine::left_out(Node& node, const std::string& why, bool last) {
  if (node.in_gang && gang_may_run()) return lose(node, why);
  take_out(node, why, retry_pause(node.failures));
  if (last) go_on_with_machines("the machine is left out for now");
}

void Machine::on(const NodeLost& e) {
  Node* node = this->node(e.node);
  if (alone() || node == nullptr) return ignore("there is no such machine");
  if (is_lost(*node) || (node->standing == Standing::kOut && (!node->in_gang || !gang_may_run())))
    return ignore("the machine was known to be away");
  lose(*node, e.message);
}

void Machine::lose(Node& node, const std::string& message) {
  node.lost = true;
  if (!node.in_gang || !gang_may_run()) {
    take_out(node, message, kFirstRetry);
    return go_on_with_machines("a machine is lost that no worker runs on");
  }
  // Who has said that he goes, and goes, has done nothing wrong.
  const Duration pause = node.leaves ? Duration::zero() : strike(rules_.fleet, node, s_.now);
  node.stain = s_.history.attempt;
  take_out(node, message, std::max(pause, kFirstRetry));
  if (s_.lost.empty()) s_.lost = fmt::format("machine {} is lost: {}", node.host.name, message);
  tell_everyone_if_all_go();
  if (s_.doing == Doing::kRunning && s_.stage >= Stage::kStepping) {
    // Since when it was silent its gang's last step tells best.
    s_.mark = std::max(s_.mark, s_.history.accounting.mark);
    s_.history.accounting.spend(Cause::kDetect, s_.now);
  }
  if (s_.doing != Doing::kEnding)
    return end_gang(Outcome::kPreempted, "a machine of the gang is lost: the others are ended");
  // One request for all that are lost in a moment.
  s_.deadline = std::min(s_.deadline, s_.now + kBurst);
  because("a machine of the gang is lost: it is not waited for");
}

void Machine::on(const HostsListed& e) {
  if (alone()) return ignore("the job runs on this machine only");
  std::unordered_map<std::string_view, const HostSpec*> unknown;
  s_.most_slots = rules_.fleet.workers_per_node;
  for (const HostSpec& host : e.hosts) {
    unknown.emplace(host.name, &host);
    s_.most_slots = std::max<std::int64_t>(s_.most_slots, host.slots);
  }
  bool changed = false;
  bool gang_shrinks = false;
  for (Node& node : s_.fleet) {
    const auto found = unknown.find(node.host.name);
    const bool listed = found != unknown.end();
    changed = changed || listed != node.listed || (listed && node.host != *found->second);
    if (listed) node.host = *found->second;
    if (listed) unknown.erase(found);
    if (listed && !node.listed) {
      node.forget_notice();
      if (node.standing == Standing::kOut && !is_lost(node))
        set_due(node, std::max(node.back_at, s_.now));
    }
    if (!listed && node.standing == Standing::kOut && !node.in_gang) node.due = Time::max();
    gang_shrinks = gang_shrinks || (!listed && node.listed && node.in_gang);
    node.listed = listed;
  }
  for (const HostSpec& host : e.hosts) {
    if (unknown.erase(host.name) == 0) continue;
    s_.fleet.emplace_back();
    s_.fleet.back().host = host;
    set_due(s_.fleet.back(), s_.now);
    changed = true;
  }
  if (!changed) return ignore("the machines are those of before");
  if (!gang_shrinks || s_.doing != Doing::kRunning)
    return go_on_with_machines("the list of machines has changed");
  s_.regroup = true;
  if (!worth_a_drain(s_.stage))
    return end_gang(Outcome::kRegrouped, "a machine is not listed any more, outside of a step");
  drain(Outcome::kRegrouped, s_.now + rules_.drain_timeout,
        "a machine is not listed any more: all leave after the step in hand");
}

}  // namespace surefoot::supervisor
