#include "launcher/fleet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace surefoot::supervisor {
namespace {

int slots_of(const FleetRules& rules, const Node& node) {
  return node.host.slots > 0 ? node.host.slots : rules.workers_per_node;
}

bool differ(const std::string& a, const std::string& b) {
  return !a.empty() && !b.empty() && a != b;
}

bool fits(const FleetRules& rules, const NodeFacts& reference, const NodeFacts& facts) {
  return !differ(reference.training_hash, facts.training_hash) &&
         (rules.allow_mixed_hardware || !differ(reference.numerics_id, facts.numerics_id));
}

// A line is for a human: of thousands it names the first few.
std::string listed(const std::vector<std::string>& items, std::string_view separator) {
  constexpr std::size_t kMost = 8;
  const std::size_t more = items.size() > kMost ? items.size() - kMost : 0;
  std::string text = fmt::format("{}", fmt::join(items.begin(), items.end() - more, separator));
  return more > 0 ? fmt::format("{}{}and {} more", text, separator, more) : text;
}

}  // namespace

bool usable(const Node& node) {
  return node.up() && node.listed && !node.leaves;
}

std::string mismatch(const FleetRules& rules, const NodeFacts& reference, const NodeFacts& facts) {
  if (fits(rules, reference, facts)) return {};
  if (differ(reference.training_hash, facts.training_hash)) {
    return "its data or its job file are not those that the job runs with";
  }
  return fmt::format(
      "its processor or libraries give other bits: {} here, {} so far "
      "(resources.allow_mixed_hardware takes it)",
      facts.numerics_id, reference.numerics_id);
}

NodeFacts commonest(const FleetRules& rules, const Fleet& fleet, const NodeFacts& reference) {
  std::map<std::pair<std::string_view, std::string_view>, int> counts;
  const Node* best = nullptr;
  int most = 0;
  for (const Node& node : fleet) {
    if (!usable(node) || !fits(rules, reference, node.facts)) continue;
    std::string_view numerics = node.facts.numerics_id;
    if (rules.allow_mixed_hardware) numerics = {};
    const int count = ++counts[{numerics, node.facts.training_hash}];
    if (count > most) {
      most = count;
      best = &node;
    }
  }
  return best != nullptr ? best->facts : reference;
}

std::vector<Member> choose(const FleetRules& rules, const Fleet& fleet,
                           const NodeFacts& reference) {
  std::vector<NodeId> nodes;
  for (NodeId id = 0; id < static_cast<NodeId>(fleet.size()); ++id) {
    if (usable(fleet[id]) && fits(rules, reference, fleet[id].facts)) nodes.push_back(id);
  }
  if (static_cast<int>(nodes.size()) < rules.min_nodes) return {};
  std::int64_t slots = 0;
  for (const NodeId id : nodes) slots += slots_of(rules, fleet[id]);
  // Where there is room for all, it does not matter who comes first.
  if (static_cast<int>(nodes.size()) > rules.max_nodes || slots > rules.micro_batches) {
    const auto rank = [&](NodeId id) { return std::pair(fleet[id].in_gang, fleet[id].ready); };
    std::stable_sort(nodes.begin(), nodes.end(),
                     [&](NodeId a, NodeId b) { return rank(a) > rank(b); });
  }
  std::vector<Member> members;
  std::int64_t room = rules.micro_batches;
  for (const NodeId id : nodes) {
    if (room <= 0 || static_cast<int>(members.size()) == rules.max_nodes) break;
    // So many are needed for the fewest machines with which the user wants to go on.
    const std::int64_t others =
        std::max<std::int64_t>(rules.min_nodes - 1 - static_cast<int>(members.size()), 0);
    const int workers =
        static_cast<int>(std::clamp<std::int64_t>(room - others, 1, slots_of(rules, fleet[id])));
    members.push_back({id, workers});
    room -= workers;
  }
  std::sort(members.begin(), members.end(),
            [](const Member& a, const Member& b) { return a.node < b.node; });
  return members;
}

int workers_of(const std::vector<Member>& members) {
  return std::accumulate(members.begin(), members.end(), 0,
                         [](int sum, const Member& member) { return sum + member.workers; });
}

std::int64_t longest_share(const FleetRules& rules, const std::vector<Member>& members) {
  const std::int64_t workers = std::max(workers_of(members), 1);
  return (rules.micro_batches + workers - 1) / workers;
}

Duration retry_pause(int failures) {
  const int doublings = std::clamp(failures - 1, 0, 6);
  return std::min<Duration>(kFirstRetry * (std::int64_t{1} << doublings), kLongestRetry);
}

Duration strike(const FleetRules& rules, Node& node, Time at) {
  std::erase_if(node.strikes, [&](Time then) { return at - then > kStrikeMemory; });
  node.strikes.push_back(at);
  const auto count = static_cast<std::int64_t>(node.strikes.size());
  if (count < 2) return Duration::zero();
  const std::int64_t doublings = std::min<std::int64_t>(count - 2, 6);
  return rules.node_backoff * std::min(std::int64_t{1} << doublings, kNodeBackoffLimit);
}

std::string shortage(const FleetRules& rules, const Fleet& fleet) {
  std::vector<std::string> ready;
  std::vector<std::string> others;
  for (const Node& node : fleet) {
    if (usable(node)) {
      ready.push_back(node.host.name);
    } else if (node.listed) {
      others.push_back(fmt::format("{}: {}", node.host.name,
                                   node.leaves                             ? "it goes"
                                   : node.standing == Standing::kPreparing ? "is looked at"
                                   : node.why.empty()                      ? "is away"
                                                                           : node.why));
    }
  }
  return fmt::format(
      "{} of at least {} machines{}{}", ready.size(), rules.min_nodes,
      ready.empty() ? "" : " (" + listed(ready, ", ") + ")",
      others.empty() ? (ready.empty() ? "; none is listed" : "") : "; " + listed(others, "; "));
}

}  // namespace surefoot::supervisor
