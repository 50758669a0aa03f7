#include "collectives/nccl/kernels.h"

#include <algorithm>

#include "collectives/nccl/load.h"
#include "common/check.h"

namespace surefoot::cuda {
namespace {

constexpr int kThreads = 256;
// Enough to fill any device several times over; threads go on to further elements.
constexpr std::int64_t kMostBlocks = 1 << 14;

unsigned blocks_for(std::int64_t elements) {
  return static_cast<unsigned>(std::min((elements + kThreads - 1) / kThreads, kMostBlocks));
}

__device__ std::int64_t first_element() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ std::int64_t stride() {
  return static_cast<std::int64_t>(gridDim.x) * kThreads;
}

struct Slots {
  float* at[AddUp::kMaxSlots];
  int count;
};

__global__ void add_up_kernel(Slots slots, std::int64_t elements, NumberFormat format) {
  for (std::int64_t i = first_element(); i < elements; i += stride())
    kernel::add_up(slots.at, slots.count, i, format);
}

__global__ void pack_kernel(const float* from, kernel::Bf16* to, std::int64_t elements) {
  for (std::int64_t i = first_element(); i < elements; i += stride())
    to[i] = kernel::to_bf16(from[i]);
}

__global__ void unpack_kernel(const kernel::Bf16* from, float* to, std::int64_t elements) {
  for (std::int64_t i = first_element(); i < elements; i += stride())
    to[i] = kernel::from_bf16(from[i]);
}

// In shared memory, a column for each thread: neighbours in different banks.
struct SharedStack {
  float* column;
  SUREFOOT_HOST_DEVICE inline void put(int depth, float value) { column[depth * kThreads] = value; }
  SUREFOOT_HOST_DEVICE inline float get(int depth) const { return column[depth * kThreads]; }
};

// A thread block for each block of the norm. The sixteen lanes are what sixteen threads add up one
// after the other; meanwhile other thread blocks keep the memory busy.
__global__ void finish_tree_kernel(DeviceTree tree, std::int64_t begin, void* to,
                                   NumberFormat to_format, double* square_sums) {
  extern __shared__ float shared[];
  __shared__ double lanes[kLanes];
  float* const sums = shared;
  SharedStack stack{shared + kBlockElements + threadIdx.x};
  const std::int64_t block_begin = static_cast<std::int64_t>(blockIdx.x) * kBlockElements;
  for (int i = static_cast<int>(threadIdx.x); i < kBlockElements; i += kThreads) {
    const std::int64_t at = block_begin + i;
    const float sum = kernel::finish(tree.roots, tree.additions_after, tree.count, begin + at,
                                     begin, tree.format, stack);
    sums[i] = sum;
    if (to_format == NumberFormat::kBf16) {
      static_cast<kernel::Bf16*>(to)[at] = kernel::to_bf16(sum);
    } else {
      static_cast<float*>(to)[at] = sum;
    }
  }
  if (square_sums == nullptr) return;
  __syncthreads();
  if (threadIdx.x < kLanes)
    lanes[threadIdx.x] = kernel::lane_square_sum(sums, static_cast<int>(threadIdx.x));
  __syncthreads();
  if (threadIdx.x == 0) square_sums[blockIdx.x] = kernel::sum_of_lanes(lanes);
}

constexpr std::size_t shared_bytes(int depth) {
  return static_cast<std::size_t>(kBlockElements + depth * kThreads) * sizeof(float);
}
static_assert(shared_bytes(Tree::kMaxDepth) + kLanes * sizeof(double) <= 48 * 1024,
              "what every device has without asking");

}  // namespace

cudaError_t add_up(const AddUp& work, cudaStream_t stream) {
  if (work.elements == 0) return cudaSuccess;
  SUREFOOT_CHECK(2 <= work.slots.size() && work.slots.size() <= AddUp::kMaxSlots);
  Slots slots;
  slots.count = static_cast<int>(work.slots.size());
  std::copy(work.slots.begin(), work.slots.end(), slots.at);
  add_up_kernel<<<blocks_for(work.elements), kThreads, 0, stream>>>(slots, work.elements,
                                                                    work.format);
  return cudaGetLastError();
}

cudaError_t pack(const Pack& work, cudaStream_t stream) {
  if (work.elements == 0) return cudaSuccess;
  pack_kernel<<<blocks_for(work.elements), kThreads, 0, stream>>>(work.from, work.to,
                                                                  work.elements);
  return cudaGetLastError();
}

cudaError_t unpack(const Unpack& work, cudaStream_t stream) {
  if (work.elements == 0) return cudaSuccess;
  unpack_kernel<<<blocks_for(work.elements), kThreads, 0, stream>>>(work.from, work.to,
                                                                    work.elements);
  return cudaGetLastError();
}

cudaError_t finish_tree(const FinishTree& work, const DeviceTree& tree, cudaStream_t stream) {
  if (work.begin == work.end) return cudaSuccess;
  SUREFOOT_CHECK((work.end - work.begin) % kBlockElements == 0 && tree.depth <= Tree::kMaxDepth);
  const auto blocks = static_cast<unsigned>((work.end - work.begin) / kBlockElements);
  finish_tree_kernel<<<blocks, kThreads, shared_bytes(tree.depth), stream>>>(
      tree, work.begin, work.to, work.to_format, work.square_sums);
  return cudaGetLastError();
}

cudaError_t load_kernels() {
  return load({reinterpret_cast<const void*>(add_up_kernel),
               reinterpret_cast<const void*>(pack_kernel),
               reinterpret_cast<const void*>(unpack_kernel),
               reinterpret_cast<const void*>(finish_tree_kernel)});
}

}  // namespace surefoot::cuda
