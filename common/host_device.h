// For functions whose arithmetic runs on the processor and on a GPU alike: compiled by nvcc for
// both, by any other compiler as if the word were not there. With --fmad=false there and
// -ffp-contract=off here both round every operation by itself, so the bits are the same.
#pragma once

#ifdef __CUDACC__
#define SUREFOOT_HOST_DEVICE __host__ __device__
#else
#define SUREFOOT_HOST_DEVICE
#endif
