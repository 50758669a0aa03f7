#include "worker/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"

namespace surefoot {
namespace {

// base^n by squaring: products only, so that the bits do not depend on a libm.
double power(double base, std::int64_t n) {
  double result = 1;
  for (; n > 0; n >>= 1, base *= base) {
    if (n & 1) result *= base;
  }
  return result;
}

// The loops below are written for the vectoriser: no branches, no aliasing. Vector and scalar code
// round alike, since + - * / sqrt are correctly rounded and contraction is off; so neither the
// vector's width nor the loop's tail shows in the bits.

void adamw(std::size_t count, const AdamWScalars s, const float keep, const float* p,
           const float* m, const float* v, const float* sum, float* p_out, float* m_out,
           float* v_out) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i)
    adamw_element(s, keep, sum[i], p[i], m[i], v[i], p_out[i], m_out[i], v_out[i]);
}

void sgd(std::size_t count, const SgdScalars s, const float decay, const float* p, const float* m,
         const float* sum, float* p_out, float* m_out) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i)
    sgd_element(s, decay, sum[i], p[i], m[i], p_out[i], m_out[i]);
}

}  // namespace

Optimizer::Optimizer(const config::Optimizer& options, std::vector<ElementRange> decayed)
    : options_(options), decayed_(std::move(decayed)) {}

std::vector<std::string> Optimizer::moment_names(const config::Optimizer& options) {
  if (options.kind() == config::Optimizer::adamw) return {"exp_avg", "exp_avg_sq"};
  return {"momentum"};
}

UpdateScalars Optimizer::scalars(const StepScalars& scalars) const {
  SUREFOOT_CHECK(scalars.step.value >= 1);
  if (options_.kind() == config::Optimizer::adamw) {
    const double beta1 = options_.betas(0);
    const double beta2 = options_.betas(1);
    AdamWScalars s{};
    s.scale = static_cast<float>(scalars.gradient_scale);
    s.keep_decayed = static_cast<float>(1 - scalars.learning_rate * options_.weight_decay());
    s.one_minus_beta1 = static_cast<float>(1 - beta1);
    s.beta2 = static_cast<float>(beta2);
    s.one_minus_beta2 = static_cast<float>(1 - beta2);
    s.step_size =
        static_cast<float>(scalars.learning_rate / (1 - power(beta1, scalars.step.value)));
    s.root_correction = static_cast<float>(std::sqrt(1 - power(beta2, scalars.step.value)));
    s.eps = std::max(static_cast<float>(options_.eps()), std::numeric_limits<float>::denorm_min());
    return s;
  }
  SgdScalars s{};
  s.scale = static_cast<float>(scalars.gradient_scale);
  s.decay = static_cast<float>(options_.weight_decay());
  s.momentum = static_cast<float>(options_.momentum());
  s.lr = static_cast<float>(scalars.learning_rate);
  return s;
}

void Optimizer::update_run(ElementRange range, bool decay, const OptimizerState& from,
                           const MutableOptimizerState& to, const float* gradient_sum,
                           const UpdateScalars& scalars) {
  const auto at = range.begin;
  const auto count = static_cast<std::size_t>(range.end - range.begin);
  if (const auto* s = std::get_if<AdamWScalars>(&scalars)) {
    adamw(count, *s, decay ? s->keep_decayed : 1.0F, from.parameters + at, from.moments[0] + at,
          from.moments[1] + at, gradient_sum + at, to.parameters + at, to.moments[0] + at,
          to.moments[1] + at);
  } else {
    const auto& sgd_scalars = std::get<SgdScalars>(scalars);
    sgd(count, sgd_scalars, decay ? sgd_scalars.decay : 0.0F, from.parameters + at,
        from.moments[0] + at, gradient_sum + at, to.parameters + at, to.moments[0] + at);
  }
}

void Optimizer::update(ElementRange range, const OptimizerState& from,
                       const MutableOptimizerState& to, const float* gradient_sum,
                       const StepScalars& scalars) const {
  SUREFOOT_CHECK(range.begin >= 0);
  const UpdateScalars rounded = this->scalars(scalars);
  // The first decayed range that ends behind range.begin; ranges are ascending.
  auto next =
      std::upper_bound(decayed_.begin(), decayed_.end(), range.begin,
                       [](std::int64_t begin, const ElementRange& r) { return begin < r.end; });
  for (std::int64_t begin = range.begin; begin < range.end;) {
    const bool decay = next != decayed_.end() && next->begin <= begin;
    std::int64_t end = range.end;
    if (next != decayed_.end()) end = std::min(end, decay ? next->end : next->begin);
    update_run({begin, end}, decay, from, to, gradient_sum, rounded);
    if (decay) ++next;
    begin = end;
  }
}

double gradient_norm(double square_sum, std::int64_t micro_batches) {
  return std::sqrt(square_sum) / static_cast<double>(micro_batches);
}

double gradient_scale(double norm, double grad_clip, std::int64_t micro_batches) {
  const double mean = 1.0 / static_cast<double>(micro_batches);
  return grad_clip > 0 && norm > grad_clip ? mean * (grad_clip / norm) : mean;
}

void apply_buffer_change(std::span<const float> before, std::span<const float> change_sum,
                         std::int64_t micro_batches, std::span<float> after) {
  SUREFOOT_CHECK(before.size() == change_sum.size() && before.size() == after.size());
  const float count = static_cast<float>(micro_batches);
  for (std::size_t i = 0; i < before.size(); ++i)
    after[i] = changed_buffer(before[i], change_sum[i], count);
}

}  // namespace surefoot
