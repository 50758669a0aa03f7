#include <algorithm>
#include <bit>
#include <cstring>

#include "worker/device.h"
#include "worker/model.h"

namespace surefoot {
namespace {

struct Outcome {
  std::vector<float> gradients;
  std::vector<float> changes;
  double loss = 0;
};

// Where the results of a micro-batch go: `host`, or a device's memory of the same size.
class Results {
 public:
  static Result<Results> open(Device* device, std::size_t elements) {
    Results place;
    place.device_ = device;
    place.host_.resize(elements);
    if (device == nullptr) {
      place.here_ = place.host_;
      return place;
    }
    SUREFOOT_ASSIGN(const auto memory, device->allocate(place.bytes(), "the check of the module"));
    place.here_ = {reinterpret_cast<float*>(memory.data()), elements};
    return place;
  }
  [[nodiscard]] std::span<float> here() const { return here_; }
  Status clear(Time deadline) {
    std::fill(host_.begin(), host_.end(), 0.0F);
    if (device_ == nullptr || host_.empty()) return {};
    return device_->upload(std::as_bytes(std::span(host_)), memory(), deadline);
  }
  Result<std::vector<float>> take(Time deadline) {
    if (device_ != nullptr && !host_.empty()) {
      SUREFOOT_TRY(device_->mark());
      const ByteRange all{0, bytes()};
      SUREFOOT_TRY(device_->download(memory(), std::as_writable_bytes(std::span(host_)),
                                     std::span(&all, 1), deadline));
    }
    return host_;
  }

 private:
  [[nodiscard]] std::int64_t bytes() const {
    return static_cast<std::int64_t>(host_.size() * sizeof(float));
  }
  [[nodiscard]] std::byte* memory() const { return reinterpret_cast<std::byte*>(here_.data()); }
  Device* device_ = nullptr;
  std::vector<float> host_;
  std::span<float> here_;
};

Result<Outcome> run_once(Model& model, const BatchBuffer& batch, Results& gradients,
                         Results& changes, Time deadline) {
  constexpr std::uint64_t kSeed = 1;  // arbitrary, the same for both
  SUREFOOT_TRY(gradients.clear(deadline));
  SUREFOOT_TRY(changes.clear(deadline));
  model.bind_gradients(gradients.here());
  SUREFOOT_TRY(model.micro_batch(batch, kSeed));
  SUREFOOT_TRY(model.take_buffer_changes(changes.here()));
  Outcome outcome;
  SUREFOOT_ASSIGN(const auto losses, model.take_losses());
  outcome.loss = losses.at(0);
  SUREFOOT_ASSIGN(outcome.gradients, gradients.take(deadline));
  SUREFOOT_ASSIGN(outcome.changes, changes.take(deadline));
  return outcome;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

Status check_repeatable(Model& model, const BatchBuffer& batch, Device* device, Time deadline) {
  SUREFOOT_ASSIGN(Results gradients,
                  Results::open(device, static_cast<std::size_t>(model.gradient_elements())));
  SUREFOOT_ASSIGN(Results changes,
                  Results::open(device, static_cast<std::size_t>(model.buffer_elements())));
  SUREFOOT_ASSIGN(const Outcome first, run_once(model, batch, gradients, changes, deadline));
  SUREFOOT_ASSIGN(const Outcome second, run_once(model, batch, gradients, changes, deadline));
  if (const auto others = model.other_buffers_digest(); !others) return others.error();
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
