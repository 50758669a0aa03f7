// The progress of a job in one line, for a terminal or a log file.
//
// Pure: what is known goes in, text comes out. ProgressClock decides when a log without a terminal
// gets its next line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/ids.h"

namespace surefoot {

struct Progress {
  Step step;  // newest finished
  Step max_steps;
  std::optional<double> loss;
  double samples_per_second = 0;  // 0: not known yet
  double mfu = 0;                 // share of the GPUs' peak; 0: not known
  double seconds_per_step = 0;    // mean of the last steps; 0: not known yet
  Step snapshot{-1};              // newest READY in memory; -1: none
  Step checkpoint{-1};            // newest verified in the store; -1: none
  double checkpoint_age_seconds = 0;
  Step storing{-1};  // being written; -1: none
  std::int64_t restarts = 0;
  std::string doing;  // "restoring", "evaluating", ...; empty: stepping
  double doing_seconds = 0;
};

// Fits into `width` columns: what matters least is left out first. At least the step always stands
// in it.
[[nodiscard]] std::string progress_line(const Progress& progress, int width);

// When a plain line is due: with the first and last step, and then every `interval`.
class ProgressClock {
 public:
  explicit ProgressClock(Duration interval) : interval_(interval) {}
  [[nodiscard]] bool due(Step step, Step max_steps, Time now);

 private:
  Duration interval_;
  Step shown_{0};
  std::optional<Time> at_;
};

}  // namespace surefoot
