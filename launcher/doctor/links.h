// The ways between machines: RDMA devices, and the network that services, MPI and NCCL will use.
// Rules are pure; look_at_...() read below `root` and may block as /sys does.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "launcher/doctor/finding.h"
#include "launcher/nodes/network.h"

namespace surefoot::doctor {

struct RdmaPort {
  std::string device;  // "mlx5_0"
  int port = 1;
  std::string state;  // "ACTIVE", "DOWN", "INIT", ...
  std::string rate;   // "400 Gb/sec (4X NDR)"
  std::string layer;  // "InfiniBand", "Ethernet"
};
[[nodiscard]] std::vector<RdmaPort> look_at_rdma(const std::filesystem::path& root);
// "rdma", of each port, or one that there is none.
[[nodiscard]] std::vector<Finding> check_rdma(const std::vector<RdmaPort>& ports);

struct Interface {
  std::string name;
  std::vector<std::string> addresses;
  int megabits_per_second = 0;  // 0: not known, as of virtual ones
  int mtu = 0;
};
struct NetworkFacts {
  std::vector<Interface> interfaces;  // that are up and have an address
  std::string wanted;                 // resources.network
  bool many_machines = false;         // the job names others
  bool gpus = false;                  // and is on GPUs
  std::string ssh_connection;         // SSH_CONNECTION
  std::string nccl_interfaces;        // NCCL_SOCKET_IFNAME
};
[[nodiscard]] NetworkFacts look_at_network(const std::filesystem::path& root);
[[nodiscard]] Finding check_network(const NetworkFacts& facts);

}  // namespace surefoot::doctor
