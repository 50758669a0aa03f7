// Time. Decisions take a Time as an argument; only edges call now().
//
// Monotonic and the same for all processes of a machine (CLOCK_MONOTONIC), so a Time may stand in
// shared memory. It means nothing on another machine: only durations cross machines.
#pragma once

#include <chrono>

namespace surefoot {

using Duration = std::chrono::nanoseconds;
using Time = std::chrono::steady_clock::time_point;

[[nodiscard]] inline Time now() {
  return std::chrono::steady_clock::now();
}
[[nodiscard]] inline double seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace surefoot
