#include "worker/evaluation.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "collectives/collectives.h"

namespace surefoot {
namespace {

// What a rank sends of one batch. Plain bytes between equal builds.
struct BatchSums {
  std::int64_t batch;
  EvaluationSums sums;
};

}  // namespace

Evaluator::Evaluator(const Dataset& dataset, std::int64_t batch_size, std::int64_t batches)
    : dataset_(dataset), batch_size_(batch_size), batch_(dataset, batch_size) {
  const std::int64_t all = (dataset.size(Split::kEval) + batch_size - 1) / batch_size;
  batches_ = batches > 0 ? std::min(batches, all) : all;
}

Result<Evaluation> Evaluator::evaluate(Model& model, Communicator& communicator, Time deadline,
                                       const std::function<void()>& between) {
  std::string mine;
  Status failed;
  for (std::int64_t batch = communicator.rank(); batch < batches_ && failed;
       batch += communicator.size()) {
    between();
    const std::int64_t begin = batch * batch_size_;
    std::vector<std::int64_t> indices(std::min(batch_size_, dataset_.size(Split::kEval) - begin));
    std::iota(indices.begin(), indices.end(), begin);
    failed = batch_.fill(dataset_, Split::kEval, indices);
    if (!failed) break;
    auto sums = model.evaluate(batch_);
    if (!sums) {
      failed = sums.error();
      break;
    }
    const BatchSums entry{batch, *sums};
    mine.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  SUREFOOT_TRY(agree(communicator, failed, deadline, "evaluation"));
  SUREFOOT_ASSIGN(const auto all,
                  all_gather(communicator, mine, deadline, "the sums of the evaluation"));
  std::vector<EvaluationSums> by_batch(batches_);
  for (const std::string& entries : all) {
    for (std::size_t at = 0; at + sizeof(BatchSums) <= entries.size(); at += sizeof(BatchSums)) {
      BatchSums entry;
      std::memcpy(&entry, entries.data() + at, sizeof entry);
      by_batch.at(entry.batch) = entry.sums;
    }
  }
  EvaluationSums total;
  for (const EvaluationSums& sums : by_batch) {
    total.loss_sum += sums.loss_sum;
    total.samples += sums.samples;
    total.right += sums.right;
    total.answers += sums.answers;
  }
  Evaluation result;
  result.samples = total.samples;
  result.loss = total.samples > 0 ? total.loss_sum / static_cast<double>(total.samples) : 0;
  if (total.answers > 0)
    result.accuracy = static_cast<double>(total.right) / static_cast<double>(total.answers);
  return result;
}

}  // namespace surefoot
