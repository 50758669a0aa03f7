#include "launcher/notice/desk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/deadline.h"

namespace surefoot::notice {
namespace {

constexpr std::size_t kMostAsked = 1000;  // arbitrary; a job sees a few

bool makes_it_go(const Notice& notice, Time now) {
  if (notice.kind == Kind::kReclaim) return true;
  return notice.kind == Kind::kMaintenance && notice.deadline && *notice.deadline - now <= kNear;
}

// Without the time that is left: each minute's would be another warning.
std::string warning_of(const Notice& notice) {
  if (notice.kind == Kind::kRebalance)
    return fmt::format("{}: this machine may be taken soon ({})", notice.source, notice.id);
  return fmt::format("{}: maintenance of this machine, {} ({})", notice.source, notice.what,
                     notice.id);
}

// Of two that make the machine go, what is named rather.
bool comes_first(Time deadline, Time other, Time now) {
  if ((deadline < now) != (other < now)) return other < now;
  return deadline < now ? deadline > other : deadline < other;
}

}  // namespace

MachineNotices decide_notices(std::span<const Notice> standing, Time now) {
  MachineNotices told;
  for (const Notice& notice : standing) {
    if (!makes_it_go(notice, now)) {
      told.warnings.push_back(warning_of(notice));
      continue;
    }
    const Time deadline = notice.deadline.value_or(now + kUnknownDeadline);
    if (!told.leave || comes_first(deadline, told.leave->deadline, now))
      told.leave = MachineNotices::Leave{deadline, notice.source, notice.id};
  }
  return told;
}

void Desk::take(const Change& change, Time now) {
  const std::lock_guard lock(mutex_);
  const Key key{change.notice.source, change.notice.id};
  if (change.what == Change::What::kOver) {
    standing_.erase(key);
    return;
  }
  Notice notice = change.notice;
  if (notice.kind == Kind::kReclaim) {
    std::erase_if(standing_, [now](const auto& entry) {
      const Notice& old = entry.second;
      return old.kind == Kind::kReclaim && *old.deadline + kOutlived < now;
    });
    // Else it would be as far away at each look.
    if (!notice.deadline) notice.deadline = now + kUnknownDeadline;
  }
  standing_[key] = std::move(notice);
  if (standing_.size() > kMaxStanding) leave_one_out(now);
}

// The one that is named last.
void Desk::leave_one_out(Time now) {
  const auto last = std::max_element(
      standing_.begin(), standing_.end(), [now](const auto& first, const auto& second) {
        return comes_first(first.second.deadline.value_or(Time::max()),
                           second.second.deadline.value_or(Time::max()), now);
      });
  standing_.erase(last);
}

MachineNotices Desk::look(bool safe, Time now) {
  const std::lock_guard lock(mutex_);
  std::vector<Notice> standing;
  bool fresh = false;
  safe_.clear();
  for (const auto& [key, notice] : standing_) {
    standing.push_back(notice);
    if (makes_it_go(notice, now)) {
      if (safe) safe_.insert(key);
      continue;
    }
    if (asked_.size() >= kMostAsked) asked_.clear();
    fresh = asked_.insert(key).second || fresh;
  }
  MachineNotices told = decide_notices(standing, now);
  told.checkpoint = fresh;
  return told;
}

std::vector<std::string> Desk::safe_ids(const std::string& source) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [named, id] : safe_) {
    if (named == source) ids.push_back(id);
  }
  return ids;
}

}  // namespace surefoot::notice
