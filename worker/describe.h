// What a job will need and where it would give the same bits, for `surefoot validate` and for the
// check of a node before it is taken.
#pragma once

#include <string>

#include "configs/job.h"
#include "worker/data.h"
#include "worker/model.h"

namespace surefoot {

// One JSON object: parameters, state_bytes, arena_bytes (per node), gradient_buffer_bytes and
// receive_bytes (per worker, for the largest number of workers), samples, eval_samples, steps,
// epochs, micro_batches, flops_per_sample; numerics_id, and training_hash (hex) with
// training_lines, of `identity`.
[[nodiscard]] std::string describe(const config::Job& job, const Model& model,
                                   const Dataset& dataset, const TrainingIdentity& identity,
                                   const std::string& numerics_id);

}  // namespace surefoot
