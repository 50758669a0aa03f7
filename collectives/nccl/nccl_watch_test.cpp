#include "collectives/nccl/nccl_watch.h"

#include <gtest/gtest.h>

#include <future>

namespace surefoot {
namespace {

using std::chrono::milliseconds;

struct Failure {
  std::promise<std::string> promise;
  std::future<std::string> reason = promise.get_future();
  std::function<void(std::string)> callback() {
    return [this](std::string text) { promise.set_value(std::move(text)); };
  }
  std::string get() {
    return reason.wait_for(std::chrono::seconds(60)) == std::future_status::ready ? reason.get()
                                                                                  : "nothing came";
  }
};

TEST(NcclWatch, TellsAFailureOnce) {
  Failure failure;
  std::atomic<int> looks = 0;
  NcclWatch watch({.look = [&] { return ++looks >= 3 ? "a peer is gone" : ""; },
                   .on_failure = failure.callback(),
                   .interval = milliseconds(1)});
  EXPECT_EQ(failure.get(), "a peer is gone");
  // A second call of the callback would throw there.
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(looks, 3);
}

TEST(NcclWatch, NeverLooksWhileTheRankIsInACall) {
  std::atomic<bool> is_in_call = false, was_seen = false;
  std::atomic<int> looks = 0;
  NcclWatch watch({.look =
                       [&] {
                         was_seen = was_seen || is_in_call;
                         ++looks;
                         return std::string();
                       },
                   .interval = milliseconds(0)});
  const Time until = now() + milliseconds(100);
  while (now() < until || looks == 0) {
    const NcclWatch::Call call(watch, "ncclGroupEnd");
    is_in_call = true;
    for (int i = 0; i < 1000; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
    is_in_call = false;
  }
  EXPECT_FALSE(was_seen);
}

TEST(NcclWatch, NamesTheCallThatDoesNotReturn) {
  Failure failure;
  NcclWatch watch({.look = [] { return std::string(); },
                   .on_failure = failure.callback(),
                   .interval = milliseconds(1),
                   .call_timeout = milliseconds(20)});
  const NcclWatch::Call call(watch, "ncclGroupEnd");
  EXPECT_NE(failure.get().find("ncclGroupEnd"), std::string::npos);
}

TEST(NcclWatch, SaysNothingOfManyShortCalls) {
  std::atomic<bool> has_failed = false;
  {
    NcclWatch watch({.look = [] { return std::string(); },
                     .on_failure = [&](const std::string&) { has_failed = true; },
                     .interval = milliseconds(0),
                     .call_timeout = milliseconds(500)});
    const Time until = now() + milliseconds(100);
    while (now() < until) const NcclWatch::Call call(watch, "ncclGroupEnd");
  }
  EXPECT_FALSE(has_failed);
}

}  // namespace
}  // namespace surefoot
