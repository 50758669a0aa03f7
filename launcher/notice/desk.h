// Where all watchers of a machine report, and what the checkpoint service is told of it.
//
// A reclaim, and a maintenance within kNear, make the machine go: the one with the earliest
// deadline that is still to come is named. If all have passed it is the last one: the machine was
// spared, and a notice that is named anew would drain it twice. A raised risk and a maintenance
// farther away do not make it go: a checkpoint is asked for, once each, and a line warns.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/service.h"
#include "launcher/fleet.h"
#include "launcher/notice/notice.h"

namespace surefoot::notice {

inline constexpr Duration kNear = std::chrono::minutes(5);
// A machine that is still here so long after its deadline was spared, as for the supervisor.
inline constexpr Duration kOutlived = supervisor::kOutlivedNotice;

// Pure. `standing`: every notice that has come and is not over. Of `checkpoint` nothing is said.
[[nodiscard]] MachineNotices decide_notices(std::span<const Notice> standing, Time now);

// For any threads; no call waits. At most kMaxStanding notices are known: those whose deadline has
// passed are left out first, then those whose deadline is farthest.
class Desk {
 public:
  static constexpr std::size_t kMaxStanding = 64;  // arbitrary; a machine has one or two
  // A reclaim that comes ends those that were outlived, of any source: nothing else does, and when
  // it is called off none of them may be named anew.
  void take(const Change& change, Time now);
  // For the service, over and over. `safe`: the machine's workers are gone and its state is safe
  // elsewhere.
  [[nodiscard]] MachineNotices look(bool safe, Time now);
  // For the source: the ids of its notices for which the machine goes and that is so.
  [[nodiscard]] std::vector<std::string> safe_ids(const std::string& source) const;

 private:
  using Key = std::pair<std::string, std::string>;  // source, id
  void leave_one_out(Time now);
  mutable std::mutex mutex_;
  std::map<Key, Notice> standing_;
  std::set<Key> asked_;  // for which a checkpoint was asked
  std::set<Key> safe_;
};

}  // namespace surefoot::notice
