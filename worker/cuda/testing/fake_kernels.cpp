// The kernels of a GPU on the fake of CUDA: the processor does their work, in its turn on the
// stream.
#include "collectives/nccl/testing/fake_gpu.h"
#include "worker/cuda/kernels.h"
#include "worker/testing/host_device.h"

namespace surefoot::cuda {
namespace {

cudaError_t on_host(const Computation& work, cudaStream_t stream) {
  return testing::fake_gpu::launch(stream, [work] { testing::compute_on_host(work); });
}

}  // namespace

cudaError_t load_update() {
  return cudaSuccess;
}
cudaError_t load_cross_entropy() {
  return cudaSuccess;
}
cudaError_t launch(const DeviceUpdate& update, cudaStream_t stream) {
  return on_host(update, stream);
}
cudaError_t launch(const CrossEntropy& work, cudaStream_t stream) {
  return on_host(work, stream);
}
cudaError_t launch(const CrossEntropyGradient& work, cudaStream_t stream) {
  return on_host(work, stream);
}

}  // namespace surefoot::cuda
