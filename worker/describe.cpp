#include "worker/describe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/arena.h"
#include "collectives/reduction_tree.h"

namespace surefoot {

std::string describe(const config::Job& job, const Model& model, const Dataset& dataset,
                     const TrainingIdentity& identity, const std::string& numerics_id) {
  const int micro_batches =
      static_cast<int>(job.train().global_batch_size() / job.train().micro_batch_size());
  const int workers =
      std::clamp(job.resources().num_nodes().max() * job.resources().workers_per_node().max(), 1,
                 micro_batches);
  const std::int64_t vector_bytes = (model.gradient_elements() + model.buffer_elements()) *
                                    static_cast<std::int64_t>(sizeof(float));
  int buffers = 0;
  std::int64_t roots = 0;
  for (int rank = 0; rank < workers; ++rank) {
    const TreeNode mine = micro_batches_of(rank, workers, micro_batches);
    const LocalSchedule schedule = local_schedule(mine.begin, mine.end, micro_batches);
    buffers = std::max(buffers, schedule.slot_count);
    roots += static_cast<std::int64_t>(schedule.root_slots.size());
  }
  const double samples =
      static_cast<double>(job.train().max_steps() * job.train().global_batch_size());
  const nlohmann::json needs = {
      {"parameters", model.parameter_count()},
      {"state_bytes", model.layout().bytes},
      {"arena_bytes", kSlots * model.layout().bytes},
      {"gradient_buffers", buffers},
      {"gradient_buffer_bytes", buffers * vector_bytes},
      {"receive_bytes", workers > 1 ? roots * vector_bytes / workers : 0},
      {"workers", workers},
      {"micro_batches", micro_batches},
      {"samples", dataset.size(Split::kTrain)},
      {"eval_samples", dataset.size(Split::kEval)},
      {"steps", job.train().max_steps()},
      {"epochs", samples / static_cast<double>(dataset.size(Split::kTrain))},
      {"flops_per_sample", model.flops_per_sample()},
      {"numerics_id", numerics_id},
      {"training_hash", identity.hash.hex()},
      {"training_lines", identity.lines},
  };
  return needs.dump();
}

}  // namespace surefoot
