#include "collectives/arithmetic.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "collectives/reducer.h"

namespace surefoot {

void add(const float* left, const float* right, float* sum, std::size_t count) {
  // Elements are independent of each other, also where sum is left or right.
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) sum[i] = left[i] + right[i];
}

void add_and_clear(float* left, float* right, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    left[i] = left[i] + right[i];
    right[i] = 0.0F;
  }
}

double block_square_sum(const float* values, std::size_t count) {
  // Vectors of the compiler rather than an array: g++ keeps these sixteen sums in registers.
  typedef float Floats __attribute__((vector_size(8), aligned(4)));
  typedef double Doubles __attribute__((vector_size(16)));
  std::array<Doubles, kLanes / 2> lanes{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 8
    for (std::size_t pair = 0; pair < lanes.size(); ++pair) {
      const Doubles wide =
          __builtin_convertvector(*reinterpret_cast<const Floats*>(values + i + 2 * pair), Doubles);
      lanes[pair] = lanes[pair] + wide * wide;
    }
  }
  std::array<double, kLanes> sums;
  for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] = lanes[lane / 2][lane % 2];
  for (std::size_t lane = 0; i + lane < count; ++lane) {
    const double wide = values[i + lane];
    sums[lane] = sums[lane] + wide * wide;
  }
  for (std::size_t width = kLanes; width > 1; width /= 2) {
    for (std::size_t pair = 0; pair < width / 2; ++pair) {
      sums[pair] = sums[2 * pair] + sums[2 * pair + 1];
    }
  }
  return sums[0];
}

double tree_sum(std::span<const double> values) {
  if (values.empty()) return 0.0;
  if (values.size() == 1) return values[0];
  const std::size_t middle = std::bit_floor(values.size() - 1);
  return tree_sum(values.first(middle)) + tree_sum(values.subspan(middle));
}

double square_sum(std::span<const float> gradient) {
  std::vector<double> blocks;
  for (std::size_t begin = 0; begin < gradient.size(); begin += kBlockElements) {
    const auto count = std::min<std::size_t>(kBlockElements, gradient.size() - begin);
    blocks.push_back(block_square_sum(gradient.data() + begin, count));
  }
  return tree_sum(blocks);
}

}  // namespace surefoot
