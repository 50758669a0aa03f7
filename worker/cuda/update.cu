#include <algorithm>

#include "collectives/nccl/load.h"
#include "worker/cuda/kernels.h"

namespace surefoot::cuda {
namespace {

constexpr int kThreads = 256;
// Each thread takes several elements in turn; enough blocks for every multiprocessor of any GPU.
constexpr std::int64_t kMaxBlocks = 8192;

int blocks_for(std::int64_t elements) {
  return static_cast<int>(
      std::clamp<std::int64_t>((elements + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

// Whether `element` lies in one of the ranges, which are ascending and disjoint.
__device__ bool is_in(const ElementRange* ranges, std::int64_t count, std::int64_t element) {
  std::int64_t low = 0;
  std::int64_t high = count;  // the first range that ends behind the element is in [low, high]
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (ranges[middle].end <= element) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && ranges[low].begin <= element;
}

__device__ std::int64_t first_element() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ std::int64_t stride() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

__global__ void adamw(std::int64_t elements, AdamWScalars s, const ElementRange* decayed,
                      std::int64_t decayed_count, const float* sum, float* p, float* m, float* v) {
  for (std::int64_t i = first_element(); i < elements; i += stride()) {
    const float keep = is_in(decayed, decayed_count, i) ? s.keep_decayed : 1.0F;
    adamw_element(s, keep, sum[i], p[i], m[i], v[i], p[i], m[i], v[i]);
  }
}

__global__ void sgd(std::int64_t elements, SgdScalars s, const ElementRange* decayed,
                    std::int64_t decayed_count, const float* sum, float* p, float* m) {
  for (std::int64_t i = first_element(); i < elements; i += stride()) {
    const float decay = is_in(decayed, decayed_count, i) ? s.decay : 0.0F;
    sgd_element(s, decay, sum[i], p[i], m[i], p[i], m[i]);
  }
}

__global__ void change_buffers(std::int64_t elements, float micro_batches, const float* changes,
                               float* buffers) {
  for (std::int64_t i = first_element(); i < elements; i += stride())
    buffers[i] = changed_buffer(buffers[i], changes[i], micro_batches);
}

}  // namespace

cudaError_t load_update() {
  return load({reinterpret_cast<const void*>(adamw), reinterpret_cast<const void*>(sgd),
               reinterpret_cast<const void*>(change_buffers)});
}

cudaError_t launch(const DeviceUpdate& update, cudaStream_t stream) {
  const int blocks = blocks_for(update.elements);
  if (const auto* s = std::get_if<AdamWScalars>(&update.scalars)) {
    adamw<<<blocks, kThreads, 0, stream>>>(update.elements, *s, update.decayed,
                                           update.decayed_count, update.gradient_sum,
                                           update.parameters, update.moments[0], update.moments[1]);
  } else {
    sgd<<<blocks, kThreads, 0, stream>>>(update.elements, std::get<SgdScalars>(update.scalars),
                                         update.decayed, update.decayed_count, update.gradient_sum,
                                         update.parameters, update.moments[0]);
  }
  if (const cudaError_t failed = cudaGetLastError(); failed != cudaSuccess) return failed;
  if (update.buffer_elements > 0) {
    change_buffers<<<blocks_for(update.buffer_elements), kThreads, 0, stream>>>(
        update.buffer_elements, update.micro_batches, update.buffer_changes, update.buffers);
  }
  return cudaGetLastError();
}

}  // namespace surefoot::cuda
