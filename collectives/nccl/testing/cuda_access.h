// A test's way to the memory of a GPU. Computation runs on a stream of its own, and late, so that a
// missing order() shows.
#pragma once

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "collectives/testing/device_access.h"

namespace surefoot::testing {

class CudaAccess final : public DeviceAccess {
 public:
  CudaAccess() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    void* ring = nullptr;
    check(cudaHostAlloc(&ring, kRing, cudaHostAllocDefault));
    ring_ = static_cast<std::byte*>(ring);
  }
  ~CudaAccess() override {
    (void)cudaStreamDestroy(stream_);
    (void)cudaFreeHost(ring_);
  }
  CudaAccess(const CudaAccess&) = delete;
  CudaAccess& operator=(const CudaAccess&) = delete;

  [[nodiscard]] cudaStream_t stream() const { return stream_; }

  void write_bytes(void* to, std::span<const std::byte> from) override {
    ASSERT_LE(from.size(), kRing);
    if (used_ + from.size() > kRing) {
      check(cudaStreamSynchronize(stream_));
      used_ = 0;
    }
    std::byte* const copy = ring_ + used_;
    used_ += from.size();
    std::copy(from.begin(), from.end(), copy);
    check(cudaLaunchHostFunc(
        stream_, [](void*) { std::this_thread::sleep_for(std::chrono::microseconds(50)); },
        nullptr));
    check(cudaMemcpyAsync(to, copy, from.size(), cudaMemcpyHostToDevice, stream_));
  }
  void expect_zero_bytes(std::span<const std::byte> bytes) override {
    const std::vector<std::byte> got = read_bytes(bytes);
    EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](auto b) { return b == std::byte{0}; }));
  }
  std::vector<std::byte> read_bytes(std::span<const std::byte> from) override {
    std::vector<std::byte> bytes(from.size());
    check(cudaMemcpyAsync(bytes.data(), from.data(), from.size(), cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
    return bytes;
  }

 private:
  // Pinned, or the copy would not run beside the host.
  static constexpr std::size_t kRing = std::size_t{64} << 20;
  static void check(cudaError_t answer) {
    ASSERT_EQ(answer, cudaSuccess) << cudaGetErrorString(answer);
  }
  cudaStream_t stream_ = nullptr;
  std::byte* ring_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace surefoot::testing
