// A network as the engine (torch_model.cpp) sees it: named tensors and a loss. One class per model
// kind. Knows libtorch.
//
// Tensors: `parameters` are trained, `frozen` are constants, both are re-pointed by the engine at
// memory it must not write. `buffers` are the network's own memory, set before each micro-batch and
// read after it. All three are named, distinct, contiguous, in the memory of the device that the
// network was made for (null: the processor); inputs and targets come there too. Initial values are
// on the processor.
//
// Functions throw libtorch's exceptions; the engine turns them into errors.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "configs/job.pb.h"
#include "worker/data.h"
#include "worker/torch_compat.h"

namespace surefoot {

class Device;

// Where libtorch has the tensors of a process that has this device; null: the processor.
[[nodiscard]] at::Device home_of(const Device* device);

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

class Network {
 public:
  virtual ~Network() = default;

  [[nodiscard]] const std::vector<NamedTensor>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<NamedTensor>& frozen() const { return frozen_; }
  [[nodiscard]] const std::vector<NamedTensor>& buffers() const { return buffers_; }

  // The buffer as it is now. A network may put another tensor in its place.
  [[nodiscard]] virtual at::Tensor buffer(std::size_t index) const {
    return buffers_[index].tensor;
  }
  // Gives buffer `index` these values (same shape and type).
  virtual void set_buffer(std::size_t index, const at::Tensor& values) {
    buffers_[index].tensor.copy_(values);
  }

  // Values of step 0, in the order parameters, frozen, buffers, handed to `take` one at a time.
  virtual void initial_values(std::uint64_t seed,
                              const std::function<void(const at::Tensor&)>& take) const = 0;

  // The mean loss of the samples, a scalar that can be differentiated. Training mode.
  virtual at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets) = 0;
  // Called after backward: something that only this kind of network can find wrong.
  virtual Status after_backward() { return {}; }

  struct Evaluation {
    double loss = 0;  // mean over the samples
    std::int64_t right = 0;
    std::int64_t answers = 0;
  };
  // Evaluation mode; leaves training mode on.
  virtual Evaluation evaluate(const at::Tensor& inputs, const at::Tensor& targets) = 0;

  [[nodiscard]] virtual double flops_per_sample() const = 0;

 protected:
  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> frozen_;
  std::vector<NamedTensor> buffers_;
};

// A network whose tensors are made from a list of names, shapes and initial distributions.
class BuiltInNetwork : public Network {
 public:
  explicit BuiltInNetwork(Device* device) : device_(device) {}
  void initial_values(std::uint64_t seed,
                      const std::function<void(const at::Tensor&)>& take) const override;
  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets) override;
  Evaluation evaluate(const at::Tensor& inputs, const at::Tensor& targets) override;

 protected:
  struct Initial {
    enum Kind { kConstant, kNormal, kUniform } kind = kConstant;
    double value = 0;  // the constant, the standard deviation, or the bound of [-value, value)
  };
  // Handles stay valid for the life of the network; the engine changes what they point at.
  at::Tensor add_parameter(const std::string& name, at::IntArrayRef shape, Initial initial);
  at::Tensor add_buffer(const std::string& name, at::IntArrayRef shape, at::ScalarType type,
                        double initial);
  // A key for a mask (dropout.h), drawn from the default generator, which is seeded for each
  // micro-batch.
  [[nodiscard]] static std::int64_t draw_key();
  // Zeroes a share `dropout_` of the elements in training; its key is drawn from the default
  // generator.
  [[nodiscard]] at::Tensor dropout(const at::Tensor& x) const;
  // residual + dropout(x)
  [[nodiscard]] at::Tensor add_dropout(const at::Tensor& residual, const at::Tensor& x) const;
  // `answers` x classes.
  virtual at::Tensor logits(const at::Tensor& inputs) = 0;

  double dropout_ = 0;
  bool training_ = true;

 private:
  [[nodiscard]] at::Tensor mean_loss(const at::Tensor& answers, const at::Tensor& targets) const;

  Device* device_;
  std::vector<Initial> parameter_initials_;
  std::vector<Initial> buffer_initials_;
};

[[nodiscard]] Result<std::unique_ptr<Network>> make_mlp(const config::Model& model,
                                                        const Dataset& dataset, Device* device);
[[nodiscard]] Result<std::unique_ptr<Network>> make_resnet(const config::Model& model,
                                                           const Dataset& dataset, Device* device);
[[nodiscard]] Result<std::unique_ptr<Network>> make_gpt(const config::Model& model,
                                                        const Dataset& dataset, Device* device);
// Loads the user's module file.
[[nodiscard]] Result<std::unique_ptr<Network>> make_torchscript(const config::Model& model,
                                                                Device* device);

[[nodiscard]] at::ScalarType scalar_type(DType type);
// Nothing: a type that a state cannot hold.
[[nodiscard]] std::optional<DType> dtype_of(at::ScalarType type);

// "[2, 3]"
[[nodiscard]] std::string shape_text(at::IntArrayRef shape);

}  // namespace surefoot
