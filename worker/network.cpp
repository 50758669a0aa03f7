#include "worker/network.h"

#include <ATen/CPUGeneratorImpl.h>

#include "worker/dropout.h"
#include "worker/fused_cross_entropy.h"
#include "worker/order.h"  // mix

namespace surefoot {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// libtorch draws dropout's mask from its generator one element after the other; ours is computed
// (dropout.h).
DropoutMask mask_of(const AutogradContext& ctx) {
  return {static_cast<std::uint64_t>(ctx.saved_data.at("key").toInt()),
          ctx.saved_data.at("p").toDouble()};
}

void save_mask(AutogradContext& ctx, double p, std::int64_t key) {
  ctx.saved_data["key"] = key;
  ctx.saved_data["p"] = p;
}

at::Tensor masked(const DropoutMask& mask, const at::Tensor& x) {
  const at::Tensor in = x.contiguous();
  at::Tensor out = at::empty_like(in);
  mask.apply(static_cast<std::size_t>(in.numel()), in.data_ptr<float>(), out.data_ptr<float>());
  return out;
}

struct Dropout : torch::autograd::Function<Dropout> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double p, std::int64_t key) {
    save_mask(*ctx, p, key);
    return masked(mask_of(*ctx), x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {masked(mask_of(*ctx), gradients[0]), {}, {}};
  }
};

struct AddDropout : torch::autograd::Function<AddDropout> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& residual, const at::Tensor& x,
                            double p, std::int64_t key) {
    save_mask(*ctx, p, key);
    const at::Tensor in = x.contiguous();
    const at::Tensor base = residual.contiguous();
    at::Tensor out = at::empty_like(in);
    mask_of(*ctx).apply_and_add(static_cast<std::size_t>(in.numel()), in.data_ptr<float>(),
                                base.data_ptr<float>(), out.data_ptr<float>());
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {gradients[0], masked(mask_of(*ctx), gradients[0]), {}, {}};
  }
};

}  // namespace

// A process sees one GPU only (open_device).
at::Device home_of(const Device* device) {
  return device != nullptr && device->facts().is_cuda ? at::Device(at::kCUDA, 0)
                                                      : at::Device(at::kCPU);
}

void BuiltInNetwork::initial_values(std::uint64_t seed,
                                    const std::function<void(const at::Tensor&)>& take) const {
  const at::NoGradGuard no_grad;
  const auto values = [&](const at::Tensor& like, const Initial& initial, std::uint64_t index) {
    at::Tensor tensor = at::empty(like.sizes(), like.scalar_type());
    // A stream per tensor, so that one tensor's values do not depend on the sizes of those before
    // it.
    at::Generator generator = at::detail::createCPUGenerator(mix(mix(seed + 1) + index));
    if (initial.kind == Initial::kNormal) return tensor.normal_(0, initial.value, generator);
    if (initial.kind == Initial::kUniform)
      return tensor.uniform_(-initial.value, initial.value, generator);
    return tensor.fill_(initial.value);
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    take(values(parameters_[i].tensor, parameter_initials_[i], i));
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    take(values(buffers_[i].tensor, buffer_initials_[i], 0));
}

at::Tensor BuiltInNetwork::loss(const at::Tensor& inputs, const at::Tensor& targets) {
  return mean_loss(logits(inputs), targets.reshape({-1}));
}

at::Tensor BuiltInNetwork::mean_loss(const at::Tensor& answers, const at::Tensor& targets) const {
  return answers.is_cuda() ? fused_cross_entropy(*device_, answers, targets)
                           : at::cross_entropy_loss(answers, targets);
}

Network::Evaluation BuiltInNetwork::evaluate(const at::Tensor& inputs, const at::Tensor& targets) {
  training_ = false;
  at::Tensor answers;
  try {
    answers = logits(inputs);
  } catch (...) {
    training_ = true;
    throw;
  }
  training_ = true;
  const at::Tensor expected = targets.reshape({-1});
  Evaluation evaluation;
  evaluation.loss = mean_loss(answers, expected).item<double>();
  evaluation.right = answers.argmax(1).eq(expected).sum().item<std::int64_t>();
  evaluation.answers = expected.numel();
  return evaluation;
}

at::Tensor BuiltInNetwork::add_parameter(const std::string& name, at::IntArrayRef shape,
                                         Initial initial) {
  // Not touched before the engine re-points it, so these pages are never used.
  at::Tensor tensor = at::empty(shape, at::TensorOptions(at::kFloat).device(home_of(device_)))
                          .set_requires_grad(true);
  parameters_.push_back({name, tensor});
  parameter_initials_.push_back(initial);
  return tensor;
}

at::Tensor BuiltInNetwork::add_buffer(const std::string& name, at::IntArrayRef shape,
                                      at::ScalarType type, double initial) {
  at::Tensor tensor = at::full(shape, initial, at::TensorOptions(type).device(home_of(device_)));
  buffers_.push_back({name, tensor});
  buffer_initials_.push_back({Initial::kConstant, initial});
  return tensor;
}

std::int64_t BuiltInNetwork::draw_key() {
  auto* generator = at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
  return static_cast<std::int64_t>(generator->random64());
}

at::Tensor BuiltInNetwork::dropout(const at::Tensor& x) const {
  if (!training_ || dropout_ == 0) return x;
  // A GPU's generator is counter-based, and seeded for each micro-batch like the other.
  return x.is_cuda() ? at::dropout(x, dropout_, true) : Dropout::apply(x, dropout_, draw_key());
}

at::Tensor BuiltInNetwork::add_dropout(const at::Tensor& residual, const at::Tensor& x) const {
  if (!training_ || dropout_ == 0 || x.is_cuda()) return residual + dropout(x);
  return AddDropout::apply(residual, x, dropout_, draw_key());
}

at::ScalarType scalar_type(DType type) {
  switch (type) {
    case DType::kF32:
      return at::kFloat;
    case DType::kF64:
      return at::kDouble;
    case DType::kI64:
      return at::kLong;
    case DType::kI32:
      return at::kInt;
    case DType::kI16:
      return at::kShort;
    case DType::kI8:
      return at::kChar;
    case DType::kU8:
      return at::kByte;
    case DType::kBool:
      return at::kBool;
  }
  return at::kFloat;
}

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kF32;
    case at::kDouble:
      return DType::kF64;
    case at::kLong:
      return DType::kI64;
    case at::kInt:
      return DType::kI32;
    case at::kShort:
      return DType::kI16;
    case at::kChar:
      return DType::kI8;
    case at::kByte:
      return DType::kU8;
    case at::kBool:
      return DType::kBool;
    default:
      return std::nullopt;
  }
}

std::string shape_text(at::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

}  // namespace surefoot
