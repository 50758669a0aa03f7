// The loss of a classifier, as a device computes it (device.h): one pass over the logits forward
// and one backward, where the chain of operators that a library has for it (to fp32, log-softmax,
// the right class picked, and all of that back) moves six times the bytes. With GPT-2's 50304
// classes that chain is as much traffic as all other operators between the matrix products
// together.
//
//   loss of a row      l_r = log(sum_c exp(x_rc)) - x_r,target
//   its gradient       exp(x_rc - log_sum_r) - [c = target], times the gradient of the mean over
//   rows
//
// Source: the usual softmax with its largest term taken out, as in log-sum-exp. All in fp32,
// however the logits come. Sums have one order, given by the number of classes alone.
//
// Light: nvcc reads it too.
#pragma once

#include <cstdint>

#include "collectives/numbers.h"

namespace surefoot {

// Row by row, one behind the other: [rows][classes]. Device memory, at a multiple of 16 bytes.
struct Logits {
  const void* values = nullptr;
  NumberFormat format = NumberFormat::kFp32;
  std::int64_t rows = 0;
  std::int64_t classes = 1;
  const std::int64_t* targets = nullptr;  // by row; outside [0, classes): the row's loss is NaN
};

struct CrossEntropy {
  Logits logits;
  float* losses = nullptr;    // by row
  float* log_sums = nullptr;  // by row, for the gradient
};

struct CrossEntropyGradient {
  Logits logits;
  const float* log_sums = nullptr;
  const float* of_mean = nullptr;  // one number: the gradient of the mean of all losses
  void* gradient = nullptr;        // in the form of the logits; not over them
};

}  // namespace surefoot
