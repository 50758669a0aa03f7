// The kernels of the reduction: kernel_arithmetic.h over whole arrays. Each enqueues one launch on
// the stream and returns; what it returns is CUDA's answer to the launch. Pointers are to memory of
// the current device, as device_work.h says of them.
//
// Bits do not depend on the launch's shape: elements are independent, and a block's sum of squares
// has its order written down (kernel::lane_square_sum, sum_of_lanes).
#pragma once

#include <cuda_runtime_api.h>

#include "collectives/device_work.h"

namespace surefoot::cuda {

// A Tree whose tables lie on the device: there can be hundreds of roots, more than a launch's
// arguments hold.
struct DeviceTree {
  const kernel::Root* roots = nullptr;
  const std::int32_t* additions_after = nullptr;
  int count = 0;
  int depth = 0;
  NumberFormat format = NumberFormat::kFp32;
};

[[nodiscard]] cudaError_t add_up(const AddUp& work, cudaStream_t stream);
[[nodiscard]] cudaError_t pack(const Pack& work, cudaStream_t stream);
[[nodiscard]] cudaError_t unpack(const Unpack& work, cudaStream_t stream);
[[nodiscard]] cudaError_t finish_tree(const FinishTree& work, const DeviceTree& tree,
                                      cudaStream_t stream);

// CUDA loads a kernel when it is first launched, and may wait for the device to do so: which waits
// for a peer when NCCL's kernels run already. So all are loaded before the first exchange.
[[nodiscard]] cudaError_t load_kernels();

}  // namespace surefoot::cuda
