// The engine behind model.h: binds a Network's tensors to flat memory.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstring>
#include <map>

#include "configs/job.h"
#include "worker/device.h"
#include "worker/model.h"
#include "worker/network.h"
#include "worker/optimizer.h"
#include "worker/starting_weights.h"

namespace surefoot {
namespace {

constexpr std::string_view kParameters = "parameters";
constexpr std::array kBufferTypes = {DType::kF32, DType::kI64, DType::kI32, DType::kI16,
                                     DType::kI8,  DType::kU8,  DType::kBool};

std::string buffer_section(DType type) {
  return fmt::format("buffers.{}", name(type));
}

// libtorch's messages end in its own C++ stack.
std::string message_of(const std::exception& e) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&e);
  return from_torch != nullptr ? from_torch->what_without_backtrace() : std::string(e.what());
}

// What the user can do about it. Out of memory is no fault of the model: another size may do. A GPU
// that has failed is no fault of anybody: the next attempt may find it well, or another one.
Error failed(std::string_view what, const std::exception& e) {
  const std::string message = message_of(e);
  if (is_out_of_memory(message)) {
    return error(Code::kNoSpace, "{}: {}; a smaller train.micro_batch_size needs less", what,
                 message);
  }
  return error(is_device_failure(message) ? Code::kRestart : Code::kInvalid, "{}: {}", what,
               message);
}

TensorSpec spec_of(const NamedTensor& entry) {
  return {entry.name, entry.tensor.sizes().vec(), 0};
}

// Where a tensor lies in the state.
struct Placed {
  at::Tensor tensor;
  std::string name;
  std::vector<std::int64_t> shape;
  DType type = DType::kF32;
  std::int64_t state_offset = 0;  // bytes
  ElementRange elements;          // within its section
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>((elements.end - elements.begin) * size_of(type));
  }
  // Of a state in memory of `device`.
  [[nodiscard]] at::Tensor view(const std::byte* state, at::Device device) const {
    return at::from_blob(const_cast<std::byte*>(state) + state_offset, shape,
                         at::TensorOptions(scalar_type(type)).device(device));
  }
};

class TorchModel final : public Model {
 public:
  TorchModel(std::unique_ptr<Network> network, const Dataset& dataset, const config::Job& job,
             at::Device device)
      : network_(std::move(network)),
        device_(device),
        bf16_(job.train().precision() == config::Train::bf16),
        input_(dataset.input()),
        target_(dataset.target()),
        seed_(static_cast<std::uint64_t>(job.train().seed())),
        from_(job.model().from()) {
    lay_out(Optimizer::moment_names(job.train().optimizer()));
    watch_gradients();
  }

  const StateLayout& layout() const override { return layout_; }
  std::int64_t gradient_elements() const override { return gradient_elements_; }
  std::int64_t buffer_elements() const override { return buffer_elements_; }
  const std::vector<ElementRange>& decayed() const override { return decayed_; }
  std::int64_t parameter_count() const override { return parameter_count_; }
  double flops_per_sample() const override { return network_->flops_per_sample(); }

  Status write_initial_state(std::span<std::byte> state) const override;
  void bind_state(std::span<const std::byte> state) override;
  void bind_gradients(std::span<float> gradients) override;
  void on_gradient_ready(std::function<void(ElementRange)> callback) override {
    ready_ = std::move(callback);
  }
  Status micro_batch(const BatchBuffer& batch, std::uint64_t seed) override;
  Result<std::vector<double>> take_losses() override;
  Status take_buffer_changes(std::span<float> change) override;
  Result<Digest> other_buffers_digest() override;
  std::vector<std::string> other_buffers() const override;
  void store_other_buffers(std::span<std::byte> state) const override;
  Result<EvaluationSums> evaluate(const BatchBuffer& batch) override;

