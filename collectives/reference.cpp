#include "collectives/reference.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace surefoot {
namespace {

std::size_t split(std::size_t begin, std::size_t end) {
  std::size_t power = 1;
  while (power * 2 < end - begin) power *= 2;
  return begin + power;
}

std::vector<float> node(std::vector<float> values, std::size_t rounded_elements) {
  for (std::size_t i = 0; i < rounded_elements; ++i) values[i] = reference_bf16(values[i]);
  return values;
}

std::vector<float> sum_of(const std::vector<std::vector<float>>& vectors, std::size_t begin,
                          std::size_t end, std::size_t rounded_elements) {
  if (end - begin == 1) return node(vectors[begin], rounded_elements);
  const std::size_t middle = split(begin, end);
  const std::vector<float> left = sum_of(vectors, begin, middle, rounded_elements);
  const std::vector<float> right = sum_of(vectors, middle, end, rounded_elements);
  std::vector<float> sum(left.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = left[i] + right[i];
  return node(sum, rounded_elements);
}

double sum_of(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  if (end - begin == 1) return values[begin];
  const std::size_t middle = split(begin, end);
  return sum_of(values, begin, middle) + sum_of(values, middle, end);
}

}  // namespace

std::vector<float> reference_sum(const std::vector<std::vector<float>>& micro_batches,
                                 std::size_t rounded_elements) {
  return sum_of(micro_batches, 0, micro_batches.size(), rounded_elements);
}

float reference_bf16(float value) {
  if (!std::isfinite(value)) return value;
  // The two neighbours differ in the last bit of the upper half; the one further from zero may be
  // infinity, which counts as 2^128.
  const auto upper_half = std::bit_cast<std::uint32_t>(value) & 0xFFFF0000U;
  const float inner = std::bit_cast<float>(upper_half);
  const float outer = std::bit_cast<float>(upper_half + 0x10000U);
  const double outer_number =
      std::isinf(outer) ? std::copysign(std::ldexp(1.0, 128), value) : outer;
  const double to_inner = std::abs(static_cast<double>(value) - inner);
  const double to_outer = std::abs(outer_number - value);
  if (to_inner != to_outer) return to_inner < to_outer ? inner : outer;
  const bool is_inner_even = (upper_half >> 16) % 2 == 0;
  return is_inner_even ? inner : outer;
}

double reference_sum(const std::vector<double>& losses) {
  return sum_of(losses, 0, losses.size());
}

double reference_square_sum(const std::vector<float>& sum, std::size_t elements) {
  std::vector<double> blocks;
  for (std::size_t begin = 0; begin < elements; begin += 4096) {
    // Sixteen partial sums by index modulo 16, then neighbours added pairwise.
    std::vector<double> lanes(16, 0.0);
    for (std::size_t i = 0; i < 4096 && begin + i < elements; ++i) {
      const double value = sum[begin + i];
      lanes[i % 16] = lanes[i % 16] + value * value;
    }
    while (lanes.size() > 1) {
      std::vector<double> pairs;
      for (std::size_t i = 0; i < lanes.size(); i += 2) pairs.push_back(lanes[i] + lanes[i + 1]);
      lanes = pairs;
    }
    blocks.push_back(lanes[0]);
  }
  return blocks.empty() ? 0.0 : reference_sum(blocks);
}

}  // namespace surefoot
