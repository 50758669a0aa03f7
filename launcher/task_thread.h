// Threads beside the driver's loop for what takes long, and the box in which the loop finds what
// came of it.
//
// A task runs on the thread and returns an item, which the loop runs. Tasks have their own
// deadlines; one that is stuck all the same is left behind rather than waited for, so tasks and
// items hold what they need by value or shared_ptr, and items may name the driver: they are only
// ever run by its loop.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "common/clock.h"
#include "common/file.h"

namespace surefoot {

class Inbox {
 public:
  using Item = std::function<void()>;
  Inbox();
  void put(Item item);                                         // any thread
  [[nodiscard]] std::vector<Item> take();                      // the loop
  [[nodiscard]] int event_fd() const { return event_.get(); }  // readable: there is something

 private:
  Fd event_;
  std::mutex mutex_;
  std::vector<Item> items_;
};

class TaskThread {
 public:
  using Task = std::function<Inbox::Item()>;

  explicit TaskThread(std::shared_ptr<Inbox> inbox);
  // Drops what waits. A task that runs goes on by itself, and its item is lost.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;

  void start(Task task);
  // Nothing waits or runs.
  [[nodiscard]] bool idle() const;
  // Until nothing waits or runs, or the deadline.
  void finish(Time deadline);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace surefoot
