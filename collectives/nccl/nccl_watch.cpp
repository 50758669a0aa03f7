#include "collectives/nccl/nccl_watch.h"

#include <fmt/format.h>

namespace surefoot {

NcclWatch::NcclWatch(Options options) : options_(std::move(options)), thread_([this] { run(); }) {}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

NcclWatch::Call::Call(NcclWatch& watch, const char* name) : watch_(watch) {
  watch_.call_begun_ = now();
  while (watch_.is_taken_.exchange(true)) std::this_thread::yield();
  watch_.call_ = name;
}

NcclWatch::Call::~Call() {
  watch_.call_ = nullptr;
  watch_.is_taken_ = false;
}

void NcclWatch::run() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, options_.interval, [this] { return has_ended_; })) {
    const std::string reason = look();
    if (reason.empty()) continue;
    lock.unlock();
    if (options_.on_failure) options_.on_failure(reason);
    return;
  }
}

std::string NcclWatch::look() {
  if (!is_taken_.exchange(true)) {
    std::string reason = options_.look();
    is_taken_ = false;
    return reason;
  }
  const char* const call = call_;
  const Duration taken = now() - call_begun_.load();
  if (call == nullptr || taken < options_.call_timeout) return {};
  return fmt::format("{} has not returned for {:.0f} s", call, seconds(taken));
}

}  // namespace surefoot
