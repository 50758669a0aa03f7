// Kernels in which threads work together, written so that the processor can run them too (a test of
// the very source that a GPU runs). A kernel is a template over a block of threads:
//
//   block.each_thread([&](int thread) { ... });   // all of them; then all have come here
//
// On a GPU each thread makes the call for itself and waits for the others. On the processor it is a
// loop over the threads. So nothing that a thread computes outlives the call, unless it is stored
// in the block's shared memory; and what stands between two calls must be the same for all threads.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace surefoot::kernel {

#ifdef __CUDACC__
// The one that this thread belongs to.
class DeviceBlock {
 public:
  __device__ std::int64_t index() const { return blockIdx.x; }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  template <class Body>
  __device__ void each_thread(const Body& body) const {
    body(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
};
#endif

class HostBlock {
 public:
  HostBlock(std::int64_t index, int threads) : index_(index), threads_(threads) {}
  [[nodiscard]] std::int64_t index() const { return index_; }
  [[nodiscard]] int threads() const { return threads_; }
  template <class Body>
  void each_thread(const Body& body) const {
    for (int thread = 0; thread < threads_; ++thread) body(thread);
  }

 private:
  std::int64_t index_;
  int threads_;
};

// One value of each thread -> values[0]; neighbours at half the distance first. `threads` of the
// block is a power of two.
template <class Block, class Combine>
SUREFOOT_HOST_DEVICE inline void combine_all(const Block& block, float* values,
                                             const Combine& combine) {
  for (int width = block.threads() / 2; width > 0; width /= 2) {
    block.each_thread([&](int thread) {
      if (thread < width) values[thread] = combine(values[thread], values[thread + width]);
    });
  }
}

}  // namespace surefoot::kernel
