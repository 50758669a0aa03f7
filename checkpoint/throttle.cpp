#include "checkpoint/throttle.h"

#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace surefoot {
namespace {

constexpr Duration kSlice = std::chrono::milliseconds(20);  // between looks whether to go on

// linux/ioprio.h is not in all distributions.
constexpr int kIoPriorityOfProcess = 1;
constexpr int kIoIdle = 3 << 13;
constexpr int kIoDefault = 0;

}  // namespace

Duration pause_for(Duration processor_time, Duration elapsed, double share) {
  if (share <= 0) return Duration::zero();
  const auto wanted =
      std::chrono::round<Duration>(std::chrono::duration<double>(seconds(processor_time) / share));
  return std::max(Duration::zero(), wanted - elapsed);
}

void Throttle::pause(const std::function<bool()>& stop) {
  const bool held = share_ > 0 && !free_.load(std::memory_order_relaxed);
  if (std::exchange(gives_way_, held) != held) let_others_go_first(held);
  // What was used before the first pause, or as urgent work, is not held against what follows.
  if (!held || began_ == Time{}) {
    began_ = held ? now() : Time{};
    used_ = thread_processor_time();
    return;
  }
  const Time at = now();
  const Time until = at + pause_for(thread_processor_time() - used_, at - began_, share_);
  while (now() < until && !(stop && stop()) && !free_.load(std::memory_order_relaxed))
    std::this_thread::sleep_for(std::min<Duration>(kSlice, until - now()));
  began_ = now();
  used_ = thread_processor_time();
  slept_.fetch_add((began_ - at).count(), std::memory_order_relaxed);
}

Duration thread_processor_time() {
  timespec spec{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spec);
  return std::chrono::seconds(spec.tv_sec) + Duration(spec.tv_nsec);
}

void let_others_go_first(bool others_first) {
  const sched_param none{};
  ::sched_setscheduler(0, others_first ? SCHED_BATCH : SCHED_OTHER, &none);
  ::syscall(SYS_ioprio_set, kIoPriorityOfProcess, 0, others_first ? kIoIdle : kIoDefault);
}

}  // namespace surefoot
