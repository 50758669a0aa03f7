#include "worker/fused_cross_entropy.h"

namespace surefoot {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Logits view(const at::Tensor& logits, const at::Tensor& targets) {
  Logits view;
  view.values = logits.data_ptr();
  view.format = logits.scalar_type() == at::kBFloat16 ? NumberFormat::kBf16 : NumberFormat::kFp32;
  view.rows = logits.size(0);
  view.classes = logits.size(1);
  view.targets = targets.data_ptr<std::int64_t>();
  return view;
}

struct FusedCrossEntropy : torch::autograd::Function<FusedCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& targets, std::int64_t device) {
    const at::TensorOptions options = logits.options().dtype(at::kFloat);
    const at::Tensor losses = at::empty({logits.size(0)}, options);
    const at::Tensor log_sums = at::empty({logits.size(0)}, options);
    CrossEntropy work;
    work.logits = view(logits, targets);
    work.losses = losses.data_ptr<float>();
    work.log_sums = log_sums.data_ptr<float>();
    from_number(device)->enqueue(work);
    ctx->save_for_backward({logits, targets, log_sums});
    ctx->saved_data["device"] = device;
    return losses.mean();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& logits = saved[0];
    const at::Tensor of_mean = gradients[0].to(at::kFloat);
    at::Tensor gradient = at::empty_like(logits);
    CrossEntropyGradient work;
    work.logits = view(logits, saved[1]);
    work.log_sums = saved[2].data_ptr<float>();
    work.of_mean = of_mean.data_ptr<float>();
    work.gradient = gradient.data_ptr();
    from_number(ctx->saved_data.at("device").toInt())->enqueue(work);
    return {gradient, {}, {}};
  }

 private:
  // A graph keeps numbers and tensors only.
  static Device* from_number(std::int64_t number) { return reinterpret_cast<Device*>(number); }
};

}  // namespace

at::Tensor fused_cross_entropy(Device& device, const at::Tensor& logits,
                               const at::Tensor& targets) {
  TORCH_CHECK(logits.dim() == 2 && targets.dim() == 1 && logits.size(0) == targets.size(0),
              "the loss takes [rows, classes] and [rows]");
  TORCH_CHECK(logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kBFloat16,
              "the loss takes logits in fp32 or bf16");
  return FusedCrossEntropy::apply(logits.contiguous(), targets.contiguous(),
                                  reinterpret_cast<std::int64_t>(&device));
}

}  // namespace surefoot
