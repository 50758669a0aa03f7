// How a job's machines are, as `surefoot nodes` and `status` tell it: made by the supervisor that
// runs, carried over its control socket as JSON, and the same JSON is what --json prints.
//
// Pure. -1 and 0 of the services mean "not known" and become null.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/service.pb.h"
#include "common/clock.h"
#include "launcher/journal.h"
#include "launcher/slow_ranks.h"
#include "launcher/supervisor.h"

namespace surefoot {

struct RankReport {
  int rank = 0;
  bool alive = true;
  std::int64_t step = 0;
  std::string phase;
  double seconds_in_phase = 0;
  std::optional<double> busy_seconds;  // of a step, the median of the last ones
};

struct NodeReport {
  std::string name;
  // in_use: the attempt runs on it; ready: it could; looked_at: its service is being found or
  // started; left_out: not fit, see `why`; lost: it has been ready and does not answer; waiting:
  // not tried yet. Of the journal: was_in_use.
  std::string standing;
  int slots = 0;
  std::string why;                      // left_out, lost
  std::optional<double> again_seconds;  // left_out, lost: until it is tried again
  bool goes = false;                    // it was announced to go
  std::optional<double> goes_seconds;   // in so many; below 0: since
  std::optional<int> first_rank, last_rank;
  // What its service says; null when it does not answer.
  std::optional<std::int64_t> snapshot;     // newest READY step
  std::optional<std::int64_t> stored_part;  // newest step of which its part is in the store
  std::optional<std::int64_t> storing;
  std::optional<std::int64_t> checkpoint;  // newest whole one, as it sees the store
  std::optional<double> checkpoint_age_seconds;
  std::optional<double> upload_bytes_per_second;
  std::string waiting_for;
  std::optional<std::int64_t> arena_bytes;
  std::string notice;                 // what it has decided to do about its notice
  std::vector<std::string> warnings;  // of notices that do not make it go
  std::vector<RankReport> ranks;
};

struct FleetReport {
  bool live = true;   // false: no supervisor runs, and this is what its journal knows
  std::string doing;  // supervisor::name(Doing)
  std::int64_t attempt = 0;
  bool attempt_open = false;
  std::int64_t step = 0;  // newest finished
  std::string waits;      // for which machines; empty: it does not
  std::vector<NodeReport> nodes;
  std::vector<SlowRank> slow;
};

struct FleetFacts {
  const supervisor::Rules& rules;
  const supervisor::State& state;
  const std::vector<supervisor::Member>& members;  // of the open attempt, in the order of the ranks
  std::function<const service::StatusReply*(supervisor::NodeId)> status;  // the last one, or null
  const BusyTimes& busy;
  std::string host;  // the supervisor's own name
  Time at;
};
[[nodiscard]] FleetReport fleet_report(const FleetFacts& facts);
// Without a supervisor.
[[nodiscard]] FleetReport fleet_report(const JournalView& journal);

[[nodiscard]] nlohmann::json to_json(const FleetReport& report);
// What a supervisor has sent; nothing: it is another one's, and not readable.
[[nodiscard]] std::optional<FleetReport> fleet_of(const nlohmann::json& json);

// The screen of `nodes`.
[[nodiscard]] std::string nodes_screen(const std::string& job, const FleetReport& report);
// The lines of `status`: label and text each, one a machine, and who is slow.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> fleet_lines(
    const FleetReport& report);
// "in use, attempt 3, ranks 2-3; goes in 28.0 s".
[[nodiscard]] std::string standing_text(const FleetReport& report, const NodeReport& node);

}  // namespace surefoot
