// Evaluation on held-out data.
//
// Batch e holds the held-out samples [e B, (e+1) B), the last one shorter; rank e mod P computes
// it; sums are added as doubles in batch order, so the result does not depend on P. Leaves
// generator, buffers and training state alone. One thread.
#pragma once

#include "collectives/communicator.h"
#include "worker/data.h"
#include "worker/model.h"

namespace surefoot {

struct Evaluation {
  double loss = 0;       // mean over the samples
  double accuracy = -1;  // share of right answers; -1: the model has none
  std::int64_t samples = 0;
};

class Evaluator {
 public:
  // `batches`: how many, 0 for all held-out data. The dataset must outlive this object.
  Evaluator(const Dataset& dataset, std::int64_t batch_size, std::int64_t batches);
  [[nodiscard]] bool has_data() const { return batches_ > 0; }
  // All ranks call it at once; the same result on all. Waits until `deadline` for the others;
  // `between` is called before each batch.
  [[nodiscard]] Result<Evaluation> evaluate(Model& model, Communicator& communicator, Time deadline,
                                            const std::function<void()>& between);

 private:
  const Dataset& dataset_;
  std::int64_t batch_size_;
  std::int64_t batches_;
  BatchBuffer batch_;
};

}  // namespace surefoot
