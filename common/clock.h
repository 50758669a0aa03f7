// Time. Decisions take a Time as an argument; only edges call now().
//
// Monotonic and the same for all processes of a machine (CLOCK_MONOTONIC), so a Time may stand in
// shared memory. It means nothing on another machine: only durations cross machines.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>

namespace surefoot {

using Duration = std::chrono::nanoseconds;
using Time = std::chrono::steady_clock::time_point;

[[nodiscard]] inline Time now() {
  return std::chrono::steady_clock::now();
}
[[nodiscard]] inline double seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}
// Of any number, as messages and files may hold it: at most 285 years, and nothing for NaN. A Time
// and such a duration can be added.
[[nodiscard]] inline Duration from_seconds(double value) {
  constexpr double kMost = 9e9;
  if (std::isnan(value)) return Duration::zero();
  return Duration(static_cast<Duration::rep>(std::clamp(value, -kMost, kMost) * 1e9));
}

}  // namespace surefoot
