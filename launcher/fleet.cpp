#include "launcher/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace surefoot::supervisor {
namespace {

int slots_of(const FleetRules& rules, const Node& node) {
  return node.host.slots > 0 ? node.host.slots : rules.workers_per_node;
}

}  // namespace

bool usable(const Node& node) {
  return node.up() && node.listed && !node.leaves;
}

std::vector<Member> choose(const FleetRules& rules, const Fleet& fleet) {
  std::vector<NodeId> nodes;
  for (NodeId id = 0; id < static_cast<NodeId>(fleet.size()); ++id) {
    if (usable(fleet[id])) nodes.push_back(id);
  }
  if (static_cast<int>(nodes.size()) < rules.min_nodes) return {};
  std::stable_sort(nodes.begin(), nodes.end(),
                   [&](NodeId a, NodeId b) { return fleet[a].ready > fleet[b].ready; });
  std::vector<Member> members;
  std::int64_t room = rules.micro_batches;
  for (const NodeId id : nodes) {
    if (room == 0 || static_cast<int>(members.size()) == rules.max_nodes) break;
    const int workers = static_cast<int>(std::min<std::int64_t>(slots_of(rules, fleet[id]), room));
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

std::string mismatch(const FleetRules& rules, const NodeFacts& reference, const NodeFacts& facts) {
  const auto differ = [](const std::string& a, const std::string& b) {
    return !a.empty() && !b.empty() && a != b;
  };
  if (differ(reference.training_hash, facts.training_hash)) {
    return "its data or its job file are not those that the job runs with";
  }
  if (!rules.allow_mixed_hardware && differ(reference.numerics_id, facts.numerics_id)) {
    return fmt::format(
        "its processor or libraries give other bits: {} here, {} so far "
        "(resources.allow_mixed_hardware takes it)",
        facts.numerics_id, reference.numerics_id);
  }
  return {};
}

std::string shortage(const FleetRules& rules, const Fleet& fleet) {
  std::string ready;
  std::string others;
  int count = 0;
  for (const Node& node : fleet) {
    if (usable(node)) {
      ready += (ready.empty() ? "" : ", ") + node.host.name;
      ++count;
    } else if (node.listed) {
      others += fmt::format("; {}: {}", node.host.name,
                            node.leaves                             ? "it goes"
                            : node.standing == Standing::kPreparing ? "is looked at"
                            : node.why.empty()                      ? "is away"
                                                                    : node.why);
    }
  }
  return fmt::format("{} of at least {} machines{}{}", count, rules.min_nodes,
                     ready.empty() ? "" : " (" + ready + ")", others);
}

}  // namespace surefoot::supervisor
