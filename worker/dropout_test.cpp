#include "worker/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace surefoot {
namespace {

std::vector<float> mask(std::uint64_t key, double p, std::size_t count) {
  std::vector<float> ones(count, 1.0f);
  DropoutMask(key, p).apply(count, ones.data(), ones.data());
  return ones;
}

TEST(Dropout, KeepsTheShareAskedForAndScalesItUp) {
  constexpr std::size_t kCount = 1 << 20;
  for (const double p : {0.0, 0.1, 0.5, 0.99}) {
    const std::vector<float> values = mask(1, p, kCount);
    std::size_t kept = 0;
    for (const float value : values) {
      ASSERT_TRUE(value == 0.0f || value == static_cast<float>(1 / (1 - p)));
      kept += value != 0.0f;
    }
    // Six standard deviations of a binomial distribution.
    EXPECT_NEAR(static_cast<double>(kept), kCount * (1 - p),
                6 * std::sqrt(kCount * p * (1 - p)) + 1e-9)
        << p;
  }
}

TEST(Dropout, MasksOfDifferentKeysAndNeighbouringElementsAreIndependent) {
  constexpr std::size_t kCount = 1 << 20;
  const std::vector<float> first = mask(1, 0.5, kCount);
  for (const std::uint64_t key : {2ull, 3ull, 1ull << 32, (1ull << 32) + 1}) {
    const std::vector<float> other = mask(key, 0.5, kCount);
    for (const std::size_t shift : {0u, 1u, 2u, 128u, 4096u}) {
      std::size_t equal = 0;
      for (std::size_t i = shift; i < kCount; ++i)
        equal += (first[i] != 0) == (other[i - shift] != 0);
      EXPECT_NEAR(static_cast<double>(equal), (kCount - shift) / 2.0, 3500) << key << " " << shift;
    }
  }
  for (const std::size_t shift : {1u, 2u, 3u, 16u, 128u, 65536u}) {
    std::size_t equal = 0;
    for (std::size_t i = shift; i < kCount; ++i)
      equal += (first[i] != 0) == (first[i - shift] != 0);
    EXPECT_NEAR(static_cast<double>(equal), (kCount - shift) / 2.0, 3500) << shift;
  }
}

TEST(Dropout, IsAFunctionOfKeyAndElement) {
  const std::vector<float> whole = mask(7, 0.3, 1000);
  EXPECT_EQ(whole, mask(7, 0.3, 1000));
  const std::vector<float> part = mask(7, 0.3, 333);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin()));
}

TEST(Dropout, AddsToTheOtherOperand) {
  const std::vector<float> x(100, 2.0f);
  const std::vector<float> r(100, 5.0f);
  std::vector<float> apart(100);
  std::vector<float> together(100);
  const DropoutMask mask(9, 0.25);
  mask.apply(100, x.data(), apart.data());
  mask.apply_and_add(100, x.data(), r.data(), together.data());
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(together[i], r[i] + apart[i]);
}

}  // namespace
}  // namespace surefoot
