// A thread for what takes long, beside a loop that must never wait.
//
// start() queues work; it runs on the thread, one after the other, and returns what is to be done
// with its outcome, which take() hands to the loop. The loop finds event_fd() readable. Work must
// not throw. The end: close() tells running work to stop (it asks stopping()), drops what is
// queued, and waits for the running one up to its deadline. Destruction waits for it however long
// it takes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/file.h"

namespace surefoot {

class WorkThread {
 public:
  using Outcome = std::function<void()>;  // run by the loop
  using Work = std::function<Outcome()>;

  WorkThread();
  ~WorkThread();
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  void start(Work work);
  // What is queued, running, or waiting to be taken.
  [[nodiscard]] bool idle() const { return unfinished() == 0; }
  [[nodiscard]] std::size_t unfinished() const;
  [[nodiscard]] std::vector<Outcome> take();
  [[nodiscard]] int event_fd() const { return event_.get(); }
  // For running work: leave at the next chance.
  [[nodiscard]] bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  // Running work sees stopping() until it has returned; what is queued runs after.
  void interrupt();
  // False: work still runs. Nothing is started any more; may be called again.
  [[nodiscard]] bool close(Time deadline);

 private:
  void run();

  Fd event_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  std::vector<Outcome> outcomes_;
  std::size_t unfinished_ = 0;  // queued, running or not taken
  bool running_ = false;
  bool closing_ = false;
  bool closed_ = false;  // the thread is about to return
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace surefoot
