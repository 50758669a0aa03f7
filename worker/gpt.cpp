// `gpt`: GPT-2 (Radford et al. 2019) with the names and shapes of Hugging Face's GPT2LMHeadModel:
// linear weights are [inputs, outputs], the output projection is the token embedding's weight.
#include <cmath>

#include "worker/attention.h"
#include "worker/dropout.h"
#include "worker/network.h"

namespace surefoot {
namespace {

// Softmax(q k^T / sqrt(head)) v over [3, batch * heads, time, head], with dropout on the
// probabilities when p > 0. One node of the graph: the library's dozen small ones spend more time
// on zeroing, masking and copying than on the products.
struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& qkv, double p,
                            std::int64_t key) {
    const at::Tensor weights = at::bmm(qkv[0], qkv[1].transpose(1, 2));
    const std::int64_t time = qkv.size(2);
    for (std::int64_t i = 0; i < weights.size(0); ++i) {
      causal_softmax(static_cast<std::size_t>(time), scale_of(qkv),
                     weights.data_ptr<float>() + i * time * time);
    }
    ctx->save_for_backward({qkv, weights});
    ctx->saved_data["p"] = p;
    ctx->saved_data["key"] = key;
    return at::bmm(dropped(weights, p, key), qkv[2]);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& qkv = saved[0];
    const at::Tensor& weights = saved[1];
    const double p = ctx->saved_data["p"].toDouble();
    const std::int64_t key = ctx->saved_data["key"].toInt();
    const at::Tensor out = gradients[0].contiguous();
    at::Tensor by_qkv = at::empty_like(qkv);
    at::Tensor by_q = by_qkv[0];
    at::Tensor by_k = by_qkv[1];
    at::Tensor by_v = by_qkv[2];
    at::bmm_out(by_v, dropped(weights, p, key).transpose(1, 2), out);
    at::Tensor by_weights = at::bmm(out, qkv[2].transpose(1, 2));
    if (p > 0) mask_in_place(by_weights, p, key);
    const std::int64_t time = qkv.size(2);
    for (std::int64_t i = 0; i < weights.size(0); ++i) {
      causal_softmax_backward(static_cast<std::size_t>(time), scale_of(qkv),
                              weights.data_ptr<float>() + i * time * time,
                              by_weights.data_ptr<float>() + i * time * time);
    }
    at::bmm_out(by_q, by_weights, qkv[1]);
    at::bmm_out(by_k, by_weights.transpose(1, 2), qkv[0]);
    return {by_qkv, {}, {}};
  }

 private:
  static float scale_of(const at::Tensor& qkv) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(qkv.size(3))));
  }
  static at::Tensor dropped(const at::Tensor& weights, double p, std::int64_t key) {
    if (p == 0) return weights;
    at::Tensor result = at::empty_like(weights);
    DropoutMask(static_cast<std::uint64_t>(key), p)
        .apply(static_cast<std::size_t>(weights.numel()), weights.data_ptr<float>(),
               result.data_ptr<float>());
    return result;
  }
  static void mask_in_place(at::Tensor& x, double p, std::int64_t key) {
    DropoutMask(static_cast<std::uint64_t>(key), p)
        .apply(static_cast<std::size_t>(x.numel()), x.data_ptr<float>(), x.data_ptr<float>());
  }
};

class Gpt final : public BuiltInNetwork {
 public:
  Gpt(const config::Model& model, Device* device)
      : BuiltInNetwork(device),
        n_layer_(model.n_layer()),
        n_head_(model.n_head()),
        n_embd_(model.n_embd()),
        block_size_(model.block_size()),
        vocab_size_(model.vocab_size()) {
    dropout_ = model.dropout();
    wte_ = add_parameter("transformer.wte.weight", {vocab_size_, n_embd_},
                         {Initial::kNormal, kDeviation});
    wpe_ = add_parameter("transformer.wpe.weight", {block_size_, n_embd_},
                         {Initial::kNormal, kDeviation});
    // Two layers a block add to the residual stream; their weights start smaller by the root of how
    // many there are.
    const double projection = kDeviation / std::sqrt(2.0 * static_cast<double>(n_layer_));
    for (std::int64_t i = 0; i < n_layer_; ++i) {
      const std::string h = fmt::format("transformer.h.{}.", i);
      Block block;
      block.ln_1 = norm(h + "ln_1");
      block.c_attn = linear(h + "attn.c_attn", n_embd_, 3 * n_embd_, kDeviation);
      block.c_proj = linear(h + "attn.c_proj", n_embd_, n_embd_, projection);
      block.ln_2 = norm(h + "ln_2");
      block.c_fc = linear(h + "mlp.c_fc", n_embd_, 4 * n_embd_, kDeviation);
      block.mlp_proj = linear(h + "mlp.c_proj", 4 * n_embd_, n_embd_, projection);
      blocks_.push_back(block);
    }
    ln_f_ = norm("transformer.ln_f");
  }

