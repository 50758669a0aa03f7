// The only source that knows c10::cuda. Debian's libtorch has its headers without their
// configuration (C10_CUDA_NO_CMAKE_CONFIGURE_FILE): there it only compiles.
#include <c10/cuda/CUDAStream.h>

#include "worker/cuda/cuda_device.h"

namespace surefoot {

cudaStream_t computation_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

}  // namespace surefoot
