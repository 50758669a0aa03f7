// The checks of GPUs, as `surefoot doctor` and what comes before a launch have them.
//
// Blocks: look_before_launch() until `patience` is over at the longest. Who calls it must have one
// thread only (run_checks.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "launcher/doctor/gpu.h"
#include "launcher/doctor/run_checks.h"

namespace surefoot::doctor {

// Without a daemon that keeps it awake a driver takes seconds for each GPU to wake up; arbitrary.
inline constexpr Duration kGpuPatience = std::chrono::seconds(20);

// "gpu driver" and its devices, "xid", "cuda driver", "cuda runtime", "nccl". `programs`: the
// folder of the worker's program.
[[nodiscard]] std::vector<Check> gpu_checks(const GpuNeed& need,
                                            const std::filesystem::path& programs,
                                            Duration patience);

// What findings mean to a job that is about to be launched.
struct LaunchCheck {
  std::vector<std::string> faults;  // each a line: it is not launched here
  std::vector<std::string> warnings;
};
// Pure. What is bad is a fault, but for clocks, which are slow and not wrong, for memory errors,
// which end who meets them and harm nobody after, and for errors in the kernel's log, after which
// the GPU may have been reset. A driver that does not answer is one.
[[nodiscard]] LaunchCheck judge_before_launch(const std::vector<Finding>& findings);
// One line of the faults; empty: there are none.
[[nodiscard]] std::string first_fault(const LaunchCheck& check);

// Nothing where the job does not run on GPUs.
[[nodiscard]] LaunchCheck look_before_launch(const GpuNeed& need,
                                             const std::filesystem::path& programs,
                                             Duration patience);

}  // namespace surefoot::doctor
