#include "launcher/fleet_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

// nlohmann-json of today's Debian does not know optional.
template <class T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& json, const std::optional<T>& value) {
    if (value)
      json = *value;
    else
      json = nullptr;
  }
  static void from_json(const json& json, std::optional<T>& value) {
    value.reset();
    if (!json.is_null()) value = json.get<T>();
  }
};

namespace surefoot {

namespace core = supervisor;

// NOLINTBEGIN: the macro's
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(SlowRank, rank, host, factor)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RankReport, rank, alive, step, phase,
                                                seconds_in_phase, busy_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeReport, name, standing, slots, why,
                                                again_seconds, goes, goes_seconds, first_rank,
                                                last_rank, snapshot, stored_part, storing,
                                                checkpoint, checkpoint_age_seconds,
                                                upload_bytes_per_second, waiting_for, arena_bytes,
                                                notice, warnings, ranks)
namespace {

struct Wire : FleetReport {};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Wire, live, doing, attempt, attempt_open, step,
                                                waits, nodes, slow)
// NOLINTEND

std::optional<std::int64_t> known_step(std::int64_t step) {
  return step < 0 ? std::nullopt : std::optional(step);
}

std::string standing_of(const core::State& state, const core::Node& node) {
  switch (node.standing) {
    case core::Standing::kReady:
      return state.history.attempt_open && node.in_gang ? "in_use" : "ready";
    case core::Standing::kPreparing:
      return "looked_at";
    case core::Standing::kOut:
      break;
  }
  if (node.lost) return "lost";
  return node.tried ? "left_out" : "waiting";
}

void add_service(NodeReport& report, const service::StatusReply& status, const FleetFacts& facts) {
  report.snapshot = known_step(status.ready_step());
  report.stored_part = known_step(status.stored_part_step());
  report.storing = known_step(status.storing_step());
  report.checkpoint = known_step(status.durable_step());
  if (report.checkpoint) report.checkpoint_age_seconds = status.durable_age_seconds();
  if (status.upload_bytes_per_second() > 0)
    report.upload_bytes_per_second = status.upload_bytes_per_second();
  report.waiting_for = status.waiting_for();
  if (status.arena_bytes() > 0) report.arena_bytes = status.arena_bytes();
  if (status.has_notice()) {
    report.notice = status.notice().decision();
    report.goes = true;
    if (!report.goes_seconds) report.goes_seconds = status.notice().seconds_left();
  }
  report.warnings.assign(status.warnings().begin(), status.warnings().end());
  for (const service::RankStatus& rank : status.ranks()) {
    if (rank.attempt() != facts.state.history.attempt.value) continue;
    RankReport& out = report.ranks.emplace_back();
    out.rank = rank.rank();
    out.alive = rank.alive();
    out.step = rank.step();
    out.phase = rank.phase();
    out.seconds_in_phase = rank.seconds_in_phase();
    if (const double busy = facts.busy.typical(rank.rank()); busy > 0) out.busy_seconds = busy;
  }
  std::sort(report.ranks.begin(), report.ranks.end(),
            [](const RankReport& a, const RankReport& b) { return a.rank < b.rank; });
}

NodeReport node_report(const FleetFacts& facts, core::NodeId id) {
  const core::Node& node = facts.state.fleet[id];
  NodeReport report;
  report.name = facts.rules.fleet.alone ? facts.host : node.host.name;
  report.standing = standing_of(facts.state, node);
  report.slots = node.host.slots > 0 ? node.host.slots : facts.rules.fleet.workers_per_node;
  if (node.standing == core::Standing::kOut) {
    report.why = node.why;
    if (node.due != Time::max() && report.standing != "waiting")
      report.again_seconds = std::max(0.0, seconds(node.due - facts.at));
  }
  report.goes = node.leaves;
  if (node.leaves_at) report.goes_seconds = seconds(*node.leaves_at - facts.at);
  int first = 0;
  for (const core::Member& member : facts.members) {
    if (member.node == id && facts.state.history.attempt_open) {
      report.first_rank = first;
      report.last_rank = first + member.workers - 1;
    }
    first += member.workers;
  }
  if (const service::StatusReply* status = facts.status(id)) add_service(report, *status, facts);
  return report;
}

}  // namespace

FleetReport fleet_report(const FleetFacts& facts) {
  const core::State& state = facts.state;
  FleetReport report;
  report.doing = core::name(state.doing);
  report.attempt = state.history.attempt.value;
  report.attempt_open = state.history.attempt_open;
  report.step = state.history.finished_step.value;
  if (state.doing == core::Doing::kAssembling && !facts.rules.fleet.alone)
    report.waits = core::shortage(facts.rules.fleet, state.fleet);
  std::vector<RankSpeed> speeds;
  for (core::NodeId id = 0; id < static_cast<core::NodeId>(state.fleet.size()); ++id) {
    const core::Node& node = state.fleet[id];
    const bool wanted = facts.rules.fleet.alone || node.listed || node.in_gang || node.up();
    if (!wanted) continue;
    report.nodes.push_back(node_report(facts, id));
    for (const RankReport& rank : report.nodes.back().ranks)
      speeds.push_back({rank.rank, report.nodes.back().name, rank.busy_seconds.value_or(0)});
  }
  report.slow =
      slow_ranks(speeds, facts.rules.fleet.micro_batches, core::workers_of(facts.members));
  return report;
}

FleetReport fleet_report(const JournalView& journal) {
  FleetReport report;
  report.live = false;
  report.doing = core::name(core::Doing::kStopped);
  report.attempt = journal.history.attempt.value;
  report.attempt_open = journal.history.attempt_open;
  report.step = journal.history.finished_step.value;
  for (const std::string& name : journal.history.gang) {
    NodeReport& node = report.nodes.emplace_back();
    node.name = name;
    node.standing = "was_in_use";
  }
  return report;
}

nlohmann::json to_json(const FleetReport& report) {
  return nlohmann::json(Wire{report});
}

std::optional<FleetReport> fleet_of(const nlohmann::json& json) {
  try {
    return json.get<Wire>();
  } catch (const nlohmann::json::exception& unreadable) {
    return std::nullopt;
  }
}

}  // namespace surefoot
