// What defines the numbers of a reduction: changing any of it changes bits. Plain constants, so
// that host and device code share them.
#pragma once

#include <cstdint>

namespace surefoot {

// Block of the gradient's norm; borders of buckets and ranges are multiples of it.
inline constexpr std::int64_t kBlockElements = 4096;
// Partial sums of a block in its sum of squares: by index modulo kLanes.
inline constexpr int kLanes = 16;

// How gradients are rounded at the nodes of the tree, and so how they travel.
enum class NumberFormat {
  kFp32,
  kBf16,  // the upper half of an fp32, rounded to nearest, ties to even
};
[[nodiscard]] constexpr std::int64_t bytes_of(NumberFormat format) {
  return format == NumberFormat::kBf16 ? 2 : 4;
}

}  // namespace surefoot
