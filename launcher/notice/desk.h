// Where all watchers of a machine report, and what the checkpoint service is told of it.
//
// A reclaim, and a maintenance within kNear, make the machine go: the one with the earliest
// deadline is named. A raised risk and a maintenance farther away do not: a checkpoint is asked
// for, once each, and a line warns.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/service.h"
#include "launcher/notice/notice.h"

namespace surefoot::notice {

inline constexpr Duration kNear = std::chrono::minutes(5);

// Pure. `standing`: every notice that has come and is not over. Of `checkpoint` nothing is said.
[[nodiscard]] MachineNotices decide_notices(std::span<const Notice> standing, Time now);

// For any threads; no call waits.
class Desk {
 public:
  void take(const Change& change);
  // For the service, over and over. `safe`: the machine's workers are gone and its state is safe
  // elsewhere.
  [[nodiscard]] MachineNotices look(bool safe, Time now);
  // For the source: the ids of its notices for which the machine goes and that is so.
  [[nodiscard]] std::vector<std::string> safe_ids(const std::string& source) const;

 private:
  using Key = std::pair<std::string, std::string>;  // source, id
  mutable std::mutex mutex_;
  std::map<Key, Notice> standing_;
  std::set<Key> asked_;  // for which a checkpoint was asked
  std::set<Key> safe_;
};

}  // namespace surefoot::notice