 private:
  // Reports a parameter's gradient as final: AccumulateGrad has run, once per parameter and
  // backward.
  struct Watcher final : torch::autograd::FunctionPostHook {
    Watcher(TorchModel& of, ElementRange range) : model(of), elements(range) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
      if (model.ready_) model.ready_(elements);
      return outputs;
    }
    TorchModel& model;
    ElementRange elements;
  };

  void lay_out(const std::vector<std::string>& moments);
  void place(const NamedTensor& entry, DType type, std::string_view section, std::size_t& index,
             std::vector<Placed>& to);
  void watch_gradients();
  void load_buffers();
  Status check_gradients() const;
  [[nodiscard]] at::Tensor batched(std::span<const std::byte> bytes, const ArraySpec& spec,
                                   std::int64_t samples) const;
  [[nodiscard]] const std::byte* bound() const {
    SUREFOOT_CHECK(state_ != nullptr);
    return state_;
  }

  std::unique_ptr<Network> network_;
  at::Device device_;
  bool bf16_;
  ArraySpec input_;
  ArraySpec target_;
  std::uint64_t seed_;
  std::string from_;  // model.from

  StateLayout layout_;
  std::int64_t gradient_elements_ = 0;
  std::int64_t buffer_elements_ = 0;
  std::int64_t parameter_count_ = 0;
  std::vector<ElementRange> decayed_;
  std::vector<Placed> parameters_;
  std::vector<Placed> frozen_;
  std::vector<Placed> buffers_;
  std::vector<std::shared_ptr<torch::autograd::Node>>
      accumulators_;  // a tensor holds its own only weakly

  const std::byte* state_ = nullptr;
  float* gradients_ = nullptr;
  std::map<const std::byte*, std::vector<at::Tensor>> state_views_;  // of parameters_, then frozen_
  std::map<const float*, std::vector<at::Tensor>> gradient_views_;
  std::function<void(ElementRange)> ready_;
  std::vector<at::Tensor> losses_;  // not taken yet
  // Bytes of the buffers that are not F32, one behind the other.
  at::Tensor first_others_;  // of this step's first micro-batch
  at::Tensor differs_;       // by byte: whether another micro-batch left another
  at::Tensor others_;        // on the processor, as they came out
};

void TorchModel::place(const NamedTensor& entry, DType type, std::string_view section_name,
                       std::size_t& index, std::vector<Placed>& to) {
  const SectionSpec* section = layout_.find(section_name);
  const TensorSpec& spec = section->tensors[index++];
  const std::int64_t first = spec.offset / size_of(type);
  to.push_back({entry.tensor,
                spec.name,
                spec.shape,
                type,
                section->offset + spec.offset,
                {first, first + spec.elements()}});
}

void TorchModel::lay_out(const std::vector<std::string>& moments) {
  std::vector<TensorSpec> specs;
  for (const NamedTensor& entry : network_->parameters()) specs.push_back(spec_of(entry));
  layout_.add_section(std::string(kParameters), DType::kF32, specs);
  for (const std::string& moment : moments) layout_.add_section(moment, DType::kF32, specs);
  for (const DType type : kBufferTypes) {
    std::vector<TensorSpec> of_type;
    for (const auto* entries : {&network_->frozen(), &network_->buffers()}) {
      for (const NamedTensor& entry : *entries) {
        if (dtype_of(entry.tensor.scalar_type()) == type) of_type.push_back(spec_of(entry));
      }
    }
    if (!of_type.empty()) layout_.add_section(buffer_section(type), type, std::move(of_type));
  }

  std::size_t index = 0;
  for (const NamedTensor& entry : network_->parameters()) {
    place(entry, DType::kF32, kParameters, index, parameters_);
    parameter_count_ += entry.tensor.numel();
    if (entry.tensor.dim() >= 2) decayed_.push_back(parameters_.back().elements);
  }
  std::map<DType, std::size_t> next;
  for (const auto& [entries, to] :
       {std::pair(&network_->frozen(), &frozen_), std::pair(&network_->buffers(), &buffers_)}) {
    for (const NamedTensor& entry : *entries) {
      const DType type = *dtype_of(entry.tensor.scalar_type());
      place(entry, type, buffer_section(type), next[type], *to);
    }
  }
  gradient_elements_ = layout_.find(kParameters)->bytes / size_of(DType::kF32);
  const SectionSpec* floats = layout_.find(buffer_section(DType::kF32));
  buffer_elements_ = floats != nullptr ? floats->bytes / size_of(DType::kF32) : 0;
}

void TorchModel::watch_gradients() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    // With the gap after it, so that the ranges of all parameters cover the vector and nobody waits
    // for a gap.
    const std::int64_t end =
        i + 1 < parameters_.size() ? parameters_[i + 1].elements.begin : gradient_elements_;
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters_[i].tensor);
    accumulator->add_post_hook(
        std::make_unique<Watcher>(*this, ElementRange{parameters_[i].elements.begin, end}));
    accumulators_.push_back(std::move(accumulator));
  }
}

Status TorchModel::write_initial_state(std::span<std::byte> state) const {
  SUREFOOT_CHECK(state.size() == static_cast<std::size_t>(layout_.bytes));
  std::memset(state.data(), 0, state.size());
  std::vector<const Placed*> order;
  for (const auto* entries : {&parameters_, &frozen_, &buffers_}) {
    for (const Placed& entry : *entries) order.push_back(&entry);
  }
  try {
    const at::NoGradGuard no_grad;
    std::size_t next = 0;
    network_->initial_values(seed_, [&](const at::Tensor& values) {
      const Placed& entry = *order.at(next++);
      entry.view(state.data(), at::kCPU).copy_(values.detach());
    });
    SUREFOOT_CHECK(next == order.size());
  } catch (const std::exception& e) {
    return error(Code::kInvalid, "initial values: {}", message_of(e));
  }
  if (!from_.empty()) return load_starting_weights(starting_weights_file(from_), layout_, state);
  return {};
}

