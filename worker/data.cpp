#include "worker/data.h"

#include "worker/data_kinds.h"

namespace surefoot {
namespace {

constexpr std::int64_t kDefaultBlockSize =
    128;  // for a user's module; as model.block_size's default

std::int64_t block_size_of(const config::Model& model) {
  return model.block_size() > 0 ? model.block_size() : kDefaultBlockSize;
}

Result<std::unique_ptr<Dataset>> open_tokens(const config::Job& job) {
  const config::Data& data = job.data();
  const bool bytes = data.kind() == config::Data::text;
  TokenFileOptions options;
  options.path = data.path();
  options.eval_path = data.eval_path();
  options.holdout = data.holdout();
  options.token_bytes = bytes ? 1 : 2;
  options.block_size = block_size_of(job.model());
  options.vocab_size = bytes ? 256 : 65536;
  if (job.model().kind() == config::Model::gpt) options.vocab_size = job.model().vocab_size();
  return open_token_file(options);
}

}  // namespace

std::int64_t ArraySpec::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::int64_t ArraySpec::bytes() const {
  return elements() * size_of(type);
}

Result<std::unique_ptr<Dataset>> open_dataset(const config::Job& job) {
  const config::Data& data = job.data();
  switch (data.kind()) {
    case config::Data::text:
    case config::Data::tokens:
      return open_tokens(job);
    case config::Data::idx:
      return open_idx({.images = data.images(),
                       .labels = data.labels(),
                       .eval_images = data.eval_images(),
                       .eval_labels = data.eval_labels(),
                       .classes = data.classes()});
    case config::Data::synthetic: {
      const bool tokens = job.model().kind() == config::Model::gpt;
      SyntheticOptions options;
      options.seed = static_cast<std::uint64_t>(job.train().seed());
      options.samples = data.samples();
      options.classes = data.classes();
      options.shape.assign(data.shape().begin(), data.shape().end());
      options.block_size = tokens ? block_size_of(job.model()) : 0;
      options.vocab_size = job.model().vocab_size();
      return make_synthetic(options);
    }
    default:
      return error(Code::kInvalid,
                   "data.kind: found none, allowed are text, tokens, idx and synthetic");
  }
}

BatchBuffer::BatchBuffer(const Dataset& dataset, std::int64_t samples)
    : input_bytes_(dataset.input().bytes()),
      target_bytes_(dataset.target().bytes()),
      inputs_(static_cast<std::size_t>(input_bytes_ * samples)),
      targets_(static_cast<std::size_t>(target_bytes_ * samples)) {}

Status BatchBuffer::fill(const Dataset& dataset, Split split,
                         std::span<const std::int64_t> indices) {
  const auto input = static_cast<std::size_t>(input_bytes_);
  const auto target = static_cast<std::size_t>(target_bytes_);
  SUREFOOT_CHECK(indices.size() * input <= inputs_.size() &&
                 indices.size() * target <= targets_.size());
  samples_ = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    SUREFOOT_TRY(dataset.fill(split, indices[i], std::span(inputs_).subspan(i * input, input),
                              std::span(targets_).subspan(i * target, target)));
  }
  samples_ = static_cast<std::int64_t>(indices.size());
  return {};
}

}  // namespace surefoot
