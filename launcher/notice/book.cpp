#include "launcher/notice/book.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "launcher/notice/times.h"

namespace surefoot::notice {
namespace {

constexpr Duration kWithoutDeadline = std::chrono::minutes(10);
// Two answers about one moment differ by what it takes to ask.
constexpr Duration kEarlier = std::chrono::seconds(1);
// Farther times are as good as this one, and a Duration holds no more than 292 years.
constexpr std::chrono::hours kFarthest = std::chrono::hours(24 * 365);

std::chrono::milliseconds left_until(WallTime at, WallTime wall) {
  return std::clamp<std::chrono::milliseconds>(at - wall, -kFarthest, kFarthest);
}

std::optional<Time> deadline_of(const Sighting& sighting, Time now, WallTime wall) {
  std::optional<Time> deadline;
  if (sighting.at) deadline = now + left_until(*sighting.at, wall);
  if (sighting.in)
    deadline =
        std::min(deadline.value_or(Time::max()), now + std::min<Duration>(*sighting.in, kFarthest));
  return deadline;
}

// Where the source has none: what it is and when it goes, or was seen.
std::string id_of(const Sighting& sighting, const std::optional<Time>& deadline, Time now,
                  WallTime wall) {
  if (!sighting.id.empty()) return sighting.id;
  if (!deadline) return fmt::format("{} seen {}", sighting.what, to_text(wall));
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - now);
  return fmt::format("{} at {}", sighting.what, to_text(wall + left));
}

}  // namespace

Book::Event* Book::find(const std::string& about, const Sighting& sighting) {
  const auto found = std::find_if(events_.begin(), events_.end(), [&](const Event& event) {
    return event.about == about && event.sighting.kind == sighting.kind &&
           event.sighting.what == sighting.what && event.sighting.id == sighting.id;
  });
  return found == events_.end() ? nullptr : &*found;
}

News Book::take(const Finding& finding, Time now, WallTime wall) {
  News news;
  for (Event& event : events_) {
    event.was_present = event.present;
    if (event.about == finding.about && !finding.trouble) event.present = false;
  }
  for (const Sighting& sighting : finding.sightings) see(finding.about, sighting, now, wall, news);
  for (Event& event : events_) {
    const bool called_off = cancels_ || event.notice.kind != Kind::kReclaim;
    if (event.present || event.told_over || !called_off) continue;
    event.told_over = true;
    news.changes.push_back({Change::What::kOver, event.notice});
  }
  return news;
}

void Book::see(const std::string& about, const Sighting& sighting, Time now, WallTime wall,
               News& news) {
  auto deadline = deadline_of(sighting, now, wall);
  const bool past = deadline && *deadline < now;
  Event* const known = find(about, sighting);
  if (known != nullptr && (known->was_present || known->present || now <= known->over_at)) {
    if (past) deadline.reset();
    return see_again(*known, deadline, news);
  }
  if (past) {
    news.ignored.push_back(
        fmt::format("{} {:.0f} s ago is in the past", sighting.what, seconds(now - *deadline)));
    return;
  }
  if (known != nullptr) events_.erase(events_.begin() + (known - events_.data()));
  if (events_.size() >= kMaxEvents && !forget_one()) {
    news.ignored.push_back(fmt::format("{} is more than {} events", sighting.what, kMaxEvents));
    return;
  }
  Event event;
  event.about = about;
  event.sighting = sighting;
  event.notice = {sighting.kind, deadline, source_, id_of(sighting, deadline, now, wall),
                  sighting.what};
  event.over_at = deadline.value_or(now + kWithoutDeadline);
  event.present = true;
  news.changes.push_back({Change::What::kCame, event.notice});
  events_.push_back(std::move(event));
}

void Book::see_again(Event& event, const std::optional<Time>& deadline, News& news) {
  event.present = true;
  const bool earlier =
      deadline && (!event.notice.deadline || *deadline + kEarlier <= *event.notice.deadline);
  if (earlier) event.notice.deadline = deadline;
  if (std::exchange(event.told_over, false)) {
    news.changes.push_back({Change::What::kCame, event.notice});
  } else if (earlier) {
    news.changes.push_back({Change::What::kEarlier, event.notice});
  }
}

// The oldest of those that are not there any more.
bool Book::forget_one() {
  const auto gone = std::find_if(events_.begin(), events_.end(),
                                 [](const Event& event) { return !event.present; });
  if (gone == events_.end()) return false;
  events_.erase(gone);
  return true;
}

}  // namespace surefoot::notice
