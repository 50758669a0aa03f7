#include <bit>
#include <cstring>

#include "worker/model.h"

namespace surefoot {
namespace {

struct Outcome {
  std::vector<float> gradients;
  std::vector<float> changes;
  double loss = 0;
};

Result<Outcome> run_once(Model& model, const BatchBuffer& batch) {
  constexpr std::uint64_t kSeed = 1;  // arbitrary, the same for both
  Outcome outcome;
  outcome.gradients.resize(static_cast<std::size_t>(model.gradient_elements()));
  outcome.changes.resize(static_cast<std::size_t>(model.buffer_elements()));
  model.bind_gradients(outcome.gradients);
  SUREFOOT_ASSIGN(outcome.loss, model.micro_batch(batch, kSeed));
  SUREFOOT_TRY(model.take_buffer_changes(outcome.changes));
  return outcome;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

Status check_repeatable(Model& model, const BatchBuffer& batch) {
  SUREFOOT_ASSIGN(const Outcome first, run_once(model, batch));
  SUREFOOT_ASSIGN(const Outcome second, run_once(model, batch));
  for (const TensorSpec& tensor : model.layout().find("parameters")->tensors) {
    const auto at = static_cast<std::size_t>(tensor.offset) / sizeof(float);
    const auto count = static_cast<std::size_t>(tensor.elements());
    if (!same_bits(std::span(first.gradients).subspan(at, count),
                   std::span(second.gradients).subspan(at, count))) {
      return error(Code::kInvalid,
                   "the same micro-batch gave two different gradients for {}: the model is not "
                   "reproducible. Remove what is random "
                   "without the generator, or set train.reduction: fast",
                   tensor.name);
    }
  }
  if (std::bit_cast<std::uint64_t>(first.loss) != std::bit_cast<std::uint64_t>(second.loss)) {
    return error(Code::kInvalid,
                 "the same micro-batch gave the losses {} and {}: the model is not reproducible",
                 first.loss, second.loss);
  }
  if (!same_bits(first.changes, second.changes)) {
    return error(
        Code::kInvalid,
        "the same micro-batch changed the buffers differently: the model is not reproducible");
  }
  return {};
}

}  // namespace surefoot
