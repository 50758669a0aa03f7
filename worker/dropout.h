// Dropout's mask, computed from a key on the spot: nothing to store, and much faster than drawing
// from the generator one by one.
//
// Element i is kept when hash(key, i) >= p 2^32; what is kept is multiplied by 1 / (1 - p). The
// hash is lowbias32 (Wellons 2018) with the key mixed in twice. Integers and one product, so the
// bits are the same on every processor. The key comes from the generator that is seeded for each
// micro-batch.
//
// Pure, thread-safe. `x` and `y` may be the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace surefoot {

class DropoutMask {
 public:
  // 0 <= p < 1.
  DropoutMask(std::uint64_t key, double p);
  // y[i] = mask(i) x[i]
  void apply(std::size_t count, const float* x, float* y) const;
  // y[i] = r[i] + mask(i) x[i]
  void apply_and_add(std::size_t count, const float* x, const float* r, float* y) const;

 private:
  std::uint64_t key_;
  std::uint32_t threshold_;
  float scale_;
};

}  // namespace surefoot
