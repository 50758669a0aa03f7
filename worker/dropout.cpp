#include "worker/dropout.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "worker/order.h"  // mix

namespace surefoot {
namespace {

struct Words {
  std::uint32_t first;
  std::uint32_t second;
  std::uint32_t threshold;
  float scale;
};

// The loop is compiled twice, for any x86-64 and for AVX2, which has a 32-bit product; both give
// the same bits.
template <bool kAdd>
[[gnu::always_inline]] inline void loop(Words w, std::uint32_t count, const float* x,
                                        const float* r, float* y) {
#pragma GCC ivdep
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t h = i + w.first;
    h = (h ^ (h >> 16)) * 0x7feb352du;
    h ^= w.second;
    h = (h ^ (h >> 15)) * 0x846ca68bu;
    h ^= h >> 16;
    const float kept = x[i] * (h >= w.threshold ? w.scale : 0.0f);
    y[i] = kAdd ? r[i] + kept : kept;
  }
}

template <bool kAdd>
[[gnu::target("avx2")]] void loop_avx2(Words w, std::uint32_t count, const float* x, const float* r,
                                       float* y) {
  loop<kAdd>(w, count, x, r, y);
}
template <bool kAdd>
void loop_any(Words w, std::uint32_t count, const float* x, const float* r, float* y) {
  loop<kAdd>(w, count, x, r, y);
}

template <bool kAdd>
void run(std::uint64_t key, std::uint32_t threshold, float scale, std::size_t count, const float* x,
         const float* r, float* y) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  constexpr std::size_t kPiece = std::size_t{1}
                                 << 30;  // the index is 32 bits; each piece has a key of its own
  for (std::size_t at = 0; at < count; at += kPiece) {
    const std::uint64_t word = mix(key + at);
    const Words words{static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32),
                      threshold, scale};
    const auto piece = static_cast<std::uint32_t>(std::min(kPiece, count - at));
    (has_avx2 ? loop_avx2<kAdd> : loop_any<kAdd>)(words, piece, x + at, kAdd ? r + at : nullptr,
                                                  y + at);
  }
}

}  // namespace

DropoutMask::DropoutMask(std::uint64_t key, double p)
    : key_(key),
      threshold_(static_cast<std::uint32_t>(std::floor(p * 0x1p32))),
      scale_(static_cast<float>(1 / (1 - p))) {
  SUREFOOT_CHECK(p >= 0 && p < 1);
}

void DropoutMask::apply(std::size_t count, const float* x, float* y) const {
  run<false>(key_, threshold_, scale_, count, x, nullptr, y);
}

void DropoutMask::apply_and_add(std::size_t count, const float* x, const float* r, float* y) const {
  run<true>(key_, threshold_, scale_, count, x, r, y);
}

}  // namespace surefoot
