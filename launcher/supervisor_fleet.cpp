// Machines and their services: which come, answer, are left out, go, are lost, and what that means
// for the gang.
#include <fmt/format.h>

#include <algorithm>

#include "launcher/supervisor_machine.h"

namespace surefoot::supervisor {
namespace {

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

Time deadline(const Rules& rules, const State& state) {
  if (state.doing == Doing::kNothing || state.doing == Doing::kStopped) return Time::max();
  // A gang that no service tells of cannot be seen to make steps, so its clock stands still. The
  // tries to start a service are limited, so this ends.
  const bool blind = state.doing == Doing::kRunning && !sees_gang(state);
  Time next = blind ? Time::max() : state.deadline;
  if (state.doing == Doing::kRunning) next = std::min(next, state.grow_at);
  if (!tends(rules, state)) return next;
  for (const Node& node : state.fleet) {
    if (!node.up()) next = std::min(next, node.due);
  }
  return next;
}

Node* Machine::node(NodeId id) {
  return id >= 0 && id < static_cast<NodeId>(s_.fleet.size()) ? &s_.fleet[id] : nullptr;
}

void Machine::open_fleet() {
  if (alone()) {
    s_.fleet.emplace_back();
    s_.fleet[0].host = {"localhost", 0, true};
    s_.fleet[0].in_gang = s_.history.attempt_open;
    return;
  }
  s_.reference.numerics_id = s_.history.numerics_id;
  if (!s_.history.attempt_open) return;
  // Whoever ran it is to be rid of it, also where the list does not name him any more.
  for (const std::string& name : s_.history.gang) {
    Node node;
    node.host.name = name;
    node.listed = false;
    node.in_gang = true;
    node.stain = s_.history.attempt;
    s_.fleet.push_back(std::move(node));
  }
}

// ---- Services ----

void Machine::start_service(Node& node) {
  node.standing = Standing::kPreparing;
  node.spared = s_.history.attempt_open ? s_.history.attempt : s_.history.attempt.next();
  const bool at_work = node.in_gang && gang_may_run();
  node.due = s_.now + (alone()   ? rules_.service_timeout
                       : at_work ? rules_.fleet.heartbeat_timeout
                                 : rules_.fleet.check_timeout);
  perform(StartService{id_of(node), node.spared});
}

void Machine::tend() {
  if (!tends(rules_, s_)) return;
  for (Node& node : s_.fleet) {
    const bool wanted = alone() || node.listed || node.in_gang;
    if (wanted && node.standing == Standing::kOut && s_.now >= node.due) start_service(node);
  }
}

void Machine::on(const ServiceAnswered& e) {
  Node* node = this->node(e.node);
  if (node == nullptr) return ignore("there is no such machine");
  if (node->up()) return ignore("the service was known to be up");
  if (s_.doing == Doing::kClosing && s_.freeing) return ignore("the service is being ended");
  if (const std::string why = mismatch(rules_.fleet, s_.reference, e.facts); !why.empty())
    return left_out(*node, why);
  const bool still_its_gang = s_.history.attempt_open && node->in_gang;
  if (!still_its_gang && node->stain.value > 0 && node->spared <= node->stain) {
    start_service(*node);
    return because("the machine may still run a part of an attempt that is over: once more");
  }
  if (!still_its_gang) node->stain = Attempt{};
  if (node->leaves && (e.facts.boot_id != node->facts.boot_id ||
                       (node->leaves_at && s_.now > *node->leaves_at + kOutlivedNotice))) {
    node->leaves = false;
    node->leaves_at.reset();
    node->noticed_at.reset();
  }
  node->facts = e.facts;
  node->ready = e.ready;
  node->durable = e.durable;
  if (s_.reference.numerics_id.empty()) s_.reference.numerics_id = e.facts.numerics_id;
  if (s_.reference.training_hash.empty()) s_.reference.training_hash = e.facts.training_hash;
  s_.service_seen = true;
  // Steps may have finished while nobody looked.
  learn(std::max(e.ready, e.durable));
  arrived(*node);
}

void Machine::arrived(Node& node) {
  node.standing = Standing::kReady;
  node.tried = true;
  node.failures = 0;
  node.due = Time::max();
  node.why.clear();
  node.lost = false;
  s_.everyone_told = s_.everyone_told && !usable(node);
  switch (s_.doing) {
    case Doing::kAssembling:
      s_.history.accounting.spend(s_.launched && !alone() ? Cause::kCapacity : Cause::kLaunch,
                                  s_.now);
      return proceed("the service is up");
    case Doing::kRunning:
      if (!node.in_gang) {
        weigh_growth(true);
        return because("a machine has come");
      }
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
  node->standing = Standing::kOut;
  node->due = s_.now;
  if (s_.doing == Doing::kClosing && s_.freeing) return because("the service was to end");
  weigh_growth(false);
  because(gang_may_run() && node->in_gang ? "the service died; the gang goes on without it"
                                          : "the service died");
}

void Machine::on(const ServiceStartFailed& e) {
  Node* node = this->node(e.node);
  if (node == nullptr || node->standing != Standing::kPreparing)
    return ignore("no start of the service was asked for");
  service_failed(*node, e.message);
}

void Machine::service_failed(Node& node, const std::string& message) {
  node.standing = Standing::kOut;
  node.tried = true;
  ++node.failures;
  if (!alone()) return left_out(node, message);
  if (s_.doing == Doing::kAssembling) {
    s_.history.accounting.spend(Cause::kLaunch, s_.now);
    node.due = Time::max();
    count_failure(s_.history.finished_step, "the checkpoint service did not start: " + message,
                  false);
    return after_setback("the service did not start, nothing can be launched");
  }
  node.due = s_.now + std::max<Duration>(rules_.backoff, kFirstRetry);
  if (s_.doing == Doing::kRunning && node.failures >= kServiceTries) {
    s_.end.culprit.reason = "the checkpoint service did not start: " + message;
    s_.end.culprit.step = s_.history.finished_step;
    return end_gang(Outcome::kFailed, "the service cannot be started and the gang cannot be seen");
  }
  because("the service did not start; once more in a moment");
}

// ---- Machines ----

void Machine::left_out(Node& node, const std::string& why) {
  if (node.in_gang && gang_may_run()) return lose(node, why);
  node.standing = Standing::kOut;
  node.tried = true;
  node.why = why;
  node.due = node.listed || node.in_gang ? s_.now + retry_pause(node.failures) : Time::max();
  if (s_.doing == Doing::kAssembling) return proceed("the machine is left out for now");
  because("the machine is left out for now");
}

void Machine::on(const NodeLost& e) {
  Node* node = this->node(e.node);
  if (alone() || node == nullptr) return ignore("there is no such machine");
  if (node->standing == Standing::kOut && (!node->in_gang || !gang_may_run()))
    return ignore("the machine was known to be away");
  lose(*node, e.message);
}

void Machine::lose(Node& node, const std::string& message) {
  const bool at_work = node.in_gang && gang_may_run();
  const bool was_finishing =
      s_.doing == Doing::kFinishing && s_.finish_asked && s_.finishing_node == id_of(node);
  // Who has said that he goes, and goes, has done nothing wrong.
  const Duration pause =
      at_work && !node.leaves ? strike(rules_.fleet, node, s_.now) : Duration::zero();
  node.standing = Standing::kOut;
  node.tried = true;
  node.why = message;
  node.lost = true;
  node.due = node.listed || node.in_gang ? s_.now + std::max(pause, kFirstRetry) : Time::max();
  if (at_work) {
    node.stain = s_.history.attempt;
    if (s_.lost.empty()) s_.lost = fmt::format("machine {} is lost: {}", node.host.name, message);
    if (s_.doing != Doing::kEnding)
      return end_gang(Outcome::kPreempted, "a machine of the gang is lost: the others are ended");
    perform(EndGang{s_.history.attempt});
    s_.deadline = s_.now + rules_.end_retry;
    return because("a machine of the gang is lost: it is not waited for");
  }
  weigh_growth(false);
  if (was_finishing) {
    ask_to_finish();
    return because("the machine that stored the last step is lost: another one does it");
  }
  if (s_.doing == Doing::kAssembling) return proceed("a machine is lost");
  because("a machine is lost that no worker runs on");
}

void Machine::on(const HostsListed& e) {
  if (alone()) return ignore("the job runs on this machine only");
  bool changed = false;
  bool gang_shrinks = false;
  for (Node& node : s_.fleet) {
    const auto found = std::find_if(e.hosts.begin(), e.hosts.end(), [&](const HostSpec& host) {
      return host.name == node.host.name;
    });
    const bool listed = found != e.hosts.end();
    changed = changed || listed != node.listed || (listed && node.host != *found);
    if (listed) node.host = *found;
    if (listed && !node.listed) {
      node.leaves = false;
      node.leaves_at.reset();
      node.noticed_at.reset();
      if (node.standing == Standing::kOut) node.due = s_.now;
    }
    if (!listed && node.listed && node.standing == Standing::kOut && !node.in_gang)
      node.due = Time::max();
    gang_shrinks = gang_shrinks || (!listed && node.listed && node.in_gang);
    node.listed = listed;
  }
  for (const HostSpec& host : e.hosts) {
    const bool known = std::any_of(s_.fleet.begin(), s_.fleet.end(),
                                   [&](const Node& node) { return node.host.name == host.name; });
    if (known) continue;
    s_.fleet.emplace_back();
    s_.fleet.back().host = host;
    changed = true;
  }
  if (!changed) return ignore("the machines are those of before");
  weigh_growth(false);
  if (gang_shrinks && s_.doing == Doing::kRunning) {
    s_.regroup = true;
    return drain(Outcome::kRegrouped, s_.now + rules_.drain_timeout,
                 "a machine is not listed any more: all leave after the step in hand");
  }
  if (s_.doing == Doing::kAssembling) return proceed("the list of machines has changed");
  because("the list of machines has changed");
}

// ---- Which of them ----

std::vector<Member> Machine::members_for_launch() const {
  std::vector<Member> members = choose(rules_.fleet, s_.fleet);
  if (members.empty() || s_.launched) return members;
  const bool full = static_cast<int>(members.size()) >= rules_.fleet.max_nodes ||
                    longest_share(rules_.fleet, members) <= 1;
  const bool awaits = std::any_of(s_.fleet.begin(), s_.fleet.end(), [](const Node& node) {
    return node.listed && !node.tried && !node.leaves;
  });
  if (awaits && !full) members.clear();
  return members;
}

void Machine::assemble() {
  if (s_.doing != Doing::kAssembling) {
    s_.doing = Doing::kAssembling;
    s_.deadline = alone() ? Time::max() : s_.now + rules_.fleet.capacity_timeout;
  }
  if (alone() && s_.fleet[0].standing == Standing::kOut) start_service(s_.fleet[0]);
}

bool Machine::asks_gang_first() const {
  return std::any_of(s_.fleet.begin(), s_.fleet.end(),
                     [](const Node& node) { return node.in_gang && !node.tried; });
}

// Those that answer, with the newest snapshots first.
std::vector<NodeId> Machine::holders() const {
  if (alone()) return {0};
  std::vector<NodeId> nodes;
  for (NodeId id = 0; id < static_cast<NodeId>(s_.fleet.size()); ++id) {
    if (s_.fleet[id].up()) nodes.push_back(id);
  }
  const auto newest = [&](NodeId id) {
    return s_.fleet[id].in_gang ? s_.history.finished_step : s_.fleet[id].ready;
  };
  std::stable_sort(nodes.begin(), nodes.end(), [&](NodeId a, NodeId b) {
    return std::pair(newest(a), !s_.fleet[a].leaves) > std::pair(newest(b), !s_.fleet[b].leaves);
  });
  return nodes;
}

void Machine::weigh_growth(bool arrival) {
  if (alone() || s_.doing != Doing::kRunning || stopping()) {
    s_.grow_at = Time::max();
    return;
  }
  const auto better = choose(rules_.fleet, s_.fleet);
  const bool grows = !better.empty() &&
                     longest_share(rules_.fleet, better) < longest_share(rules_.fleet, s_.members);
  if (!grows) {
    s_.grow_at = Time::max();
  } else if (arrival || s_.grow_at == Time::max()) {
    s_.grow_at = s_.now + rules_.fleet.grow_after;
  }
}

void Machine::tell_everyone_if_all_go() {
  const bool any =
      std::any_of(s_.fleet.begin(), s_.fleet.end(), [](const Node& node) { return node.up(); });
  const bool stays =
      std::any_of(s_.fleet.begin(), s_.fleet.end(), [](const Node& node) { return usable(node); });
  if (!any || stays || s_.everyone_told) return;
  s_.everyone_told = true;
  perform(TellEveryone{});
}

void Machine::close_gang(const AttemptEnd& end) {
  s_.history.gang.clear();
  const bool failed =
      !end.injected && (end.outcome == Outcome::kFailed || end.outcome == Outcome::kHung);
  for (Node& node : s_.fleet) {
    if (!node.in_gang) continue;
    node.in_gang = false;
    if (node.up()) node.ready = s_.history.finished_step;
    if (node.up()) node.stain = Attempt{};
    if (!node.listed && node.standing == Standing::kOut) node.due = Time::max();
    if (!failed || alone() || end.culprit.node != id_of(node)) continue;
    const Duration pause = strike(rules_.fleet, node, s_.now);
    if (pause <= Duration::zero()) continue;
    node.standing = Standing::kOut;
    node.why = fmt::format("its workers failed {} times within an hour", node.strikes.size());
    node.due = s_.now + pause;
  }
}

}  // namespace surefoot::supervisor
