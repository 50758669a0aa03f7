// What a job will need, for `surefoot validate`.
#pragma once

#include <string>

#include "configs/job.pb.h"
#include "worker/data.h"
#include "worker/model.h"

namespace surefoot {

// One JSON object: parameters, state_bytes, arena_bytes (per node), gradient_buffer_bytes and
// receive_bytes (per worker, for the largest number of workers), samples, eval_samples, steps,
// epochs, micro_batches, flops_per_sample.
[[nodiscard]] std::string describe(const config::Job& job, const Model& model,
                                   const Dataset& dataset);

}  // namespace surefoot
