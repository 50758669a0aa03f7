// The loss of device_cross_entropy.h as an operator that libtorch can differentiate.
#pragma once

#include "worker/device.h"
#include "worker/torch_compat.h"

namespace surefoot {

// Mean over the rows of `logits` [rows, classes], fp32 or bf16, of the cross-entropy with `targets`
// [rows], int64: a scalar in fp32. Both in memory of `device`, which outlives the graph; enqueued
// on the stream on which libtorch computes.
[[nodiscard]] at::Tensor fused_cross_entropy(Device& device, const at::Tensor& logits,
                                             const at::Tensor& targets);

}  // namespace surefoot
