// Whether this machine can run a job that is on it alone: looked at before anything is started or
// written. What machines of a list have is looked at by their services (node_link.h).
//
// Blocks, for recovery.check_timeout at the longest, where the job runs on GPUs; else it looks at
// nothing. The caller must have one thread only (doctor/run_checks.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/status.h"
#include "configs/job.pb.h"

namespace surefoot {

struct Fitness {
  std::vector<std::string> warnings;
  double flops_per_sample = 0;  // by the worker's word; 0: not told
};
// `file` and `sets`: the job as the worker's program is to describe it. kInvalid: it cannot run
// here, and why, in one line.
[[nodiscard]] Result<Fitness> look_before_launch(const config::Job& job,
                                                 const std::filesystem::path& file,
                                                 const std::vector<std::string>& sets,
                                                 const std::filesystem::path& programs);

}  // namespace surefoot
