// Which ranks are slower than the others, so that all wait for them.
//
// A rank's busy time is what it spends in its own forward, backward and update, not waiting for
// others (RankStatus.busy_seconds). One step says little, so the median of its last steps counts;
// and as ranks may have different numbers of micro-batches, it is compared by micro-batch.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/service.pb.h"
#include "common/ids.h"

namespace surefoot {

// A rank is called slow from this many times the median of all on. Arbitrary: a processor that is
// shared or throttled is slower by more, and what differs between equal machines is less.
inline constexpr double kSlowFactor = 1.5;
// ... and when it keeps the others waiting for longer than this in a step. Arbitrary: below it the
// scheduler alone explains the difference.
inline constexpr double kSlowSeconds = 0.01;
// Steps that a median is taken of, and how many there have to be.
inline constexpr std::size_t kStepsCompared = 15;
inline constexpr std::size_t kFewestSteps = 3;

struct RankSpeed {
  int rank = 0;
  std::string host;
  double busy_seconds = 0;  // of a step
};

struct SlowRank {
  int rank = 0;
  std::string host;
  double factor = 0;  // times the median, by micro-batch
  friend bool operator==(const SlowRank&, const SlowRank&) = default;
};

// Of the lower median where the number of ranks is even: of two, one can be slow. `micro_batches`:
// of a step, over all `workers` of the gang, of which some machines may not have answered. The
// slowest first.
[[nodiscard]] std::vector<SlowRank> slow_ranks(const std::vector<RankSpeed>& ranks,
                                               std::int64_t micro_batches, std::int64_t workers);

// "rank 3 on host2: 1.8 times the median".
[[nodiscard]] std::string slow_text(const SlowRank& slow);

// The busy times of an attempt's ranks, by step.
class BusyTimes {
 public:
  void learn(const service::StatusReply& status, Attempt attempt);
  // The median of the last steps; 0: too few are known.
  [[nodiscard]] double typical(int rank) const;

 private:
  struct OfRank {
    std::int64_t step = -1;  // the last one learnt of
    std::deque<double> busy;
  };
  Attempt attempt_;
  std::map<int, OfRank> ranks_;
};

}  // namespace surefoot
