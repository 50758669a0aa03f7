// Which machines the next attempt runs on, and what becomes of the steps of those that do not.
#include <fmt/format.h>

#include <algorithm>

#include "launcher/supervisor_machine.h"

namespace surefoot::supervisor {

// Until the job runs, it is open what its machines are alike in; then the others are left out.
void Machine::settle_reference() {
  s_.reference = commonest(rules_.fleet, s_.fleet, s_.reference);
  for (Node& node : s_.fleet) {
    if (!node.up() || node.in_gang) continue;
    const std::string why = mismatch(rules_.fleet, s_.reference, node.facts);
    if (!why.empty()) take_out(node, why, retry_pause(++node.failures));
  }
}

// At the first launch those that have not answered yet are waited for, if they make a difference.
std::vector<Member> Machine::members_for_launch() const {
  const FleetRules& rules = rules_.fleet;
  const auto untried = [](const Node& node) { return node.listed && !node.tried && !node.leaves; };
  const bool awaits = !s_.launched && std::any_of(s_.fleet.begin(), s_.fleet.end(), untried);
  // Spares thousands of machines that answer one by one a choice among them each time.
  if (awaits && s_.up < rules.max_nodes && s_.up * s_.most_slots < rules.micro_batches) return {};
  const NodeFacts reference =
      s_.members.empty() && !alone() ? commonest(rules, s_.fleet, s_.reference) : s_.reference;
  std::vector<Member> members = choose(rules, s_.fleet, reference);
  const bool full =
      static_cast<int>(members.size()) >= rules.max_nodes || longest_share(rules, members) <= 1;
  if (awaits && !full) members.clear();
  return members;
}

// Steps that are held only by machines that take no part in the next attempt come to the store
// first; a machine that is being looked at may hold them too, and is waited for.
bool Machine::secures_steps(const std::vector<Member>& members) {
  if (alone()) return false;
  Step safe = std::max(s_.secured, Step{0});
  Step held{-1};
  Step awaited{-1};
  for (const Node& node : s_.fleet) {
    safe = std::max(safe, node.durable);
    if (node.up()) held = std::max(held, node.ready);
    const bool asked = node.standing == Standing::kPreparing ||
                       (node.standing == Standing::kOut && s_.now >= node.due);
    if (asked) awaited = std::max(awaited, node.unsure ? rules_.max_steps : node.ready);
  }
  for (const Member& member : members) safe = std::max(safe, s_.fleet[member.node].ready);
  s_.restored = safe;
  // Who is left out for his workers is taken after all where whoever else held his step is gone.
  for (Node& node : s_.fleet) {
    if (!node.barred || node.ready <= std::max({safe, held, awaited})) continue;
    set_due(node, s_.now);
    awaited = node.ready;
  }
  if (safe >= std::max(held, awaited)) return false;
  if (safe >= held) {
    assemble();
    return true;
  }
  s_.doing = Doing::kSaving;
  s_.saving = held;
  s_.deadline = s_.now + rules_.close_timeout;
  perform(FlushAndKeepArena{holders()});
  return true;
}

void Machine::assemble() {
  if (s_.doing != Doing::kAssembling) {
    s_.doing = Doing::kAssembling;
    s_.deadline = alone() ? Time::max() : s_.now + rules_.fleet.capacity_timeout;
  }
  if (alone() && s_.fleet[0].standing == Standing::kOut) start_service(s_.fleet[0]);
}

// Who of the gang of a dead supervisor does not answer now is lost to it.
void Machine::close_the_asking() {
  for (Node& node : s_.fleet) {
    if (!node.in_gang || node.up() || alone()) continue;
    node.stain = s_.history.attempt;
    take_out(node, node.why, Duration::zero());
  }
}

bool Machine::asks_gang_first() const {
  return std::any_of(s_.fleet.begin(), s_.fleet.end(),
                     [](const Node& node) { return node.in_gang && !node.tried; });
}

// Those that answer, or did so a moment ago, with the newest snapshots first.
std::vector<NodeId> Machine::holders() const {
  if (alone()) return {0};
  std::vector<NodeId> nodes;
  for (NodeId id = 0; id < static_cast<NodeId>(s_.fleet.size()); ++id) {
    const Node& node = s_.fleet[id];
    if (node.up() || node.unsure || node.barred) nodes.push_back(id);
  }
  const auto newest = [&](NodeId id) {
    const Node& node = s_.fleet[id];
    return node.unsure ? rules_.max_steps : node.in_gang ? s_.history.finished_step : node.ready;
  };
  std::stable_sort(nodes.begin(), nodes.end(), [&](NodeId a, NodeId b) {
    return std::pair(newest(a), !s_.fleet[a].leaves) > std::pair(newest(b), !s_.fleet[b].leaves);
  });
  return nodes;
}

Step Machine::newest_held() const {
  Step newest{-1};
  for (const Node& node : s_.fleet) {
    if (node.up()) newest = std::max(newest, node.ready);
  }
  return newest;
}

void Machine::weigh_growth(bool arrival) {
  if (alone() || s_.doing != Doing::kRunning || stopping()) {
    s_.grow_at = Time::max();
    return;
  }
  const auto better = choose(rules_.fleet, s_.fleet, s_.reference);
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

void Machine::ask_anew(Node& node, const std::string& why) {
  take_out(node, why, Duration::zero());
  set_due(node, s_.now);  // also where the list does not name it any more
  node.tried = false;
  node.unsure = true;
}

bool Machine::close_gang(const AttemptEnd& end) {
  s_.history.gang.clear();
  const bool failed =
      !end.injected && (end.outcome == Outcome::kFailed || end.outcome == Outcome::kHung);
  // What others have finished before its members need not have restored.
  const bool restored = s_.stage >= Stage::kStepping;
  const Step held = end.outcome == Outcome::kDone ? s_.history.finished_step
                    : restored                    ? std::max(s_.attempt_step, s_.restored)
                                                  : s_.attempt_step;
  for (Node& node : s_.fleet) {
    if (!node.in_gang) continue;
    node.in_gang = false;
    const bool may_have_restored = !restored && node.ready < s_.restored && s_.restored.value > 0;
    if (node.up() && (s_.leftover || may_have_restored) && !alone() && !stopping()) {
      // It has answered before its last steps, or after a restart, or may have restored what
      // others held: only itself knows what it holds.
      ask_anew(node, "is asked what it holds");
    } else if (node.up()) {
      node.ready = std::max(node.ready, held);
      node.stain = Attempt{};
    } else if (node.standing == Standing::kOut) {
      // Who is back may hold steps that the others do not, also where the list has dropped it.
      node.unsure = node.back;
      set_due(node, node.back     ? s_.now
                    : node.listed ? std::max(node.back_at, s_.now)
                                  : Time::max());
    }
    node.back = false;
  }
  Node* culprit = node(end.culprit.node);
  if (!failed || alone() || culprit == nullptr || !culprit->up()) return false;
  const bool others_hold = std::any_of(s_.fleet.begin(), s_.fleet.end(), [&](const Node& node) {
    return &node != culprit && usable(node) && node.ready >= s_.history.finished_step;
  });
  if (!others_hold) return false;
  const Duration pause = strike(rules_.fleet, *culprit, s_.now);
  if (pause <= Duration::zero()) {
    if (rules_.fleet.looks_again && !stopping()) ask_anew(*culprit, "is looked over again");
    return false;
  }
  take_out(*culprit,
           fmt::format("its workers failed {} times within an hour", culprit->strikes.size()),
           pause);
  culprit->barred = true;
  return true;
}

}  // namespace surefoot::supervisor
