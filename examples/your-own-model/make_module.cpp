// Writes a model of one's own as a TorchScript file: surefoot-make-module module.pt
//
// What `torch.jit.script(model).save("module.pt")` does in Python, without Python: tensors are
// registered, and forward is given as source. A small convolutional network for pictures of 28x28
// in ten classes, with batch norm (buffers that move) and dropout. forward gets the samples of one
// micro-batch, inputs [B, 1, 28, 28] and targets [B], and returns their mean loss; `self.training`
// is false in evaluations.
#include <torch/script.h>

#include <cmath>
#include <cstdio>

namespace {

constexpr char kForward[] = R"(
def forward(self, inputs, targets):
    x = torch.conv2d(inputs, self.conv1_weight, self.conv1_bias, [1, 1], [1, 1])
    x = torch.batch_norm(x, self.norm_weight, self.norm_bias, self.norm_mean, self.norm_var, self.training, 0.1, 0.00001, False)
    x = torch.max_pool2d(torch.relu(x), [2, 2])
    x = torch.conv2d(x, self.conv2_weight, self.conv2_bias, [1, 1], [1, 1])
    x = torch.max_pool2d(torch.relu(x), [2, 2])
    x = torch.dropout(torch.flatten(x, 1), 0.2, self.training)
    return torch.cross_entropy_loss(torch.linear(x, self.fc_weight, self.fc_bias), targets)
)";

void add_layer(torch::jit::Module& module, const std::string& name, at::IntArrayRef shape) {
  const double bound = std::sqrt(6.0 / static_cast<double>(at::zeros(shape)[0].numel()));
  module.register_parameter(
      name + "_weight", at::empty(shape).uniform_(-bound, bound).set_requires_grad(true), false);
  module.register_parameter(name + "_bias", at::zeros({shape[0]}).set_requires_grad(true), false);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: surefoot-make-module FILE\n");
    return 64;
  }
  try {
    at::manual_seed(1);  // the file is the starting point of the job: always the same one
    torch::jit::Module module("Module");
    module.register_attribute("training", c10::BoolType::get(), true);
    add_layer(module, "conv1", {8, 1, 3, 3});
    add_layer(module, "conv2", {16, 8, 3, 3});
    add_layer(module, "fc", {10, 16 * 7 * 7});
    module.register_parameter("norm_weight", at::ones({8}).set_requires_grad(true), false);
    module.register_parameter("norm_bias", at::zeros({8}).set_requires_grad(true), false);
    module.register_buffer("norm_mean", at::zeros({8}));
    module.register_buffer("norm_var", at::ones({8}));
    module.define(kForward);
    module.save(argv[1]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "surefoot-make-module: %s\n", e.what());
    return 1;
  }
  return 0;
}
