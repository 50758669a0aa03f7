#include "launcher/task_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>
#include <utility>

namespace surefoot {

Inbox::Inbox() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Inbox::put(Item item) {
  const std::lock_guard lock(mutex_);
  items_.push_back(std::move(item));
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(event_.get(), &one, sizeof one);
}

std::vector<Inbox::Item> Inbox::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
  const std::lock_guard lock(mutex_);
  return std::exchange(items_, {});
}

struct TaskThread::Shared {
  std::shared_ptr<Inbox> inbox;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  bool running = false;
  bool closing = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return closing || !tasks.empty(); });
      if (closing) return;
      Task task = std::move(tasks.front());
      tasks.pop_front();
      running = true;
      lock.unlock();
      Inbox::Item item = task();
      task = nullptr;
      lock.lock();
      running = false;
      if (!closing && item) inbox->put(std::move(item));
      changed.notify_all();
    }
  }
};

TaskThread::TaskThread(std::shared_ptr<Inbox> inbox) : shared_(std::make_shared<Shared>()) {
  shared_->inbox = std::move(inbox);
  std::thread([shared = shared_] { shared->run(); }).detach();
}

TaskThread::~TaskThread() {
  const std::lock_guard lock(shared_->mutex);
  shared_->closing = true;
  shared_->tasks.clear();
  shared_->changed.notify_all();
}

void TaskThread::start(Task task) {
  const std::lock_guard lock(shared_->mutex);
  shared_->tasks.push_back(std::move(task));
  shared_->changed.notify_all();
}

bool TaskThread::idle() const {
  const std::lock_guard lock(shared_->mutex);
  return !shared_->running && shared_->tasks.empty();
}

void TaskThread::finish(Time deadline) {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_until(lock, deadline,
                              [&] { return !shared_->running && shared_->tasks.empty(); });
}

}  // namespace surefoot
