// The additions the reduction is made of, on flat arrays. Compiled with -ffp-contract=off: only
// plain additions and multiplications, so an element's bits depend neither on where a vector loop
// starts nor on the processor.
//
// Pure. Arrays may be the same (element i is read before it is written) but must not overlap
// otherwise.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/numbers.h"

namespace surefoot {

// Pieces small enough that a handful of operands stay in the first-level caches while a chain of
// additions passes over them.
inline constexpr std::size_t kPieceElements = 4096;

// sum[i] = left[i] + right[i].
void add(const float* left, const float* right, float* sum, std::size_t count);
// left[i] = left[i] + right[i]; right[i] = 0. The right buffer is clean for its next micro-batch
// while it is in the cache.
void add_and_clear(float* left, float* right, std::size_t count);

// Sum of squares of at most kBlockElements elements: lane i mod kLanes sums element i in order;
// then neighbouring lanes are added pairwise until one is left.
[[nodiscard]] double block_square_sum(const float* values, std::size_t count);

// The sum of `values` over the tree of reduction_tree.h; 0 when there are none.
[[nodiscard]] double tree_sum(std::span<const double> values);

}  // namespace surefoot
