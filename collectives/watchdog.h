// Ends the process when a call into a library that cannot be interrupted has not returned by a
// deadline.
//
// Make one before the call, destroy it after. When the deadline passes first, it writes one line to
// standard error and ends the process with `exit_code`, without destructors or exit handlers, as
// those could wait for the same library. Its thread makes no other call and shares no lock with
// what it watches. The destructor joins that thread, which only sleeps.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "common/clock.h"

namespace surefoot {

class Watchdog {
 public:
  Watchdog(std::string_view call, Time deadline, int exit_code)
      : thread_([this, line = std::string(call) + " did not return in time; this process ends\n",
                 deadline, exit_code] {
          std::unique_lock lock(mutex_);
          if (returned_.wait_until(lock, deadline, [this] { return has_returned_; })) return;
          (void)!write(STDERR_FILENO, line.data(), line.size());
          _exit(exit_code);
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      has_returned_ = true;
    }
    returned_.notify_one();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable returned_;
  bool has_returned_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace surefoot
