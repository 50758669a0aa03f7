// The only way in to libtorch's headers, for the few sources that need them: precompiled. What
// differs between libtorch 1.13 (Debian, processor) and 2.x (PyTorch, GPU) is here and nowhere
// else.
//
// No header that the training loop sees may include it.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/script.h>
#include <torch/torch.h>
#include <torch/version.h>

// Caffe2's logging macro; other libraries have their own.
#ifdef CHECK
#undef CHECK
#endif

namespace surefoot {

// While it lives, on this thread: operators on a GPU that gain from it compute in bf16, from copies
// of the fp32 weights; the others in fp32 (autocast). Not to be nested.
class Autocast {
 public:
  explicit Autocast(bool to_bf16) : on_(to_bf16) {
    if (on_) set(true);
  }
  ~Autocast() {
    if (!on_) return;
    // The copies belong to this state of the weights.
    at::autocast::clear_cache();
    set(false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  static void set(bool on) {
#if TORCH_VERSION_MAJOR >= 2
    at::autocast::set_autocast_enabled(at::kCUDA, on);
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
#else
    at::autocast::set_enabled(on);
    at::autocast::set_autocast_gpu_dtype(at::kBFloat16);
#endif
  }
  bool on_;
};

// Softmax(q k^T / sqrt(head)) v with a causal mask over [batch, heads, time, head], and dropout of
// the probabilities; the library's fused kernel where it has a deterministic one.
inline at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   double dropout) {
#if TORCH_VERSION_MAJOR >= 2
  return at::scaled_dot_product_attention(q, k, v, {}, dropout, /*is_causal=*/true);
#else
  return std::get<0>(
      at::_scaled_dot_product_attention(q, k, v, {}, dropout, false, /*is_causal=*/true));
#endif
}

// Of several libraries for one operator only those whose backward has one order of additions, and
// none chosen by a race against the clock. `tf32`: products of fp32 matrices in it.
inline void set_deterministic_gpu(bool tf32) {
  at::Context& context = at::globalContext();
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setAllowTF32CuBLAS(tf32);
  context.setAllowTF32CuDNN(tf32);
#if TORCH_VERSION_MAJOR >= 2
  context.setSDPUseFlash(true);
  context.setSDPUseMath(true);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
#endif
}

// Deterministic algorithms, an operator without one throws and says its name. Memory is not filled
// before it is used: nothing here reads it unwritten.
inline void set_deterministic() {
  at::globalContext().setDeterministicAlgorithms(true, false);
#if TORCH_VERSION_MAJOR >= 2
  at::globalContext().setDeterministicFillUninitializedMemory(false);
#endif
}

inline bool has_one_of(std::string_view message, std::initializer_list<std::string_view> marks) {
  return std::any_of(marks.begin(), marks.end(), [message](std::string_view mark) {
    return message.find(mark) != std::string_view::npos;
  });
}

// Whether a message of libtorch tells that a GPU's memory is full: to its allocator, or to one of
// CUDA's libraries, which take their own. Its type is lost on the way out of a TorchScript module.
inline bool is_out_of_memory(std::string_view message) {
  return has_one_of(
      message, {"CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
                "CUDNN_STATUS_ALLOC_FAILED", "DEVICE_ALLOCATION_FAILED"});
}

// Whether it tells of another CUDA call that failed, rather than of the model. There is no type for
// it before 2.8.
inline bool is_device_failure(std::string_view message) {
  return has_one_of(message, {"CUDA error", "CUBLAS_STATUS_", "CUDNN_STATUS_", "CUDA driver error",
                              "cuDNN error"});
}

}  // namespace surefoot
