// The softmax of causal attention on one head's square of scores, and its backward: row t looks at
// columns 0..t only, so half of the work of a masked softmax, in one pass over memory.
//
// Rows are summed in eight lanes, then the lanes; exp is a polynomial (Cephes' expf, error below 2
// ulp). + - * / only, nothing contracted, so the bits are the same on every processor.
//
// Pure, thread-safe. Matrices are `size` x `size`, row by row without gaps.
#pragma once

#include <cstddef>

namespace surefoot {

// In place: scores -> softmax(scale * scores) over columns 0..t of each row t; 0 in the columns
// after. scale > 0.
void causal_softmax(std::size_t size, float scale, float* scores);

// In place: gradient by the probabilities -> gradient by the scores: scale * p (g - sum(g p)); 0 in
// the columns after t.
void causal_softmax_backward(std::size_t size, float scale, const float* probabilities,
                             float* gradient);

}  // namespace surefoot
