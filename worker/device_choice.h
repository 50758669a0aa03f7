// The environment that shows a worker the GPU that it takes, and only that one: pure. Which it is:
// configs/devices.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

namespace surefoot {

struct DeviceChoice {
  std::string device;       // an index, "GPU-..." or "MIG-..."
  int devices_of_node = 1;  // that the workers of this machine have between them
  // To be set before anything of the process uses a GPU.
  std::map<std::string, std::string> environment;
};

// `visible`: CUDA_VISIBLE_DEVICES, or nothing. kInvalid: there is no such entry.
[[nodiscard]] Result<DeviceChoice> choose_device(const std::vector<std::string>& devices,
                                                 const std::optional<std::string>& visible,
                                                 int local_rank, int local_size);

}  // namespace surefoot
