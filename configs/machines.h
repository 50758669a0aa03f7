// How a job file names machines and the ways between them. Pure.
//
//   resources.hosts              NAME, USER@NAME, NAME:SLOTS, [IPV6], [IPV6]:SLOTS
//   resources.hostfile           NAME slots=N max_slots=M   (Open MPI, DeepSpeed); # begins a
//   comment resources.discovery_command  NAME or NAME:SLOTS, a line each (Horovod)
//   resources.network            a CIDR, or the name of an interface
//   resources.ports              FIRST-LAST
//
// A machine that is named more than once has the sum of its slots, as with Open MPI; where no
// number stands each time counts for one. Named once without a number, its slots are 0:
// resources.workers_per_node.
//
// Errors are kInvalid. Those of a text begin with the line's number; all say what was found and
// what is allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/interfaces.h"
#include "common/status.h"

namespace surefoot {

struct HostSpec {
  std::string name;  // as ssh takes it, USER@ included; IPv6 without brackets
  int slots = 0;     // 0: not said
  friend bool operator==(const HostSpec&, const HostSpec&) = default;
};

inline constexpr int kMaxSlots = 256;     // as resources.workers_per_node
inline constexpr int kMaxHosts = 10'000;  // as resources.num_nodes

// "found \"...\", allowed is ..."
[[nodiscard]] Result<HostSpec> parse_host(std::string_view entry);
// In the order in which they are first named.
[[nodiscard]] Result<std::vector<HostSpec>> parse_hosts(const std::vector<std::string>& entries);
[[nodiscard]] Result<std::vector<HostSpec>> parse_hostfile(std::string_view text);
[[nodiscard]] Result<std::vector<HostSpec>> parse_discovery(std::string_view text);

struct Network {
  std::string interface;  // empty: `address`/`prefix`
  std::string address;    // of the network, in numbers
  int prefix = 0;
};
[[nodiscard]] Result<Network> parse_network(std::string_view text);
[[nodiscard]] bool contains(const Network& network, const std::string& address);  // of a CIDR
// NCCL_SOCKET_IFNAME for the network of the job's machines (resources.network, or what Open MPI was
// told): the interfaces of this machine with an address in it, "=eth0"; empty: none, NCCL chooses.
[[nodiscard]] std::string nccl_interfaces(const std::string& network,
                                          const std::vector<InterfaceAddress>& own);

struct PortRange {
  int first = 0;
  int last = 0;
  [[nodiscard]] int count() const { return last - first + 1; }
};
// At least kMinPorts: service, Open MPI's daemon, and the workers have ports of their own.
inline constexpr int kMinPorts = 8;
[[nodiscard]] Result<PortRange> parse_ports(std::string_view text);

}  // namespace surefoot
