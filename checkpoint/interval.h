// Decides how often a checkpoint goes to the store, and measures what that takes.
//
// The optimum is Daly's higher-order estimate (J. T. Daly, "A higher order estimate of the optimum
// checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006), eq. 37):
// with a checkpoint costing c and a mean time M between losses, training between two checkpoints
// should last
//
//   sqrt(2 c M) (1 + sqrt(c / 2M) / 3 + (c / 2M) / 9) - c   for c < 2M,   else M
//
// c is what a checkpoint costs the *training*, in seconds it would have trained meanwhile: steps go
// on beside an upload, only a little slower. A loss is an event after which no arena is left: any
// other is recovered from memory and costs no step. Before anything is seen one such loss a day is
// expected, and that day counts as watched: M = (1 day + watched) / (1 + losses).
//
// checkpoint.interval is a ceiling ("at least every N minutes"). Below it the optimum rules, but
// never below kShortestInterval, and nothing rules below what the store keeps up with.
//
// Pure: no clock, I/O, threads or logging.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"

namespace surefoot {

[[nodiscard]] Duration daly_optimum(Duration cost, Duration mean_time_between_losses);

// What is known of losses; survives the arena, see service_history.h.
struct LossHistory {
  Duration watched{};  // in which this job was at work
  int losses = 0;
};
[[nodiscard]] Duration mean_time_between_losses(const LossHistory& history);

// Arbitrary: below it the requests of listing and publishing are more than the bytes, on a store
// that others share.
inline constexpr Duration kShortestInterval = std::chrono::seconds(10);
// Arbitrary: uploads that take a bit longer now and then must not pile up.
inline constexpr double kStorageMargin = 1.25;

struct IntervalFacts {
  Duration ceiling{};               // checkpoint.interval
  std::optional<Duration> cost;     // of one checkpoint, to the training; nothing: not measured yet
  std::optional<Duration> storing;  // of the last one, from its first byte until it was read back
  LossHistory history;
};
enum class IntervalRule { kCeiling, kOptimum, kShortest, kStorage };
[[nodiscard]] std::string_view name(IntervalRule rule);
struct IntervalDecision {
  Duration interval{};
  IntervalRule rule = IntervalRule::kCeiling;
  std::string reason;  // a sentence with the numbers
};
[[nodiscard]] IntervalDecision decide_interval(const IntervalFacts& facts);

// Whether a decision is worth a line in the log after `told`: another rule, or more than 20 %.
[[nodiscard]] bool is_news(const IntervalDecision& told, const IntervalDecision& next);

// Measures the cost of a checkpoint: how much longer the steps beside an upload took than the
// median of those without one. Few samples: the largest of the first three uploads is believed,
// later the median of the last nine, so that one odd upload or step does not decide. Never less
// than what the upload used of a processor: that much was taken from somebody.
class CostMeter {
 public:
  // Steps in their order.
  void step_finished(std::int64_t attempt, std::int64_t step, Time finished);
  void pause();  // something else than a step was done: the next one has no known beginning
  // An upload, when it has ended; its steps may come later.
  void upload_ended(Time begun, Time ended, Duration processor_time);
  [[nodiscard]] std::optional<Duration> cost() const;

 private:
  struct Took {
    Time begun;
    Time finished;
    bool beside = false;  // an upload
  };
  struct Upload {
    Time begun;
    Time ended;
    Duration processor_time;
  };
  void settle();

  std::optional<Time> last_finished_;
  std::int64_t last_attempt_ = 0;
  std::int64_t last_step_ = 0;
  std::deque<Took> steps_;      // newest last
  std::deque<Upload> uploads_;  // not settled yet
  std::deque<Duration> costs_;  // newest last
};

}  // namespace surefoot
