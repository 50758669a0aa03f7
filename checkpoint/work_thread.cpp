#include "checkpoint/work_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace surefoot {

WorkThread::WorkThread()
    : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { run(); }) {}

WorkThread::~WorkThread() {
  (void)close(now());
  thread_.join();
}

bool WorkThread::close(Time deadline) {
  std::unique_lock lock(mutex_);
  closing_ = true;
  queue_.clear();
  stopping_ = true;
  changed_.notify_all();
  return changed_.wait_until(lock, deadline, [this] { return closed_; });
}

void WorkThread::start(Work work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    ++unfinished_;
  }
  changed_.notify_all();
}

std::size_t WorkThread::unfinished() const {
  const std::lock_guard lock(mutex_);
  return unfinished_;
}

std::vector<WorkThread::Outcome> WorkThread::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
  const std::lock_guard lock(mutex_);
  unfinished_ -= outcomes_.size();
  return std::exchange(outcomes_, {});
}

void WorkThread::interrupt() {
  const std::lock_guard lock(mutex_);
  if (running_) stopping_ = true;
}

void WorkThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (closing_) break;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    lock.unlock();
    Outcome outcome = work();
    work = nullptr;  // what it holds is let go before its outcome is seen
    lock.lock();
    running_ = false;
    if (!closing_) stopping_ = false;
    outcomes_.push_back(std::move(outcome));
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = ::write(event_.get(), &one, sizeof one);
  }
  closed_ = true;
  changed_.notify_all();
}

}  // namespace surefoot
