#include "launcher/slow_ranks.h"

#include <fmt/format.h>

#include <algorithm>

namespace surefoot {
namespace {

double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<SlowRank> slow_ranks(const std::vector<RankSpeed>& ranks, std::int64_t micro_batches,
                                 std::int64_t workers) {
  struct Timed {
    const RankSpeed* rank;
    std::int64_t share;
    double seconds;  // a micro-batch
  };
  std::vector<Timed> timed;
  std::vector<double> all;
  for (const RankSpeed& rank : ranks) {
    // Of a gang that is just being replaced.
    if (rank.rank >= workers) continue;
    const std::int64_t share =
        (rank.rank + 1) * micro_batches / workers - rank.rank * micro_batches / workers;
    if (share <= 0 || rank.busy_seconds <= 0) continue;
    timed.push_back({&rank, share, rank.busy_seconds / static_cast<double>(share)});
    all.push_back(timed.back().seconds);
  }
  if (all.size() < 2) return {};
  const double median = lower_median(all);
  std::vector<SlowRank> slow;
  for (const Timed& each : timed) {
    const double waited = (each.seconds - median) * static_cast<double>(each.share);
    if (each.seconds >= kSlowFactor * median && waited >= kSlowSeconds)
      slow.push_back({each.rank->rank, each.rank->host, each.seconds / median});
  }
  std::stable_sort(slow.begin(), slow.end(),
                   [](const SlowRank& a, const SlowRank& b) { return a.factor > b.factor; });
  return slow;
}

std::string slow_text(const SlowRank& slow) {
  return fmt::format("rank {} on {}: {:.1f} times the median", slow.rank, slow.host, slow.factor);
}

void BusyTimes::learn(const service::StatusReply& status, Attempt attempt) {
  if (attempt != attempt_) ranks_.clear();
  attempt_ = attempt;
  for (const service::RankStatus& rank : status.ranks()) {
    if (rank.attempt() != attempt.value || rank.busy_seconds() <= 0) continue;
    OfRank& known = ranks_[rank.rank()];
    if (rank.step() == known.step) continue;
    known.step = rank.step();
    known.busy.push_back(rank.busy_seconds());
    if (known.busy.size() > kStepsCompared) known.busy.pop_front();
  }
}

double BusyTimes::typical(int rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end() || found->second.busy.size() < kFewestSteps) return 0;
  return lower_median({found->second.busy.begin(), found->second.busy.end()});
}

}  // namespace surefoot
