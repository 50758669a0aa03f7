// The update on a GPU: one kernel for all parameters and one for the model's buffers, with the
// arithmetic of update_arithmetic.h. Memory is the limit: AdamW reads 16 and writes 12 bytes an
// element.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/device_update.h"

namespace surefoot {

// Has the driver load the kernels now. Otherwise it does at the first launch, when libtorch may
// have taken all memory.
cudaError_t load_update();
// Enqueues; a launch that fails is the error.
cudaError_t launch_update(const DeviceUpdate& update, cudaStream_t stream);

}  // namespace surefoot
