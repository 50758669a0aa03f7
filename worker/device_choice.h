// The environment that shows a worker the GPU that it takes, and only that one: pure. Which it is:
// configs/devices.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/interfaces.h"
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

// NCCL_SOCKET_IFNAME for the network of the job's machines (resources.network, or what Open MPI was
// told): the interfaces of this machine with an address in it, "=eth0"; empty: none, NCCL chooses.
[[nodiscard]] std::string nccl_interfaces(const std::string& network,
                                          const std::vector<InterfaceAddress>& own);

}  // namespace surefoot
