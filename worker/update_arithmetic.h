// The update of one element: what the loops of optimizer.cpp and the kernels of a GPU both call, so
// that both give the same bits (optimizer.h has the formulas). Only + - * / sqrt on floats, each
// rounded by itself.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "common/host_device.h"

namespace surefoot {

inline constexpr std::size_t kMaxMoments = 2;

// Rounded once from double, by Optimizer::scalars().
struct AdamWScalars {
  float scale;         // of the gradient sum
  float keep_decayed;  // 1 - lr * weight decay; where nothing decays 1 (a product with it changes
                       // no bit)
  float one_minus_beta1, beta2, one_minus_beta2;
  float step_size;        // lr / (1 - beta1^k)
  float root_correction;  // sqrt(1 - beta2^k)
  float eps;              // never zero: 0 / (0 + 0) in the gaps between tensors would be NaN
};

struct SgdScalars {
  float scale;
  float decay;  // weight decay; where nothing decays 0
  float momentum;
  float lr;
};

using UpdateScalars = std::variant<AdamWScalars, SgdScalars>;

SUREFOOT_HOST_DEVICE inline void adamw_element(const AdamWScalars& s, float keep, float gradient,
                                               float p, float m, float v, float& p_out,
                                               float& m_out, float& v_out) {
  const float g = s.scale * gradient;
  const float kept = keep * p;
  const float mean = m + s.one_minus_beta1 * (g - m);
  const float square = s.beta2 * v + s.one_minus_beta2 * g * g;
  p_out = kept - s.step_size * mean / (std::sqrt(square) / s.root_correction + s.eps);
  m_out = mean;
  v_out = square;
}

SUREFOOT_HOST_DEVICE inline void sgd_element(const SgdScalars& s, float decay, float gradient,
                                             float p, float m, float& p_out, float& m_out) {
  const float g = s.scale * gradient + decay * p;
  const float velocity = s.momentum * m + g;
  p_out = p - s.lr * velocity;
  m_out = velocity;
}

// A floating-point buffer after the step: `change` is the sum of its changes over all
// micro-batches.
SUREFOOT_HOST_DEVICE inline float changed_buffer(float before, float change, float micro_batches) {
  return change == 0 ? before : before + change / micro_batches;
}

}  // namespace surefoot
