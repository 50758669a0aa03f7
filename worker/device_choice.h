// The environment of a worker that takes a GPU: pure. Which GPU it is: configs/devices.h.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "common/status.h"
#include "configs/job.pb.h"

namespace surefoot {

struct DeviceChoice {
  std::string device;       // an index, "GPU-..." or "MIG-..."
  int devices_of_node = 1;  // that the workers of this machine have between them
  // To be set before anything of the process uses a GPU: shows it that GPU and no other.
  std::map<std::string, std::string> environment;
};

// `visible`: CUDA_VISIBLE_DEVICES, or nothing. kInvalid: there is no such entry.
[[nodiscard]] Result<DeviceChoice> choose_device(const config::Resources& resources,
                                                 const std::optional<std::string>& visible,
                                                 int local_rank, int local_size);

// "; NAME=value" for each variable that is set and with which CUDA's libraries or libtorch compute
// otherwise: other bits for the same job file. `value_of` is getenv.
[[nodiscard]] std::string bits_by_environment(
    const std::function<const char*(const char*)>& value_of);

}  // namespace surefoot
