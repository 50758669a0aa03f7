// The update of a GPU on the fake of CUDA: the processor does it, in its turn on the stream.
#include "collectives/nccl/testing/fake_gpu.h"
#include "worker/cuda/update.h"
#include "worker/testing/host_device.h"

namespace surefoot {

cudaError_t load_update() {
  return cudaSuccess;
}

cudaError_t launch_update(const DeviceUpdate& update, cudaStream_t stream) {
  return testing::fake_gpu::launch(stream, [update] { testing::update_on_host(update); });
}

}  // namespace surefoot