void TorchModel::bind_state(std::span<const std::byte> state) {
  SUREFOOT_CHECK(state.size() == static_cast<std::size_t>(layout_.bytes));
  state_ = state.data();
  first_others_.reset();
  std::vector<at::Tensor>& views = state_views_[state_];
  if (views.empty()) {
    for (const Placed& entry : parameters_) views.push_back(entry.view(state_, device_));
    for (const Placed& entry : frozen_) views.push_back(entry.view(state_, device_));
  }
  std::size_t next = 0;
  for (Placed& entry : parameters_) entry.tensor.set_data(views[next++]);
  for (Placed& entry : frozen_) entry.tensor.set_data(views[next++]);
}

void TorchModel::bind_gradients(std::span<float> gradients) {
  SUREFOOT_CHECK(gradients.size() == static_cast<std::size_t>(gradient_elements_));
  gradients_ = gradients.data();
  std::vector<at::Tensor>& views = gradient_views_[gradients_];
  if (views.empty()) {
    for (const Placed& entry : parameters_) {
      views.push_back(at::from_blob(gradients_ + entry.elements.begin, entry.shape,
                                    at::TensorOptions(at::kFloat).device(device_)));
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].tensor.mutable_grad() = views[i];
}

void TorchModel::load_buffers() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    network_->set_buffer(i, buffers_[i].view(bound(), device_));
}

// libtorch may replace a gradient instead of adding to it; then ours would silently stay zero.
Status TorchModel::check_gradients() const {
  for (const Placed& parameter : parameters_) {
    const at::Tensor& grad = parameter.tensor.grad();
    if (grad.defined() && grad.data_ptr<float>() == gradients_ + parameter.elements.begin &&
        grad.is_contiguous())
      continue;
    return error(
        Code::kInvalid,
        "parameter {}: its gradient was replaced during backward; set no .grad in the model",
        parameter.name);
  }
  return {};
}

at::Tensor TorchModel::batched(std::span<const std::byte> bytes, const ArraySpec& spec,
                               std::int64_t samples) const {
  SUREFOOT_CHECK(samples >= 1 && bytes.size() >= static_cast<std::size_t>(samples * spec.bytes()));
  std::vector<std::int64_t> shape = {samples};
  shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
  const at::Tensor here =
      at::from_blob(const_cast<std::byte*>(bytes.data()), shape, scalar_type(spec.type));
  if (!device_.is_cuda()) return here;
  // From pinned memory the copy is enqueued like the rest; libtorch keeps it until it is done.
  return here.pin_memory().to(device_, /*non_blocking=*/true);
}

Status TorchModel::micro_batch(const BatchBuffer& batch, std::uint64_t seed) {
  SUREFOOT_CHECK(gradients_ != nullptr);
  try {
    load_buffers();
    at::manual_seed(seed);
    at::Tensor loss;
    {
      const Autocast autocast(bf16_);
      loss = network_->loss(batched(batch.inputs(), input_, batch.samples()),
                            batched(batch.targets(), target_, batch.samples()));
    }
    if (!loss.requires_grad()) {
      return error(Code::kInvalid, "the loss does not depend on any parameter that is trained");
    }
    loss.backward();
    SUREFOOT_TRY(check_gradients());
    losses_.push_back(loss.detach());
    return network_->after_backward();
  } catch (const std::exception& e) {
    return failed("forward and backward", e);
  }
}

Result<std::vector<double>> TorchModel::take_losses() {
  std::vector<double> values;
  try {
    if (losses_.empty()) return values;
    // One copy from a device for all.
    const at::Tensor all = at::stack(losses_).to(at::kCPU, at::kDouble).contiguous();
    values.assign(all.data_ptr<double>(), all.data_ptr<double>() + all.numel());
    losses_.clear();
  } catch (const std::exception& e) {
    return failed("the losses", e);
  }
  return values;
}

