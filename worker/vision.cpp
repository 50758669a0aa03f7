// `mlp` and `resnet`: classifiers of fixed-size values.
#include <cmath>

#include "worker/network.h"

namespace surefoot {
namespace {

// As torch.nn.Linear: uniform within 1/sqrt(inputs), for weight and bias.
double linear_bound(std::int64_t inputs) {
  return 1.0 / std::sqrt(static_cast<double>(inputs));
}

Status check_classifier(const Dataset& dataset, std::string_view kind) {
  if (dataset.input().type == DType::kF32 && dataset.target().type == DType::kI64 &&
      dataset.target().shape.empty()) {
    return {};
  }
  return error(Code::kInvalid,
               "model.kind {} needs data of kind idx or synthetic: values and one class a sample",
               kind);
}

class Mlp final : public BuiltInNetwork {
 public:
  Mlp(const config::Model& model, const Dataset& dataset, Device* device) : BuiltInNetwork(device) {
    dropout_ = model.dropout();
    std::int64_t width = dataset.input().elements();
    widths_.push_back(width);
    for (const int hidden : model.hidden()) widths_.push_back(hidden);
    widths_.push_back(dataset.classes());
    for (std::size_t i = 1; i < widths_.size(); ++i) {
      const Initial initial{Initial::kUniform, linear_bound(widths_[i - 1])};
      const std::string name = fmt::format("layers.{}.", i - 1);
      layers_.push_back({add_parameter(name + "weight", {widths_[i], widths_[i - 1]}, initial),
                         add_parameter(name + "bias", {widths_[i]}, initial)});
    }
  }

  double flops_per_sample() const override {
    double sum = 0;
    for (std::size_t i = 1; i < widths_.size(); ++i) {
      sum += 6.0 * static_cast<double>(widths_[i]) * static_cast<double>(widths_[i - 1]);
    }
    return sum;
  }

 protected:
  at::Tensor logits(const at::Tensor& inputs) override {
    at::Tensor x = inputs.reshape({inputs.size(0), widths_.front()});
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      x = at::linear(x, layers_[i].weight, layers_[i].bias);
      if (i + 1 < layers_.size()) x = dropout(at::relu(x));
    }
    return x;
  }

 private:
  struct Layer {
    at::Tensor weight;
    at::Tensor bias;
  };
  std::vector<std::int64_t> widths_;
  std::vector<Layer> layers_;
};

// He et al. 2015, the CIFAR form: a 3x3 convolution, three stages of basic blocks (the second and
// third halve the picture and double the channels), mean over the picture, linear. Names as in
// torchvision.
class ResNet final : public BuiltInNetwork {
 public:
  ResNet(const config::Model& model, const Dataset& dataset, Device* device)
      : BuiltInNetwork(device), width_(model.width()), blocks_(model.blocks()) {
    dropout_ = model.dropout();
    const std::vector<std::int64_t>& shape = dataset.input().shape;
    height_ = shape[1];
    columns_ = shape[2];
    stem_ = conv("conv1", shape[0], width_, 3, 1);
    stem_norm_ = norm("bn1", width_);
    std::int64_t channels = width_;
    for (int stage = 0; stage < 3; ++stage) {
      const std::int64_t out = width_ << stage;
      for (int b = 0; b < blocks_; ++b) {
        const std::int64_t stride = stage > 0 && b == 0 ? 2 : 1;
        const std::string name = fmt::format("layer{}.{}.", stage + 1, b);
        Block block;
        block.conv1 = conv(name + "conv1", channels, out, 3, stride);
        block.norm1 = norm(name + "bn1", out);
        block.conv2 = conv(name + "conv2", out, out, 3, 1);
        block.norm2 = norm(name + "bn2", out);
        if (stride != 1 || channels != out) {
          block.shortcut = conv(name + "downsample.0", channels, out, 1, stride);
          block.shortcut_norm = norm(name + "downsample.1", out);
        }
        layers_.push_back(block);
        channels = out;
      }
    }
    const Initial initial{Initial::kUniform, linear_bound(channels)};
    fc_weight_ = add_parameter("fc.weight", {dataset.classes(), channels}, initial);
    fc_bias_ = add_parameter("fc.bias", {dataset.classes()}, initial);
  }

