#include "worker/attention.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace surefoot {
namespace {

constexpr std::size_t kLanes = 8;

// e^x for x <= 0; 0 or a denormal's neighbourhood below -87.
[[gnu::always_inline]] inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float rounded = x * 1.44269504088896341f + kRound;
  const float n = rounded - kRound;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = p * (r * r) + r + 1.0f;
  // 2^n: the last bits of `rounded` count it; of a NaN they are anything.
  const std::uint32_t exponent =
      std::bit_cast<std::uint32_t>(rounded) - std::bit_cast<std::uint32_t>(kRound) + 127;
  return y * std::bit_cast<float>(exponent << 23);
}

// Calls body(i, lane) for i in [0, count); lane is i mod kLanes, in an inner loop of fixed length
// for the vectoriser.
template <class Body>
[[gnu::always_inline]] inline void in_lanes(std::size_t count, const Body& body) {
  const std::size_t whole = count - count % kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) body(i + lane, lane);
  }
  for (std::size_t i = whole; i < count; ++i) body(i, i - whole);
}

[[gnu::always_inline]] inline float sum_of(const float (&lanes)[kLanes]) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

[[gnu::always_inline]] inline void forward_row(std::size_t count, float scale, float* row) {
  float highest[kLanes];
  std::fill_n(highest, kLanes, -std::numeric_limits<float>::infinity());
  in_lanes(count, [&](std::size_t i, std::size_t lane) {
    highest[lane] = row[i] > highest[lane] ? row[i] : highest[lane];
  });
  const float top = *std::max_element(highest, highest + kLanes);
  float sums[kLanes] = {};
  in_lanes(count, [&](std::size_t i, std::size_t lane) {
    const float e = exponential((row[i] - top) * scale);
    row[i] = e;
    sums[lane] += e;
  });
  const float share = 1.0f / sum_of(sums);
  for (std::size_t i = 0; i < count; ++i) row[i] *= share;
}

[[gnu::always_inline]] inline void backward_row(std::size_t count, float scale, const float* p,
                                                float* g) {
  float sums[kLanes] = {};
  in_lanes(count, [&](std::size_t i, std::size_t lane) { sums[lane] += g[i] * p[i]; });
  const float mean = sum_of(sums);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) g[i] = scale * (p[i] * (g[i] - mean));
}

[[gnu::always_inline]] inline void forward(std::size_t size, float scale, float* scores) {
  for (std::size_t t = 0; t < size; ++t) {
    forward_row(t + 1, scale, scores + t * size);
    std::fill(scores + t * size + t + 1, scores + (t + 1) * size, 0.0f);
  }
}

[[gnu::always_inline]] inline void backward(std::size_t size, float scale, const float* p,
                                            float* g) {
  for (std::size_t t = 0; t < size; ++t) {
    backward_row(t + 1, scale, p + t * size, g + t * size);
    std::fill(g + t * size + t + 1, g + (t + 1) * size, 0.0f);
  }
}

// Each compiled twice, as in dropout.cpp: the same operations in the same order, eight or four at a
// time.
[[gnu::target("avx2")]] void forward_avx2(std::size_t size, float scale, float* scores) {
  forward(size, scale, scores);
}
[[gnu::target("avx2")]] void backward_avx2(std::size_t size, float scale, const float* p,
                                           float* g) {
  backward(size, scale, p, g);
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

}  // namespace

void causal_softmax(std::size_t size, float scale, float* scores) {
  has_avx2() ? forward_avx2(size, scale, scores) : forward(size, scale, scores);
}

void causal_softmax_backward(std::size_t size, float scale, const float* probabilities,
                             float* gradient) {
  has_avx2() ? backward_avx2(size, scale, probabilities, gradient)
             : backward(size, scale, probabilities, gradient);
}

}  // namespace surefoot
