// The reduction as slowly and obviously as it can be written: all micro-batch vectors in one place,
// one recursion over the tree. The tests hold the real reducers against it, bit by bit.
#pragma once

#include <vector>

namespace surefoot {

// The sum of all vectors, which have equal sizes; at least one. Of the first `rounded_elements`
// each node of the tree is rounded to bf16.
[[nodiscard]] std::vector<float> reference_sum(const std::vector<std::vector<float>>& micro_batches,
                                               std::size_t rounded_elements = 0);
[[nodiscard]] double reference_sum(const std::vector<double>& losses);
// Of the first `elements` of `sum`.
[[nodiscard]] double reference_square_sum(const std::vector<float>& sum, std::size_t elements);
// To the nearest bf16, of two equally near ones the even one.
[[nodiscard]] float reference_bf16(float value);

}  // namespace surefoot
