// The machines of a job as the supervisor's core sees them: which can be had, which are left out
// and why, and which of them the next attempt runs on.
//
// Pure values and functions; the core (supervisor.h) calls them, the driver never does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"

namespace surefoot::supervisor {

// Index into Fleet, for the life of a supervisor. Numbers are never given to another machine.
using NodeId = int;

struct FleetRules {
  // No machines are named: the job runs on this one, which is node 0. It is never lost or left out;
  // a service that does not start is then a failure of the job.
  bool alone = true;
  int min_nodes = 1;
  int max_nodes = 1;
  int workers_per_node = 1;              // where a machine's slots do not say otherwise
  std::int64_t micro_batches = 1 << 30;  // of a step: more workers would have nothing to do
  Duration heartbeat_timeout = std::chrono::seconds(5);
  Duration check_timeout = std::chrono::seconds(60);
  Duration capacity_timeout = std::chrono::hours(1);
  Duration grow_after = std::chrono::seconds(60);
  Duration node_backoff = std::chrono::minutes(1);
  bool allow_mixed_hardware = false;
  // One whose workers have failed is looked over again before it is taken: it has GPUs, which may
  // have gone.
  bool looks_again = false;
};

// A machine that was announced to go and answers so long after its time stays after all. One whose
// time was not named would have gone within half a minute.
inline constexpr Duration kOutlivedNotice = std::chrono::minutes(2);
inline constexpr Duration kUsualNotice = std::chrono::seconds(30);
// Strikes that are older do not count.
inline constexpr Duration kStrikeMemory = std::chrono::hours(1);
inline constexpr Duration kFirstRetry = std::chrono::seconds(1);
inline constexpr Duration kLongestRetry = std::chrono::seconds(60);
inline constexpr std::int64_t kNodeBackoffLimit = 60;  // `node_backoff` doubles up to so many times

struct HostSpec {
  std::string name;
  int slots = 0;      // 0: workers_per_node
  bool here = false;  // the supervisor's own machine, by its name
  friend bool operator==(const HostSpec&, const HostSpec&) = default;
};

// What a machine is, as far as other machines have to be the same. Empty: not known.
struct NodeFacts {
  std::string boot_id;
  std::string numerics_id;    // decides the bits
  std::string training_hash;  // of job and data as that machine sees them
};

enum class Standing {
  kOut,        // not tried yet, failed, lost: (again) from `due` on
  kPreparing,  // a StartService is in hand; given up at `due`
  kReady,      // its service answers
};

struct Node {
  HostSpec host;
  bool here = false;   // the supervisor's own machine, as was seen when its service was started
  bool listed = true;  // the user's list names it now
  Standing standing = Standing::kOut;
  Time due{};
  Time back_at{};                  // kOut: not before it, also where `due` says never for now
  bool tried = false;              // it has answered this supervisor, or has failed to
  int failures = 0;                // to start its service, in a row
  std::vector<Time> strikes;       // when it was lost or its workers failed; within kStrikeMemory
  bool leaves = false;             // it was announced to go
  std::optional<Time> leaves_at;   // none: not known when
  std::optional<Time> noticed_at;  // when that was told
  std::string noticed_boot;        // of which of its lives; empty: not known
  NodeFacts facts;
  Step ready{-1};        // newest READY snapshot when it answered first
  Step durable{-1};      // newest verified checkpoint, as it sees the store
  std::string why;       // it is out
  bool barred = false;   // ... for what its workers did: it answers
  bool lost = false;     // ... since it does not answer any more
  bool in_gang = false;  // the open attempt runs on it
  Attempt stain;         // it may still run something of this attempt; 0: it does not
  bool unsure = false;   // it is asked again, since it may hold steps that nobody has seen
  bool back = false;     // it was lost to the open attempt, and has answered since
  Attempt spared;        // by the StartService in hand or last answered
  bool up() const { return standing == Standing::kReady; }
  bool is_here() const { return here || host.here; }
  // When it stays after all, if it still answers.
  Time outlives_notice() const {
    return leaves_at.value_or(noticed_at.value_or(Time{}) + kUsualNotice) + kOutlivedNotice;
  }
  void forget_notice() {
    leaves = false;
    leaves_at.reset();
    noticed_at.reset();
    noticed_boot.clear();
  }
};
using Fleet = std::vector<Node>;

// What an attempt runs on, in the order of the ranks.
struct Member {
  NodeId node = 0;
  int workers = 1;
  friend bool operator==(const Member&, const Member&) = default;
};

// May take part in the next attempt.
[[nodiscard]] bool usable(const Node& node);

// The machines for the next attempt: those that are usable and alike, at most max_nodes, no more
// workers than a step has micro-batches; machines with the newest snapshots first, the list's order
// otherwise, and the result in the list's order. None when they are fewer than min_nodes. What the
// machines must be alike in: `reference`, where that is known.
[[nodiscard]] std::vector<Member> choose(const FleetRules& rules, const Fleet& fleet,
                                         const NodeFacts& reference);

// What most of the usable machines that fit `reference` are: what a job runs on that has not run.
[[nodiscard]] NodeFacts commonest(const FleetRules& rules, const Fleet& fleet,
                                  const NodeFacts& reference);

[[nodiscard]] int workers_of(const std::vector<Member>& members);
// Micro-batches of the rank that has most of them: what decides how long a step takes.
[[nodiscard]] std::int64_t longest_share(const FleetRules& rules,
                                         const std::vector<Member>& members);

// The pause before the service of a machine is tried again that failed `failures` times in a row.
[[nodiscard]] Duration retry_pause(int failures);
// Notes a strike and returns how long the machine is left out: nothing the first time in an hour,
// then node_backoff, doubled each time.
[[nodiscard]] Duration strike(const FleetRules& rules, Node& node, Time at);

// Whether the machine may be taken beside what the job has run on; empty: it may, else why not.
[[nodiscard]] std::string mismatch(const FleetRules& rules, const NodeFacts& reference,
                                   const NodeFacts& facts);

// "waits for machines: 1 of at least 2 (a); b: ssh: connection refused; c: goes".
[[nodiscard]] std::string shortage(const FleetRules& rules, const Fleet& fleet);

}  // namespace surefoot::supervisor
