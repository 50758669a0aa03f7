// What CudaDevice launches: the update (one kernel for all parameters and one for the model's
// buffers, with the arithmetic of update_arithmetic.h) and the loss (cross_entropy_kernel.h).
// Memory is the limit of both: AdamW reads 16 and writes 12 bytes an element, the loss reads each
// logit twice and writes its gradient once.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/device_computation.h"

namespace surefoot::cuda {

// Before anything is launched (load.h).
cudaError_t load_update();
cudaError_t load_cross_entropy();

// Each enqueues; a launch that fails is the error.
cudaError_t launch(const DeviceUpdate& update, cudaStream_t stream);
cudaError_t launch(const CrossEntropy& work, cudaStream_t stream);
cudaError_t launch(const CrossEntropyGradient& work, cudaStream_t stream);

}  // namespace surefoot::cuda
