#include "collectives/nccl/load.h"
#include "worker/cross_entropy_kernel.h"
#include "worker/cuda/kernels.h"

namespace surefoot::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kernel::kMostRowThreads) forward(CrossEntropy work) {
  __shared__ kernel::RowMemory memory;
  kernel::cross_entropy<T>(kernel::DeviceBlock(), work, memory);
}

template <class T>
__global__ void __launch_bounds__(kernel::kMostRowThreads) backward(CrossEntropyGradient work) {
  kernel::cross_entropy_gradient<T>(kernel::DeviceBlock(), work);
}

template <class Work, class Kernel>
cudaError_t launch_rows(const Work& work, cudaStream_t stream, Kernel* fp32, Kernel* bf16) {
  if (work.logits.rows == 0) return cudaSuccess;
  Kernel* const kernel = work.logits.format == NumberFormat::kBf16 ? bf16 : fp32;
  const auto blocks = static_cast<unsigned>(work.logits.rows);
  kernel<<<blocks, kernel::threads_for(work.logits), 0, stream>>>(work);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch(const CrossEntropy& work, cudaStream_t stream) {
  return launch_rows(work, stream, forward<float>, forward<kernel::Bf16>);
}

cudaError_t launch(const CrossEntropyGradient& work, cudaStream_t stream) {
  return launch_rows(work, stream, backward<float>, backward<kernel::Bf16>);
}

cudaError_t load_cross_entropy() {
  return load({reinterpret_cast<const void*>(forward<float>),
               reinterpret_cast<const void*>(forward<kernel::Bf16>),
               reinterpret_cast<const void*>(backward<float>),
               reinterpret_cast<const void*>(backward<kernel::Bf16>)});
}

}  // namespace surefoot::cuda
