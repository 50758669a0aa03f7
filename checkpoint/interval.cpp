#include "checkpoint/interval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace surefoot {
namespace {

constexpr Duration kPriorWatched = std::chrono::hours(24);
constexpr double kPriorLosses = 1;

constexpr std::size_t kFewUploads = 3;
constexpr std::size_t kUploadsKept = 9;
constexpr std::size_t kStepsKept = 4096;  // as many as an arena's ring of records
constexpr std::size_t kQuietSteps = 5;    // fewer say nothing about a step's time
constexpr std::size_t kUploadsWaiting = 16;

template <class T>
T median_of(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// "12 s", "1.5 min", "24 h": numbers for a sentence.
std::string text_of(Duration duration) {
  const double value = seconds(duration);
  if (value < 1) return fmt::format("{:.0f} ms", value * 1e3);
  if (value < 120) return fmt::format("{:.3g} s", value);
  if (value < 7200) return fmt::format("{:.3g} min", value / 60);
  return fmt::format("{:.3g} h", value / 3600);
}

}  // namespace

Duration daly_optimum(Duration cost, Duration mean_time_between_losses) {
  const double c = seconds(cost);
  const double mean = seconds(mean_time_between_losses);
  if (c <= 0) return Duration::zero();
  if (c >= 2 * mean) return mean_time_between_losses;
  const double ratio = c / (2 * mean);
  return from_seconds(std::sqrt(2 * c * mean) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - c);
}

Duration mean_time_between_losses(const LossHistory& history) {
  const double watched = seconds(kPriorWatched) + std::max(0.0, seconds(history.watched));
  return from_seconds(watched / (kPriorLosses + std::max(0, history.losses)));
}

std::string_view name(IntervalRule rule) {
  switch (rule) {
    case IntervalRule::kCeiling:
      return "ceiling";
    case IntervalRule::kOptimum:
      return "optimum";
    case IntervalRule::kShortest:
      return "shortest";
    case IntervalRule::kStorage:
      break;
  }
  return "storage";
}

IntervalDecision decide_interval(const IntervalFacts& facts) {
  IntervalDecision decision{facts.ceiling, IntervalRule::kCeiling, {}};
  const Duration mean = mean_time_between_losses(facts.history);
  std::string optimum = "what a checkpoint costs is not measured yet";
  if (facts.cost) {
    const Duration best = daly_optimum(*facts.cost, mean);
    optimum = fmt::format(
        "a checkpoint costs {} of training and all memory is lost every {} ({} losses seen), so "
        "the optimum is {}",
        text_of(*facts.cost), text_of(mean), facts.history.losses, text_of(best));
    if (best < facts.ceiling) {
      decision.interval = std::min(facts.ceiling, std::max(best, kShortestInterval));
      decision.rule = best >= decision.interval ? IntervalRule::kOptimum : IntervalRule::kShortest;
      if (decision.interval == facts.ceiling) decision.rule = IntervalRule::kCeiling;
    }
  }
  const Duration floor =
      facts.storing ? from_seconds(seconds(*facts.storing) * kStorageMargin) : Duration::zero();
  if (floor > decision.interval) {
    decision.interval = floor;
    decision.rule = IntervalRule::kStorage;
    decision.reason =
        fmt::format("every {}: the store takes {} for a checkpoint and keeps up with no more",
                    text_of(floor), text_of(*facts.storing));
  } else if (decision.rule == IntervalRule::kCeiling) {
    decision.reason = fmt::format("every {}, as checkpoint.interval says: {}",
                                  text_of(decision.interval), optimum);
  } else if (decision.rule == IntervalRule::kShortest) {
    decision.reason =
        fmt::format("every {}, never more often: {}", text_of(decision.interval), optimum);
  } else {
    decision.reason = fmt::format("every {}: {}", text_of(decision.interval), optimum);
  }
  return decision;
}

bool is_news(const IntervalDecision& told, const IntervalDecision& next) {
  const double change = seconds(next.interval) / std::max(1e-9, seconds(told.interval));
  return told.rule != next.rule || change > 1.2 || change < 1 / 1.2;
}

// ---- the cost ----

void CostMeter::step_finished(std::int64_t attempt, std::int64_t step, Time finished) {
  const bool follows = last_finished_ && attempt == last_attempt_ && step == last_step_ + 1 &&
                       finished >= *last_finished_;
  if (follows) {
    steps_.push_back({*last_finished_, finished});
    if (steps_.size() > kStepsKept) steps_.pop_front();
  }
  last_finished_ = finished;
  last_attempt_ = attempt;
  last_step_ = step;
  settle();
}

void CostMeter::pause() {
  last_finished_.reset();
}

void CostMeter::upload_ended(Time begun, Time ended, Duration processor_time) {
  uploads_.push_back({begun, ended, processor_time});
  if (uploads_.size() > kUploadsWaiting) uploads_.pop_front();
  settle();
}

// An upload is settled once a step has ended after it, since then all its steps are known.
void CostMeter::settle() {
  while (!uploads_.empty() && !steps_.empty() && steps_.back().finished > uploads_.front().ended) {
    const Upload upload = uploads_.front();
    std::vector<Duration> quiet;
    std::vector<Duration> beside;
    for (Took& step : steps_) {
      const Duration took = step.finished - step.begun;
      if (step.finished > upload.begun && step.begun < upload.ended) {
        step.beside = true;
        beside.push_back(took);
      } else if (step.finished <= upload.begun && !step.beside) {
        quiet.push_back(took);
      }
    }
    if (quiet.size() < kQuietSteps) {
      // The first checkpoint comes after the first step: those after it are as quiet.
      for (const Took& step : steps_) {
        if (step.begun >= upload.ended) quiet.push_back(step.finished - step.begun);
      }
    }
    if (quiet.size() < kQuietSteps) return;
    uploads_.pop_front();
    const Duration usual = median_of(quiet);
    Duration longer{};
    for (const Duration took : beside) longer += took - usual;
    // Beside an upload there may have been no step at all: nothing was measured then.
    if (beside.empty()) continue;
    costs_.push_back(std::max(longer, upload.processor_time));
    if (costs_.size() > kUploadsKept) costs_.pop_front();
  }
}

std::optional<Duration> CostMeter::cost() const {
  if (costs_.empty()) return std::nullopt;
  if (costs_.size() <= kFewUploads) return *std::max_element(costs_.begin(), costs_.end());
  return median_of(std::vector<Duration>(costs_.begin(), costs_.end()));
}

}  // namespace surefoot
