// What CudaDevice does when CUDA refuses something: on the fake only, which can be told to.
#include <gtest/gtest.h>

#include <cstdlib>

#include "collectives/device_stream.h"
#include "collectives/nccl/testing/fake_gpu.h"
#include "worker/cuda/cuda_device.h"
#include "worker/device.h"
#include "worker/testing/test_device.h"

namespace surefoot {
namespace {

namespace fake_gpu = testing::fake_gpu;

class Refused : public ::testing::Test {
 protected:
  void TearDown() override { fake_gpu::reset(); }
  static void expect_named(const Status& status) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kRestart);
    for (const char* word : {"the update", "cudaErrorIllegalAddress"})
      EXPECT_NE(status.error().message.find(word), std::string::npos) << status.error().message;
  }
  const std::unique_ptr<Device> device_ = testing::make_test_device();
};

// A snapshot of what was before would be taken for the step's.
TEST_F(Refused, NothingIsMarkedAfterAnUpdateThatWasRefused) {
  ASSERT_TRUE(device_->mark());
  fake_gpu::refuse_next_launch(cudaErrorIllegalAddress);
  device_->enqueue(DeviceUpdate{});
  expect_named(device_->mark());
  expect_named(device_->wait(now() + std::chrono::seconds(10), "the test"));
}

TEST_F(Refused, MemoryThatCannotBeClearedIsNotGivenOut) {
  fake_gpu::refuse_next_launch(cudaErrorIllegalAddress);
  const auto memory = device_->allocate(100, "a test");
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Code::kRestart);
}

TEST_F(Refused, MemoryThatIsNotThereIsToldWithTheNumbers) {
  fake_gpu::limit_memory(std::size_t{3} << 20);
  const auto memory = device_->allocate(std::int64_t{4} << 20, "the training state");
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Code::kNoSpace);
  for (const char* word : {"the training state", "3 MiB of", "needed are 4 MiB"})
    EXPECT_NE(memory.error().message.find(word), std::string::npos) << memory.error().message;
}

TEST(StartOnGpuDeathTest, ADriverThatDoesNotStartEndsTheProcessForAnotherAttempt) {
  config::Job job;
  job.mutable_resources()->set_device(config::Resources::cuda);
  job.mutable_recovery()->set_startup_timeout(100);
  EXPECT_EXIT(
      {
        fake_gpu::hang_at_start();
        (void)open_device(job, 0, 1);
      },
      ::testing::ExitedWithCode(76), "CUDA's start did not return in time");
}

TEST(StartOnGpu, AWorkerSeesItsOwnGpuOnly) {
  config::Job job;
  job.mutable_resources()->set_device(config::Resources::cuda);
  job.mutable_resources()->add_devices("3");
  job.mutable_recovery()->set_startup_timeout(100);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const auto device = open_device(job, 0, 1);
  const std::string visible = ::getenv("CUDA_VISIBLE_DEVICES");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_TRUE(device) << device.error().message;
  EXPECT_NE(*device, nullptr);
  EXPECT_EQ(visible, "3");
}

}  // namespace

cudaStream_t computation_stream() {
  cudaStream_t made = nullptr;
  SUREFOOT_CHECK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking) == cudaSuccess);
  return made;
}

}  // namespace surefoot
