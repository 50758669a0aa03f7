// Device on a GPU, without libtorch and without ranks: on a real one (label gpu), and on the fake
// of CUDA (testing/fake_gpu.h) where there is none.
#include "worker/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "collectives/device_stream.h"
#include "worker/testing/test_device.h"

namespace surefoot {
namespace {

// Never destroyed, like a worker's.
cudaStream_t make_stream() {
  cudaStream_t made = nullptr;
  SUREFOOT_CHECK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking) == cudaSuccess);
  return made;
}

std::unique_ptr<Device> open(cudaStream_t computation) {
  auto device = CudaDevice::open(1, computation);
  if (!device) {
    ADD_FAILURE() << device.error().message;
    return nullptr;
  }
  return std::move(*device);
}

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(device_, nullptr); }
  const cudaStream_t stream_ = make_stream();
  const std::unique_ptr<Device> device_ = open(stream_);
};

// Keeps the computation's stream busy until it is told to go on.
class Busy {
 public:
  explicit Busy(cudaStream_t stream) : stream_(stream) {
    SUREFOOT_CHECK(cudaLaunchHostFunc(stream_, &Busy::work, this) == cudaSuccess);
  }
  ~Busy() { end(); }
  void end() {
    ended_ = true;
    ended_.notify_all();
    (void)cudaStreamSynchronize(stream_);
  }

 private:
  static void work(void* self) { static_cast<Busy*>(self)->ended_.wait(false); }
  const cudaStream_t stream_;
  std::atomic<bool> ended_ = false;
};

TEST_F(OnGpu, AWaitEndsAtItsDeadlineAndSaysForWhat) {
  Busy busy(stream_);
  const Time begin = now();
  const Status status = device_->wait(begin + std::chrono::milliseconds(200), "the test");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kRestart);
  EXPECT_NE(status.error().message.find("the test"), std::string::npos) << status.error().message;
  EXPECT_LT(now() - begin, std::chrono::seconds(5));
}

TEST_F(OnGpu, ASnapshotDoesNotWaitForWhatWasEnqueuedAfterItsMark) {
  const auto memory = device_->allocate(1 << 20, "the test");
  ASSERT_TRUE(memory);
  ASSERT_TRUE(device_->mark());
  Busy busy(stream_);
  std::vector<std::byte> copy(memory->size());
  const ByteRange all{0, static_cast<std::int64_t>(copy.size())};
  EXPECT_TRUE(device_->download(memory->data(), copy, std::span(&all, 1),
                                now() + std::chrono::seconds(10)));
}

TEST_F(OnGpu, ASnapshotWaitsForWhatWasEnqueuedBeforeItsMark) {
  const auto memory = device_->allocate(1 << 20, "the test");
  ASSERT_TRUE(memory);
  Busy busy(stream_);
  ASSERT_TRUE(device_->mark());
  std::vector<std::byte> copy(memory->size());
  const ByteRange all{0, static_cast<std::int64_t>(copy.size())};
  const auto download = [&](Duration patience) {
    return device_->download(memory->data(), copy, std::span(&all, 1), now() + patience);
  };
  EXPECT_FALSE(download(std::chrono::milliseconds(200)));
  busy.end();
  EXPECT_TRUE(download(std::chrono::seconds(10)));
}

TEST(PinningOnGpu, LastsAsLongAsTheDeviceAndDoesNoHarmWhereItCannotBeHad) {
  std::vector<std::byte> memory(1 << 22);
  const auto type = [&memory] {
    cudaPointerAttributes attributes{};
    EXPECT_EQ(cudaPointerGetAttributes(&attributes, memory.data()), cudaSuccess);
    return attributes.type;
  };
  {
    const auto device = open(make_stream());
    ASSERT_NE(device, nullptr);
    device->pin(memory);
    EXPECT_EQ(type(), cudaMemoryTypeHost);
    device->pin(memory);
    EXPECT_TRUE(device->allocate(1, "a test"));
  }
  EXPECT_EQ(type(), cudaMemoryTypeUnregistered);
}

TEST_F(OnGpu, TellsWhatDecidesTheBits) {
  EXPECT_TRUE(device_->facts().is_cuda);
  EXPECT_NE(device_->facts().numerics.find(device_->facts().name), std::string::npos);
  EXPECT_NE(device_->facts().numerics.find(" SMs"), std::string::npos);
  EXPECT_NE(device_->facts().numerics.find("CUDA 1"), std::string::npos);
  ASSERT_EQ(::setenv("NVIDIA_TF32_OVERRIDE", "0", 1), 0);
  const auto other = open(stream_);
  ::unsetenv("NVIDIA_TF32_OVERRIDE");
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->facts().numerics, device_->facts().numerics + "; NVIDIA_TF32_OVERRIDE=0");
}

}  // namespace

std::unique_ptr<Device> testing::make_test_device() {
  return open(make_stream());
}

}  // namespace surefoot
