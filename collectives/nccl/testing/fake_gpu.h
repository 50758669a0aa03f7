// Stand-ins for what nccl_stream.cpp and cuda_device.cpp call of CUDA's runtime, of NCCL and of
// kernels.h: linked instead of them, so that they are tested where there is no GPU. Ranks are
// threads of one process.
//
// Model. A stream is a thread that does its work in order, beside all others: so a missing order()
// is a race. Device memory is the process's, full of garbage. NCCL's calls count only within a
// group; its end returns ncclInProgress, and the work begins once the communicator has been asked a
// few times. Messages between two ranks meet in order; sizes that differ end the process, and so do
// two threads in calls of one communicator at the same time, or a group begun while another is
// still in progress: what would corrupt NCCL silently. Not modelled: a peer's connection set-up,
// kernels that take turns, anything of speed.
//
// Faults are for the whole process, until reset().
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <functional>

namespace surefoot::testing::fake_gpu {

// What every communicator says of itself from now on, as when a peer's socket has been closed.
void fail_communicators(ncclResult_t state);
// Groups never get out of ncclInProgress.
void never_complete();
// The next memset or kernel is refused.
void refuse_next_launch(cudaError_t answer);
// The first call, and every later one, does not return.
void hang_at_start();
// More than this at once is not there.
void limit_memory(std::size_t bytes);
void reset();

// A kernel: `work` in its turn on the stream, or the refusal that was asked for.
cudaError_t launch(cudaStream_t stream, std::function<void()> work);

}  // namespace surefoot::testing::fake_gpu
