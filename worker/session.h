// How a gang comes together: places, the service of each node, the attempt's number, and the state
// that all start from.
//
// Every rank calls join() once. Local rank 0 of each node ("leader") holds the gang lock of its
// node and says hello to its service; then the newest copy that is good, wherever it lies, is
// brought into every node's arena (fill.h). An error on one rank is an error on all, so nobody is
// left waiting. Blocks until `deadline` at the longest.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/arena.h"
#include "checkpoint/service_client.h"
#include "collectives/communicator.h"
#include "collectives/reducer.h"
#include "configs/job.h"

namespace surefoot {

struct JoinRequest {
  const config::Job* job = nullptr;
  std::string job_id;
  StateLayout layout;
  TrainingIdentity identity;
  std::string numerics_id;
  Attempt attempt;  // 0: one more than any node or the store has seen
  bool accept_changes = false;
  bool supervised = false;
  Step known_step;   // that the supervisor knows to have been finished; 0: none
  std::string host;  // ranks with equal ones share a node; empty: the name of this machine
};

struct Session {
  std::vector<Place> places;  // by rank
  Place place;                // of this rank
  Attempt attempt;
  std::filesystem::path arena_path;
  std::unique_ptr<Arena> arena;
  std::optional<FolderLock> gang_lock;  // leaders only; held as long as the gang lives
  int slot = -1;  // READY and verified, in this node's arena; -1: the job starts at step 0
  Step step;
  std::int64_t samples = 0;
};

// Ranks with equal `host` share a node; nodes are numbered by their lowest rank.
[[nodiscard]] std::vector<Place> places_of(const std::vector<std::string>& hosts);

[[nodiscard]] Result<Session> join(Communicator& communicator, const JoinRequest& request,
                                   Time deadline);

// Brings the newest checkpoint older than `before` that verifies into every node's arena, and only
// then frees the slots of later steps (but those that still go to the store). For `on_nan:
// rollback`. kNotFound: there is none, and memory stays as it was. kRestart: somebody has removed
// the arena's file, which only a new attempt finds again.
Status roll_back(Communicator& communicator, const JoinRequest& request, Session& session,
                 Step before, Time deadline);

}  // namespace surefoot
