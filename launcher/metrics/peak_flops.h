// The most floating-point operations a second of a GPU, for the model FLOPs utilization (MFU): as
// NVIDIA's data sheets have them, dense, never with sparsity. Pure.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "checkpoint/service.pb.h"
#include "configs/job.pb.h"

namespace surefoot {

// `name`: NVML's. fp32: outside of tensor cores; tf32 and bf16: of tensor cores, sums in fp32.
// Nothing: the device is not in the table, or has no such arithmetic; never a guess.
[[nodiscard]] std::optional<double> peak_flops(std::string_view name,
                                               config::Train::Precision precision);

// Of all devices together, each counted once however many workers share it. Nothing: of one it is
// not known, or it is a MIG instance or a GPU that is split, of which no data sheet tells.
[[nodiscard]] std::optional<double> peak_flops(const std::vector<service::GpuStatus>& devices,
                                               config::Train::Precision precision);

}  // namespace surefoot