  // 6 per weight and token (Kaplan et al. 2020), and the two products of attention over the whole
  // block.
  double flops_per_sample() const override {
    const double tokens = static_cast<double>(block_size_);
    const double width = static_cast<double>(n_embd_);
    const double weights = 12.0 * static_cast<double>(n_layer_) * width * width +
                           static_cast<double>(vocab_size_) * width;
    return tokens * (6.0 * weights + 12.0 * static_cast<double>(n_layer_) * width * tokens);
  }

 protected:
  at::Tensor logits(const at::Tensor& inputs) override {
    const std::int64_t batch = inputs.size(0);
    const std::int64_t time = inputs.size(1);
    at::Tensor x = at::embedding(wte_, inputs) + wpe_.narrow(0, 0, time);
    x = dropout(x.reshape({batch * time, n_embd_}));
    for (const Block& block : blocks_) {
      x = add_dropout(x, attention(normalised(x, block.ln_1), block, batch, time));
      x = add_dropout(x, feed_forward(normalised(x, block.ln_2), block));
    }
    return at::linear(normalised(x, ln_f_), wte_);
  }

 private:
  static constexpr double kDeviation = 0.02;
  static constexpr double kEps = 1e-5;
  struct Pair {
    at::Tensor weight, bias;
  };
  struct Block {
    Pair ln_1, c_attn, c_proj, ln_2, c_fc, mlp_proj;
  };

  Pair norm(const std::string& name) {
    return {add_parameter(name + ".weight", {n_embd_}, {Initial::kConstant, 1}),
            add_parameter(name + ".bias", {n_embd_}, {Initial::kConstant, 0})};
  }
  Pair linear(const std::string& name, std::int64_t in, std::int64_t out, double deviation) {
    return {add_parameter(name + ".weight", {in, out}, {Initial::kNormal, deviation}),
            add_parameter(name + ".bias", {out}, {Initial::kConstant, 0})};
  }
  at::Tensor normalised(const at::Tensor& x, const Pair& norm) const {
    return at::layer_norm(x, {n_embd_}, norm.weight, norm.bias, kEps);
  }

  at::Tensor attention(const at::Tensor& x, const Block& block, std::int64_t batch,
                       std::int64_t time) const {
    const std::int64_t head = n_embd_ / n_head_;
    const at::Tensor qkv = at::addmm(block.c_attn.bias, x, block.c_attn.weight);
    const double p = training_ ? dropout_ : 0;
    at::Tensor y;
    if (x.is_cuda()) {
      // Split where they lie side by side: the gradients are put together again in one copy.
      const auto parts = qkv.view({batch, time, 3 * n_embd_}).split(n_embd_, 2);
      const auto heads = [&](const at::Tensor& part) {
        return part.view({batch, time, n_head_, head}).transpose(1, 2);
      };
      y = causal_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), p);
    } else {
      // One copy for all three.
      const at::Tensor in_heads =
          qkv.view({batch, time, 3, n_head_, head}).permute({2, 0, 3, 1, 4});
      y = CausalAttention::apply(in_heads.reshape({3, batch * n_head_, time, head}), p,
                                 p > 0 ? draw_key() : 0)
              .view({batch, n_head_, time, head});
    }
    return at::addmm(block.c_proj.bias, y.transpose(1, 2).reshape({batch * time, n_embd_}),
                     block.c_proj.weight);
  }

  at::Tensor feed_forward(const at::Tensor& x, const Block& block) const {
    const at::Tensor y = at::gelu(at::addmm(block.c_fc.bias, x, block.c_fc.weight), "tanh");
    return at::addmm(block.mlp_proj.bias, y, block.mlp_proj.weight);
  }

  std::int64_t n_layer_;
  std::int64_t n_head_;
  std::int64_t n_embd_;
  std::int64_t block_size_;
  std::int64_t vocab_size_;
  at::Tensor wte_;
  at::Tensor wpe_;
  std::vector<Block> blocks_;
  Pair ln_f_;
};

}  // namespace

Result<std::unique_ptr<Network>> make_gpt(const config::Model& model, const Dataset& dataset,
                                          Device* device) {
  if (dataset.input().type != DType::kI64 ||
      dataset.input().shape != std::vector<std::int64_t>{model.block_size()}) {
    return error(
        Code::kInvalid,
        "model.kind gpt needs data of kind text, tokens or synthetic: block_size tokens a sample");
  }
  if (model.n_embd() % model.n_head() != 0) {
    return error(Code::kInvalid, "model.n_head: found {}, it must divide model.n_embd {}",
                 model.n_head(), model.n_embd());
  }
  return std::unique_ptr<Network>(std::make_unique<Gpt>(model, device));
}

}  // namespace surefoot
