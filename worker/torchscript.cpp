// `torchscript`: the user's own module.
#include <cstring>
#include <map>

#include "worker/network.h"

namespace surefoot {
namespace {

// First line of libtorch's message; the rest is its own stack.
std::string first_line(const std::exception& e) {
  const std::string text = e.what();
  return text.substr(0, text.find('\n'));
}

// An attribute of some module in the tree.
struct Attribute {
  std::string name;  // with the path to its module
  torch::jit::Module owner;
  std::string key;
  bool is_parameter = false;
  at::IValue value;
};

void collect(const torch::jit::Module& module, const std::string& prefix,
             std::vector<Attribute>& all) {
  const auto& type = module.type();
  for (std::size_t i = 0; i < type->numAttributes(); ++i) {
    const std::string& key = type->getAttributeName(i);
    const at::IValue value = module._ivalue()->getSlot(i);
    if (type->getAttribute(i)->is_module()) {
      collect(torch::jit::Module(value.toObject()), prefix + key + ".", all);
    } else {
      all.push_back({prefix + key, module, key, type->is_parameter(i), value});
    }
  }
}

class TorchScript final : public Network {
 public:
  // Sorts the module's attributes: trained, constant, state that moves, and numbers that must not
  // move since no checkpoint holds them.
  static Result<std::unique_ptr<Network>> load(const std::string& path, Device* device) {
    auto network = std::unique_ptr<TorchScript>(new TorchScript(path));
    network->module_ = torch::jit::load(path, home_of(device));
    network->module_.train();
    std::vector<Attribute> all;
    collect(network->module_, "", all);
    for (Attribute& attribute : all) SUREFOOT_TRY(network->add(std::move(attribute)));
    if (network->parameters_.empty()) {
      return error(Code::kInvalid,
                   "{}: no parameter of this module needs a gradient: nothing to train", path);
    }
    const auto forward = network->module_.find_method("forward");
    if (!forward || forward->function().getSchema().arguments().size() != 3) {
      return error(
          Code::kInvalid,
          "{}: the module needs a method forward(inputs, targets) that returns the mean loss",
          path);
    }
    return std::unique_ptr<Network>(std::move(network));
  }

  at::Tensor buffer(std::size_t index) const override {
    const Attribute& attribute = buffer_attributes_[index];
    return attribute.owner.attr(attribute.key).toTensor();
  }

  void set_buffer(std::size_t index, const at::Tensor& values) override {
    Attribute& attribute = buffer_attributes_[index];
    at::Tensor now = attribute.owner.attr(attribute.key).toTensor();
    // Forward may have put a tensor of its graph in the buffer's place; that one must not be
    // written.
    if (now.requires_grad() || now.sizes() != values.sizes()) {
      attribute.owner.setattr(attribute.key, values.clone());
    } else {
      now.copy_(values);
    }
  }

  void initial_values(std::uint64_t,
                      const std::function<void(const at::Tensor&)>& take) const override {
    // Those in the file: this module's own tensors point at the training state by now.
    const auto fresh = load(path_, nullptr);
    if (!fresh) throw std::runtime_error(fresh.error().message);
    const auto& network = static_cast<const TorchScript&>(**fresh);
    for (const NamedTensor& entry : network.parameters_) take(entry.tensor);
    for (const NamedTensor& entry : network.frozen_) take(entry.tensor);
    for (const NamedTensor& entry : network.buffers_) take(entry.tensor);
  }

  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets) override {
    const at::IValue result = module_.forward({inputs, targets});
    if (!result.isTensor() || result.toTensor().numel() != 1) {
      throw std::runtime_error(fmt::format(
          "{}: forward must return the loss, a scalar; it returned a {}{}", path_, result.tagKind(),
          result.isTensor() ? " of shape " + shape_text(result.toTensor().sizes()) : ""));
    }
    return result.toTensor().reshape({});
  }

  Status after_backward() override {
    for (const Attribute& constant : constants_) {
      const at::IValue now = constant.owner.attr(constant.key);
      if (now != constant.value) {
        return error(Code::kInvalid,
                     "{}: forward changes the attribute {}, which is no tensor and would not be "
                     "part of a checkpoint; make it a buffer",
                     path_, constant.name);
      }
    }
    return {};
  }

  Evaluation evaluate(const at::Tensor& inputs, const at::Tensor& targets) override {
    module_.eval();
    Evaluation evaluation;
    try {
      evaluation.loss = loss(inputs, targets).item<double>();
    } catch (...) {
      module_.train();
      throw;
    }
    module_.train();
    return evaluation;
  }

  double flops_per_sample() const override { return 0; }

 private:
  explicit TorchScript(std::string path) : path_(std::move(path)) {}

  Status add(Attribute attribute) {
    if (!attribute.value.isTensor()) {
      const bool number =
          attribute.value.isInt() || attribute.value.isDouble() || attribute.value.isBool();
      if (number && attribute.key != "training") constants_.push_back(std::move(attribute));
      return {};
    }
    const at::Tensor tensor = attribute.value.toTensor();
    if (!tensor.defined()) return {};
    const auto known = names_.emplace(tensor.unsafeGetTensorImpl(), attribute.name);
    if (!known.second) {
      if (attribute.is_parameter) return {};  // tied: one entry, under the first name
      return error(Code::kInvalid, "{}: buffer {} is the same tensor as {}", path_, attribute.name,
                   known.first->second);
    }
    if (tensor.numel() > 0) {
      const auto other = storages_.emplace(tensor.storage().unsafeGetStorageImpl(), attribute.name);
      if (!other.second) {
        return error(Code::kInvalid,
                     "{}: {} and {} are different tensors on the same memory; tie weights by "
                     "assigning one tensor twice",
                     path_, attribute.name, other.first->second);
      }
    }
    const bool is_float =
        at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
    if (!dtype_of(tensor.scalar_type()) || (is_float && tensor.scalar_type() != at::kFloat) ||
        tensor.is_sparse()) {
      return error(Code::kInvalid, "{}: {} has type {}, allowed are float32, integers and bool",
                   path_, attribute.name, c10::toString(tensor.scalar_type()));
    }
    if (attribute.is_parameter) {
      (tensor.requires_grad() ? parameters_ : frozen_).push_back({attribute.name, tensor});
    } else {
      buffers_.push_back({attribute.name, tensor});
      buffer_attributes_.push_back(std::move(attribute));
    }
    return {};
  }

  std::string path_;
  torch::jit::Module module_;
  std::vector<Attribute> buffer_attributes_;
  std::vector<Attribute> constants_;
  std::map<const void*, std::string> names_;
  std::map<const void*, std::string> storages_;
};

}  // namespace

Result<std::unique_ptr<Network>> make_torchscript(const config::Model& model, Device* device) {
  // Rule (user modules): with the profiling executor's optimisation on, the first call in a process
  // gives other gradient bits than the second.
  torch::jit::setGraphExecutorOptimize(false);
  try {
    return TorchScript::load(model.path(), device);
  } catch (const std::exception& e) {
    return error(Code::kInvalid, "{}: cannot be loaded as TorchScript: {}", model.path(),
                 first_line(e));
  }
}

}  // namespace surefoot
