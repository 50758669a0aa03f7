// Has the driver load kernels now. Otherwise it does at the first launch of each, when others may
// have taken all memory, or while a kernel of NCCL waits for a peer: it waits for that.
#pragma once

#include <cuda_runtime_api.h>

#include <initializer_list>

namespace surefoot::cuda {

inline cudaError_t load(std::initializer_list<const void*> kernels) {
  cudaFuncAttributes attributes;
  for (const void* kernel : kernels) {
    if (const cudaError_t failed = cudaFuncGetAttributes(&attributes, kernel);
        failed != cudaSuccess)
      return failed;
  }
  return cudaSuccess;
}

}  // namespace surefoot::cuda
