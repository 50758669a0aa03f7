// Holds a thread to a share of a processor: counts what it has used and lets it sleep between two
// pieces of work.
//
// pause() is called by the thread that is held, on its own clock of processor time; set_free() by
// any thread. The share is kept from one pause to the next: what was not used before is not saved
// up.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "common/clock.h"

namespace surefoot {

// How long to sleep after having used `processor_time` in the last `elapsed`. Pure.
[[nodiscard]] Duration pause_for(Duration processor_time, Duration elapsed, double share);

class Throttle {
 public:
  // `share` of one core, such as 0.1; 0: no limit.
  explicit Throttle(double share) : share_(share) {}

  // From now on work is (not) urgent: urgent work is not held.
  void set_free(bool is_free) { free_.store(is_free, std::memory_order_relaxed); }
  // Sleeps as long as the share wants it; returns at once when `stop` says so or work gets urgent.
  void pause(const std::function<bool()>& stop);
  // All sleep so far. Any thread.
  [[nodiscard]] Duration slept() const { return Duration(slept_.load(std::memory_order_relaxed)); }

 private:
  double share_;
  std::atomic<bool> free_{false};
  std::atomic<std::int64_t> slept_{0};
  bool gives_way_ = false;
  Time began_{};
  Duration used_{};
};

// Processor time of the calling thread.
[[nodiscard]] Duration thread_processor_time();

// Asks the kernel to let others go first: SCHED_BATCH and idle I/O, both of which may be taken
// back, unlike a nice value, which an ordinary user cannot lower again for urgent work. What cannot
// be set stays.
void let_others_go_first(bool others_first);

}  // namespace surefoot