  double flops_per_sample() const override {
    double sum = 6.0 * static_cast<double>(fc_weight_.numel());
    const auto add = [&](const Conv& conv, std::int64_t scale) {
      const double places = std::ceil(static_cast<double>(height_) / static_cast<double>(scale)) *
                            std::ceil(static_cast<double>(columns_) / static_cast<double>(scale));
      sum += 6.0 * static_cast<double>(conv.weight.numel()) * places;
    };
    add(stem_, 1);
    std::int64_t scale = 1;
    for (const Block& block : layers_) {
      scale *= block.conv1.stride;
      add(block.conv1, scale);
      add(block.conv2, scale);
      if (block.shortcut.weight.defined()) add(block.shortcut, scale);
    }
    return sum;
  }

 protected:
  at::Tensor logits(const at::Tensor& inputs) override {
    at::Tensor x = at::relu(normalised(convolved(inputs, stem_), stem_norm_));
    for (const Block& block : layers_) {
      const at::Tensor straight =
          block.shortcut.weight.defined()
              ? normalised(convolved(x, block.shortcut), block.shortcut_norm)
              : x;
      at::Tensor y = at::relu(normalised(convolved(x, block.conv1), block.norm1));
      y = normalised(convolved(y, block.conv2), block.norm2);
      x = at::relu(y + straight);
    }
    return at::linear(dropout(x.mean({2, 3})), fc_weight_, fc_bias_);
  }

 private:
  struct Conv {
    at::Tensor weight;
    std::int64_t stride = 1;
    std::int64_t padding = 0;
  };
  struct Norm {
    at::Tensor weight, bias, mean, var, batches;
  };
  struct Block {
    Conv conv1, conv2, shortcut;
    Norm norm1, norm2, shortcut_norm;
  };

  Conv conv(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t size,
            std::int64_t stride) {
    // He et al. 2015: normal, variance 2 / (outputs an input takes part in).
    const double deviation = std::sqrt(2.0 / static_cast<double>(out * size * size));
    return {add_parameter(name + ".weight", {out, in, size, size}, {Initial::kNormal, deviation}),
            stride, size / 2};
  }
  Norm norm(const std::string& name, std::int64_t channels) {
    return {add_parameter(name + ".weight", {channels}, {Initial::kConstant, 1}),
            add_parameter(name + ".bias", {channels}, {Initial::kConstant, 0}),
            add_buffer(name + ".running_mean", {channels}, at::kFloat, 0),
            add_buffer(name + ".running_var", {channels}, at::kFloat, 1),
            add_buffer(name + ".num_batches_tracked", {}, at::kLong, 0)};
  }
  static at::Tensor convolved(const at::Tensor& x, const Conv& conv) {
    return at::conv2d(x, conv.weight, {}, {conv.stride, conv.stride}, {conv.padding, conv.padding});
  }
  at::Tensor normalised(const at::Tensor& x, const Norm& norm) const {
    constexpr double kMomentum = 0.1;  // both as in PyTorch
    constexpr double kEps = 1e-5;
    if (training_) at::Tensor(norm.batches).add_(1);
    return at::batch_norm(x, norm.weight, norm.bias, norm.mean, norm.var, training_, kMomentum,
                          kEps, false);
  }

  std::int64_t width_;
  std::int64_t blocks_;
  std::int64_t height_ = 0;
  std::int64_t columns_ = 0;
  Conv stem_;
  Norm stem_norm_;
  std::vector<Block> layers_;
  at::Tensor fc_weight_;
  at::Tensor fc_bias_;
};

}  // namespace

Result<std::unique_ptr<Network>> make_mlp(const config::Model& model, const Dataset& dataset,
                                          Device* device) {
  SUREFOOT_TRY(check_classifier(dataset, "mlp"));
  return std::unique_ptr<Network>(std::make_unique<Mlp>(model, dataset, device));
}

Result<std::unique_ptr<Network>> make_resnet(const config::Model& model, const Dataset& dataset,
                                             Device* device) {
  SUREFOOT_TRY(check_classifier(dataset, "resnet"));
  if (dataset.input().shape.size() != 3) {
    return error(
        Code::kInvalid,
        "model.kind resnet needs pictures, [channels, rows, columns], found samples of shape {}",
        shape_text(dataset.input().shape));
  }
  return std::unique_ptr<Network>(std::make_unique<ResNet>(model, dataset, device));
}

}  // namespace surefoot
