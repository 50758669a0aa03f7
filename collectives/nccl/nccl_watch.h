// Looks at NCCL from a thread of its own, every 100 ms, so that a dead peer or a call that does not
// return is noticed while the rank's thread is inside NCCL, CUDA or the model.
//
// It makes no CUDA call, and never waits for the rank's thread: a Call only marks that NCCL must
// not be looked at now (ncclCommGetAsyncError of a communicator that does not block finishes work
// of other calls, and is not safe beside them). The rank's thread waits for the watch at most as
// long as that one look takes.
//
// On the first failure it calls `on_failure` once, on its own thread, and ends. The callback
// records the reason and ends the process: nothing is aborted or destroyed here, since that can
// hang itself; the gang starts anew.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "common/clock.h"

namespace surefoot {

class NcclWatch {
 public:
  struct Options {
    // Looks once; empty: all is well.
    std::function<std::string()> look;
    std::function<void(std::string reason)> on_failure;  // may be empty
    Duration interval = std::chrono::milliseconds(100);
    Duration call_timeout = std::chrono::seconds(60);  // of a call that should return at once
  };
  explicit NcclWatch(Options options);
  // Joins a thread that sleeps or looks.
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // While one lives, the rank's thread is in a call of the library; `name` must be a literal. Not
  // one in another.
  class Call {
   public:
    Call(NcclWatch& watch, const char* name);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    NcclWatch& watch_;
  };

 private:
  void run();
  [[nodiscard]] std::string look();

  const Options options_;
  std::atomic<bool> is_taken_ = false;  // by a Call, or by a look
  std::atomic<const char*> call_ = nullptr;
  std::atomic<Time> call_begun_{};
  std::mutex mutex_;  // of the sleep only
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace surefoot
