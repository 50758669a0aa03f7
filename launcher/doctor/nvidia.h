// The adapter to the CUDA driver and runtime, and NCCL (NVML is nvidia/nvml.h's). All of them are
// loaded when asked for, so that a build and a machine without them are the same program. None is
// made to set up a context: no memory of a GPU is taken.
//
// Each call blocks for as long as the driver does, which after a hardware error may be for ever,
// and a vendor's library may crash: only to be called in a check (run_checks.h).
#pragma once

#include <filesystem>
#include <string>

#include "launcher/doctor/gpu.h"

namespace surefoot::doctor {

// `runtime`, `nccl`: the files that the worker's program loads; empty: what the loader finds.
[[nodiscard]] CudaFacts look_at_cuda(const std::string& runtime, const std::string& nccl);

// Reads what is in /dev/kmsg now, without waiting for more.
[[nodiscard]] KernelLogFacts look_at_kernel_log(const std::filesystem::path& kmsg);

}  // namespace surefoot::doctor
