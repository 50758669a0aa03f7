// Device on a GPU, without libtorch and without ranks. Label gpu.
#include "worker/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <atomic>

#include "collectives/device_stream.h"
#include "worker/device_contract.h"

namespace surefoot {
namespace {

cudaStream_t stream() {
  static cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    SUREFOOT_CHECK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking) == cudaSuccess);
    return made;
  }();
  return stream;
}

struct Gpu {
  static std::unique_ptr<Device> open() {
    auto device = CudaDevice::open(1, stream());
    EXPECT_TRUE(device) << (device ? "" : device.error().message);
    if (!device) return nullptr;
    return std::move(*device);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, DeviceContract, Gpu);

// Keeps the computation's stream busy until it is told to go on.
class Busy {
 public:
  Busy() { SUREFOOT_CHECK(cudaLaunchHostFunc(stream(), &Busy::work, this) == cudaSuccess); }
  ~Busy() { end(); }
  void end() {
    ended_ = true;
    ended_.notify_all();
    (void)cudaStreamSynchronize(stream());
  }

 private:
  static void work(void* self) { static_cast<Busy*>(self)->ended_.wait(false); }
  std::atomic<bool> ended_ = false;
};

TEST(CudaDevice, AWaitEndsAtItsDeadlineAndSaysForWhat) {
  const auto device = Gpu::open();
  Busy busy;
  const Time begin = now();
  const Status status = device->wait(begin + std::chrono::milliseconds(200), "the test");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kRestart);
  EXPECT_NE(status.error().message.find("the test"), std::string::npos) << status.error().message;
  EXPECT_LT(now() - begin, std::chrono::seconds(5));
}

TEST(CudaDevice, ASnapshotDoesNotWaitForWhatWasEnqueuedAfterItsMark) {
  const auto device = Gpu::open();
  const auto memory = device->allocate(1 << 20, "the test");
  ASSERT_TRUE(memory);
  device->mark();
  Busy busy;
  std::vector<std::byte> copy(memory->size());
  const ByteRange all{0, static_cast<std::int64_t>(copy.size())};
  EXPECT_TRUE(
      device->download(memory->data(), copy, std::span(&all, 1), now() + std::chrono::seconds(10)));
}

TEST(CudaDevice, ASnapshotWaitsForWhatWasEnqueuedBeforeItsMark) {
  const auto device = Gpu::open();
  const auto memory = device->allocate(1 << 20, "the test");
  ASSERT_TRUE(memory);
  Busy busy;
  device->mark();
  std::vector<std::byte> copy(memory->size());
  const ByteRange all{0, static_cast<std::int64_t>(copy.size())};
  const auto download = [&](Duration patience) {
    return device->download(memory->data(), copy, std::span(&all, 1), now() + patience);
  };
  EXPECT_FALSE(download(std::chrono::milliseconds(200)));
  busy.end();
  EXPECT_TRUE(download(std::chrono::seconds(10)));
}

TEST(CudaDevice, PinsTheMemoryOfTheHost) {
  const auto device = Gpu::open();
  std::vector<std::byte> memory(1 << 22);
  device->pin(memory);
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, memory.data()), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_EQ(cudaHostUnregister(memory.data()), cudaSuccess);
}

TEST(CudaDevice, TellsWhatDecidesTheBits) {
  const auto device = Gpu::open();
  EXPECT_TRUE(device->facts().is_cuda);
  EXPECT_NE(device->facts().numerics.find(device->facts().name), std::string::npos);
  EXPECT_NE(device->facts().numerics.find(" SMs"), std::string::npos);
  EXPECT_NE(device->facts().numerics.find("CUDA 1"), std::string::npos);
}

}  // namespace
}  // namespace surefoot
