// NcclStream on a fake of CUDA and NCCL (testing/fake_gpu.h): what it does with their answers. On
// the real ones: nccl_test.cpp.
#include "collectives/nccl/nccl_stream.h"

#include <gtest/gtest.h>

#include <barrier>
#include <future>

#include "collectives/device_stream_contract.h"
#include "collectives/nccl/testing/cuda_access.h"
#include "collectives/nccl/testing/fake_gpu.h"

namespace surefoot {
namespace {

namespace fake_gpu = testing::fake_gpu;
using testing::CudaAccess;
using testing::kLongEnough;

struct Threads {
  static std::vector<int> sizes() { return {1, 2, 3, 4}; }
  static void run(int ranks, const std::function<void(DeviceRank&)>& body) {
    testing::on_all_ranks(ranks, [&](LocalGang&, Communicator& communicator) {
      CudaAccess access;
      NcclOptions options;
      options.computation = access.stream();
      options.on_failure = [](const std::string& reason) { ADD_FAILURE() << reason; };
      // As often as it can: the fake ends the process when it looks beside a call.
      options.watch_interval = std::chrono::microseconds(10);
      auto stream = NcclStream::open(communicator, options, now() + kLongEnough);
      ASSERT_TRUE(stream.has_value()) << stream.error().message;
      DeviceRank rank{communicator, **stream, access};
      body(rank);
      const Status closed = (*stream)->close(now() + kLongEnough);
      EXPECT_TRUE(closed.has_value()) << closed.error().message;
    });
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(FakeNccl, DeviceStreamContract, Threads);

// One rank whose device or peers fail. It is never closed: as in a worker, the process would end.
class Failing : public ::testing::Test {
 protected:
  void open(Duration call_timeout) {
    NcclOptions options;
    options.computation = access_.stream();
    options.call_timeout = call_timeout;
    options.on_failure = [this](std::string reason) { reason_.set_value(std::move(reason)); };
    auto opened = NcclStream::open(gang_.communicator(0), options, now() + kLongEnough);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    stream_ = std::move(opened).value();
    auto taken = stream_->allocate(MemoryOf::kDevice, 4096, "a test");
    ASSERT_TRUE(taken.has_value());
    values_ = static_cast<float*>(*taken);
  }
  void TearDown() override {
    stream_.reset();
    fake_gpu::reset();
  }
  // A message to itself is one that NCCL takes.
  void exchange() {
    stream_->enqueue(Queue::kExchange, Exchange{{{0, values_, 4}}, {{0, values_ + 1, 4}}});
  }
  std::string reason() {
    auto future = reason_.get_future();
    return future.wait_for(kLongEnough) == std::future_status::ready ? future.get() : "nothing";
  }
  static void expect_restart(const Status& status, const std::vector<std::string>& words) {
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, Code::kRestart);
    for (const std::string& word : words)
      EXPECT_NE(status.error().message.find(word), std::string::npos)
          << word << ": " << status.error().message;
  }

  LocalGang gang_{1};
  CudaAccess access_;
  std::promise<std::string> reason_;
  std::unique_ptr<NcclStream> stream_;
  float* values_ = nullptr;
};

TEST_F(Failing, AWaitEndsWhenNcclKnowsOfADeadPeerAndTheWatchTellsToo) {
  open(kLongEnough);
  stream_->order(Queue::kComputation, Queue::kExchange);
  // Something that is not done for long.
  for (int i = 0; i < 100; ++i)
    access_.write(std::span(values_, 1), std::span<const float>(values_, 1));
  ASSERT_EQ(
      cudaLaunchHostFunc(
          access_.stream(),
          [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(500)); }, nullptr),
      cudaSuccess);
  stream_->order(Queue::kComputation, Queue::kExchange);
  fake_gpu::fail_communicators(ncclRemoteError);
  const Time begun = now();
  expect_restart(stream_->wait(begun + kLongEnough, "the gradients"),
                 {"remote process exited", "the last words of NCCL", "the gradients"});
  EXPECT_LT(now() - begun, std::chrono::milliseconds(450));
  EXPECT_NE(reason().find("remote process exited"), std::string::npos);
  // It stays so.
  expect_restart(stream_->wait(now() + kLongEnough, "more"), {"remote process exited"});
}

TEST_F(Failing, TheWatchTellsOfADeadPeerWhileTheRankComputes) {
  open(kLongEnough);
  fake_gpu::fail_communicators(ncclRemoteError);
  EXPECT_NE(reason().find("the last words of NCCL"), std::string::npos);
}

TEST_F(Failing, ACallThatStaysInProgressIsGivenUpAndNamed) {
  open(std::chrono::milliseconds(50));
  fake_gpu::never_complete();
  const Time begun = now();
  exchange();
  EXPECT_LT(now() - begun, std::chrono::seconds(10));
  expect_restart(stream_->wait(now() + kLongEnough, "the gradients"), {"ncclSend and ncclRecv"});
}

TEST_F(Failing, ALaunchThatIsRefusedIsNamedByTheNextWaitAndNothingFollowsIt) {
  open(kLongEnough);
  fake_gpu::refuse_next_launch(cudaErrorIllegalAddress);
  stream_->enqueue(Queue::kExchange, AddUp{{values_, values_ + 100}, 10, NumberFormat::kFp32});
  // Were this enqueued, it would be refused by the fake, which knows of no second fault.
  exchange();
  expect_restart(stream_->wait(now() + kLongEnough, "the gradients"),
                 {"add_up", "cudaErrorIllegalAddress"});
}

TEST_F(Failing, MemoryThatIsNotThereIsToldWithTheNumbers) {
  open(kLongEnough);
  fake_gpu::limit_memory(1'000'000);
  const auto none = stream_->allocate(MemoryOf::kDevice, 2'000'000, "a gradient buffer");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, Code::kNoSpace);
  for (const char* word : {"a gradient buffer", "2000000", "1000000"})
    EXPECT_NE(none.error().message.find(word), std::string::npos) << none.error().message;
  EXPECT_TRUE(stream_->wait(now() + kLongEnough, "nothing").has_value());
}

TEST(Opening, ReturnsTheErrorOfTheLowestRankOnAll) {
  std::barrier all_here(3);
  testing::on_all_ranks(3, [&](LocalGang&, Communicator& communicator) {
    CudaAccess access;
    all_here.arrive_and_wait();
    fake_gpu::limit_memory(1);
    NcclOptions options;
    options.computation = access.stream();
    const auto stream = NcclStream::open(communicator, options, now() + kLongEnough);
    ASSERT_FALSE(stream.has_value());
    EXPECT_EQ(stream.error().code, Code::kNoSpace);
    EXPECT_NE(stream.error().message.find("rank 0"), std::string::npos) << stream.error().message;
  });
  fake_gpu::reset();
}

}  // namespace
}  // namespace surefoot