Status TorchModel::take_buffer_changes(std::span<float> change) {
  SUREFOOT_CHECK(change.size() == static_cast<std::size_t>(buffer_elements_));
  std::vector<at::Tensor> others;
  try {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const Placed& entry = buffers_[i];
      const at::Tensor now = network_->buffer(i).detach().contiguous();
      if (now.sizes() != at::IntArrayRef(entry.shape) ||
          now.scalar_type() != scalar_type(entry.type)) {
        return error(Code::kInvalid, "buffer {}: forward left a {} {} in it, it was {} {}",
                     entry.name, c10::toString(now.scalar_type()), shape_text(now.sizes()),
                     name(entry.type), shape_text(entry.shape));
      }
      if (entry.type == DType::kF32) {
        // A buffer that did not change keeps its bits, whatever they are (optimizer.h).
        const at::Tensor before = entry.view(bound(), device_);
        const at::Tensor same = before.view(at::kInt).eq(now.view(at::kInt));
        at::from_blob(change.data() + entry.elements.begin, entry.shape, before.options())
            .copy_((now - before).masked_fill_(same, 0));
        continue;
      }
      others.push_back(now.reshape({-1}).view(at::kByte));
    }
    if (others.empty()) return {};
    // Compared where they are: to look at them would be to wait for the device.
    const at::Tensor bytes = at::cat(others);
    if (first_others_.defined()) {
      differs_.bitwise_or_(bytes.ne(first_others_));
    } else {
      first_others_ = bytes;
      differs_ = at::zeros_like(bytes, at::kBool);
    }
  } catch (const std::exception& e) {
    return failed("buffers", e);
  }
  return {};
}

Result<Digest> TorchModel::other_buffers_digest() {
  try {
    if (first_others_.defined()) {
      // One copy from a device for all.
      const at::Tensor found = at::stack({first_others_, differs_.view(at::kByte)}).to(at::kCPU);
      others_ = found[0];
      std::int64_t at = 0;
      for (const Placed& entry : buffers_) {
        if (entry.type == DType::kF32) continue;
        const auto size = static_cast<std::int64_t>(entry.bytes());
        if (found[1].narrow(0, at, size).any().item<bool>()) {
          return error(Code::kInvalid,
                       "buffer {}: it came out differently from another micro-batch of this step; "
                       "only float32 buffers can be averaged",
                       entry.name);
        }
        at += size;
      }
    }
  } catch (const std::exception& e) {
    return failed("buffers", e);
  }
  Digester digester;
  for (const std::string& line : other_buffers()) digester.update(line);
  return digester.finish();
}

std::vector<std::string> TorchModel::other_buffers() const {
  std::vector<std::string> lines;
  if (!others_.defined()) return lines;
  const auto* at = static_cast<const std::byte*>(others_.data_ptr());
  for (const Placed& entry : buffers_) {
    if (entry.type == DType::kF32) continue;
    lines.push_back(fmt::format("{}={}\n", entry.name, digest({at, entry.bytes()}).hex()));
    at += entry.bytes();
  }
  return lines;
}

void TorchModel::store_other_buffers(std::span<std::byte> state) const {
  SUREFOOT_CHECK(state.size() == static_cast<std::size_t>(layout_.bytes));
  const at::NoGradGuard no_grad;
  for (const Placed& entry : frozen_) {
    if (entry.type != DType::kF32 && state.data() != bound())
      entry.view(state.data(), device_).copy_(entry.view(bound(), device_));
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].type != DType::kF32)
      buffers_[i].view(state.data(), device_).copy_(network_->buffer(i).detach());
  }
}

Result<EvaluationSums> TorchModel::evaluate(const BatchBuffer& batch) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor generator_state = generator.get_state();
  EvaluationSums sums;
  try {
    const at::NoGradGuard no_grad;
    const Autocast autocast(bf16_);
    load_buffers();
    const Network::Evaluation result =
        network_->evaluate(batched(batch.inputs(), input_, batch.samples()),
                           batched(batch.targets(), target_, batch.samples()));
    sums = {result.loss * static_cast<double>(batch.samples()), batch.samples(), result.right,
            result.answers};
    load_buffers();
  } catch (const std::exception& e) {
    return failed("evaluation", e);
  }
  generator.set_state(generator_state);
  return sums;
}

Result<std::unique_ptr<Network>> make_network(const config::Model& model, const Dataset& dataset,
                                              Device* device) {
  switch (model.kind()) {
    case config::Model::mlp:
      return make_mlp(model, dataset, device);
    case config::Model::gpt:
      return make_gpt(model, dataset, device);
    case config::Model::resnet:
      return make_resnet(model, dataset, device);
    case config::Model::torchscript:
      return make_torchscript(model, device);
    default:
      return error(Code::kInvalid,
                   "model.kind: found none, allowed are mlp, gpt, resnet and torchscript");
  }
}

}  // namespace

Result<std::unique_ptr<Model>> make_model(const config::Job& job, const Dataset& dataset,
                                          Device* device) {
  try {
    SUREFOOT_ASSIGN(auto network, make_network(job.model(), dataset, device));
    return std::unique_ptr<Model>(
        std::make_unique<TorchModel>(std::move(network), dataset, job, home_of(device)));
  } catch (const std::exception& e) {
    return failed("model", e);
  }
}

}  // namespace surefoot
