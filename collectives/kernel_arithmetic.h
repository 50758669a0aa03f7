// The arithmetic of the reduction on a device, element by element. The kernels (nccl/kernels.cu)
// and their double on the host (testing/host_stream.cpp) are made of these same lines, so that the
// tests of the host check the source that runs on the device.
//
// Compiled without fused multiply-add (--fmad=false; -ffp-contract=off), with denormals kept, and
// only + and * of numbers: what IEEE 754 defines to the last bit everywhere. Which NaN it is, of
// all NaN, is not defined.
//
// Pure.
#pragma once

#include <cstdint>
#include <cstring>

#include "collectives/numbers.h"
#include "common/host_device.h"

namespace surefoot::kernel {

using Bf16 = std::uint16_t;

SUREFOOT_HOST_DEVICE inline Bf16 to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  // Rounding could carry a NaN's payload away and leave an infinity.
  constexpr std::uint32_t kQuiet = 0x40;
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<Bf16>((bits >> 16) | kQuiet);
  return static_cast<Bf16>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

SUREFOOT_HOST_DEVICE inline float from_bf16(Bf16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// Rounding twice is rounding once: so an operand may come rounded or not.
SUREFOOT_HOST_DEVICE inline float rounded(float value, NumberFormat format) {
  return format == NumberFormat::kBf16 ? from_bf16(to_bf16(value)) : value;
}

// A node of the tree from its two children.
SUREFOOT_HOST_DEVICE inline float node(float left, float right, NumberFormat format) {
  return rounded(rounded(left, format) + rounded(right, format), format);
}

// Element `at` of the slots, from left to right: adds the last one to its left neighbour, the sum
// to the next, and so on until the first; all but the first are zero afterwards. At least two
// slots.
SUREFOOT_HOST_DEVICE inline void add_up(float* const* slots, int count, std::int64_t at,
                                        NumberFormat format) {
  float value = slots[count - 1][at];
  slots[count - 1][at] = 0.0F;
  for (int slot = count - 2; slot > 0; --slot) {
    value = node(slots[slot][at], value, format);
    slots[slot][at] = 0.0F;
  }
  slots[0][at] = node(slots[0][at], value, format);
}

// Where a root of the tree lies. `is_vector`: element e of the vector is values[e]; otherwise
// values[0] is the first element of the range that is being finished.
struct Root {
  const void* values;
  NumberFormat format;
  bool is_vector;
};

SUREFOOT_HOST_DEVICE inline float load(const Root& root, std::int64_t element,
                                       std::int64_t range_begin) {
  const std::int64_t at = root.is_vector ? element : element - range_begin;
  if (root.format == NumberFormat::kBf16) {
    return from_bf16(static_cast<const Bf16*>(root.values)[at]);
  }
  return static_cast<const float*>(root.values)[at];
}

// The sum of the roots for one element, as a stack machine: each root is pushed, then the two on
// top are added `additions_after` times. `Stack` holds what lies below the top: put(depth, value),
// get(depth).
template <class Stack>
SUREFOOT_HOST_DEVICE inline float finish(const Root* roots, const std::int32_t* additions_after,
                                         int count, std::int64_t element, std::int64_t range_begin,
                                         NumberFormat format, Stack& stack) {
  float top = rounded(load(roots[0], element, range_begin), format);
  int depth = 0;
  for (int i = 1; i < count; ++i) {
    stack.put(depth++, top);
    top = rounded(load(roots[i], element, range_begin), format);
    for (int n = additions_after[i]; n > 0; --n) top = node(stack.get(--depth), top, format);
  }
  return top;
}

// Sum of the squares of every kLanes-th element of a block from `lane` on, in order.
SUREFOOT_HOST_DEVICE inline double lane_square_sum(const float* block, int lane) {
  double sum = 0.0;
  for (int i = lane; i < static_cast<int>(kBlockElements); i += kLanes) {
    const double wide = block[i];
    const double square = wide * wide;
    sum = sum + square;
  }
  return sum;
}

// Neighbours added pairwise until one is left. Overwrites `lanes`.
SUREFOOT_HOST_DEVICE inline double sum_of_lanes(double* lanes) {
  for (int width = kLanes; width > 1; width /= 2) {
    for (int pair = 0; pair < width / 2; ++pair) {
      lanes[pair] = lanes[2 * pair] + lanes[2 * pair + 1];
    }
  }
  return lanes[0];
}

}  // namespace surefoot::kernel
