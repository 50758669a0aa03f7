// The update of the parameters: ours, on flat buffers, so that its bits are known.
//
// Reads parameters and moments of one state (the read slot), the summed gradient, and writes
// parameters and moments of the next state (the write slot). An element's result depends on that
// element's inputs and on the step's scalars only: any split of a range gives the same bits. Only +
// - * / sqrt on floats, each rounded (compiled without contraction to FMA and without -ffast-math);
// scalars of the step are computed in double and rounded to float once.
//
// With g = gradient_scale * sum, per element (decay only where the element lies in a decayed
// range):
//   adamw (Loshchilov & Hutter 2019, as in PyTorch)       sgd with momentum (as in PyTorch, no
//   dampening)
//     p1 = p - lr wd p                                      g1 = g + wd p
//     m' = m + (1 - b1)(g - m)                              m' = mu m + g1
//     v' = b2 v + (1 - b2) g g                              p' = p - lr m'
//     p' = p1 - (lr / (1 - b1^k)) m' / (sqrt(v') / sqrt(1 - b2^k) + eps)
//
// Pure; threads may update disjoint ranges at once. `from` and `to` may be the same memory, but
// must not overlap otherwise.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/element_range.h"
#include "common/ids.h"
#include "configs/job.pb.h"
#include "worker/update_arithmetic.h"

namespace surefoot {

// Base pointers of the sections of one state; element e of the parameters has its moments at
// element e too.
struct OptimizerState {
  const float* parameters = nullptr;
  std::array<const float*, kMaxMoments> moments{};
};
struct MutableOptimizerState {
  float* parameters = nullptr;
  std::array<float*, kMaxMoments> moments{};
};

struct StepScalars {
  Step step;  // k >= 1, for the bias corrections
  double learning_rate = 0;
  double gradient_scale = 1;  // gradient_scale() below
};

class Optimizer {
 public:
  // `decayed`: element ranges that weight decay applies to, ascending and disjoint.
  Optimizer(const config::Optimizer& options, std::vector<ElementRange> decayed);

  // Section names of the moments, in the order of OptimizerState::moments: {"exp_avg",
  // "exp_avg_sq"} or {"momentum"}.
  [[nodiscard]] static std::vector<std::string> moment_names(const config::Optimizer& options);

  // Updates the elements of `range`. `gradient_sum` is indexed by element like the parameters.
  void update(ElementRange range, const OptimizerState& from, const MutableOptimizerState& to,
              const float* gradient_sum, const StepScalars& scalars) const;

  // What a step's update takes beside the elements: computed in double, rounded once.
  [[nodiscard]] UpdateScalars scalars(const StepScalars& scalars) const;
  [[nodiscard]] const std::vector<ElementRange>& decayed() const { return decayed_; }

 private:
  static void update_run(ElementRange range, bool decay, const OptimizerState& from,
                         const MutableOptimizerState& to, const float* gradient_sum,
                         const UpdateScalars& scalars);
  config::Optimizer options_;
  std::vector<ElementRange> decayed_;
};

// Norm of the mean gradient. `square_sum` is over the elements of the *sum* over M micro-batches.
[[nodiscard]] double gradient_norm(double square_sum, std::int64_t micro_batches);
// 1/M, times grad_clip / norm where the norm is larger than grad_clip (0: never clipped).
[[nodiscard]] double gradient_scale(double norm, double grad_clip, std::int64_t micro_batches);

// Floating-point buffers (running statistics, frozen parameters). What goes through the reduction
// is each micro-batch's *change*, after - before; the step's result is before + mean change. That
// is the mean of `after`, but a buffer that did not change keeps its bits (a plain mean would round
// a frozen weight a little off at every step, and turn an infinite one into NaN).
void apply_buffer_change(std::span<const float> before, std::span<const float> change_sum,
                         std::int64_t micro_batches, std::span<float> after);

}  // namespace surefoot
