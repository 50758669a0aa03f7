#include "launcher/doctor/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "common/file.h"
#include "configs/machines.h"
#include "launcher/format.h"

namespace surefoot::doctor {
namespace {

namespace fs = std::filesystem;

std::string line_in(const fs::path& file) {
  auto text = read_file(file);
  return text ? text->substr(0, text->find('\n')) : "";
}

std::vector<fs::path> sorted(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

bool is_usable(const std::string& address) {
  return !address.starts_with("127.") && address != "::1" && !address.starts_with("fe80:");
}

std::string interface_text(const Interface& one) {
  std::string text = one.name;
  for (const std::string& address : one.addresses) {
    if (is_usable(address)) text += " " + address;
  }
  std::string how;
  if (one.megabits_per_second > 0) how = fmt::format("{} Mb/s, ", one.megabits_per_second);
  if (one.mtu > 0) how += fmt::format("MTU {}", one.mtu);
  return how.empty() ? text : fmt::format("{} ({})", text, how);
}

// Those by which others can come in.
std::string interfaces_text(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& one : interfaces) {
    if (std::any_of(one.addresses.begin(), one.addresses.end(), is_usable))
      text += (text.empty() ? "" : ", ") + interface_text(one);
  }
  return text;
}

}  // namespace

std::vector<RdmaPort> look_at_rdma(const fs::path& root) {
  std::vector<RdmaPort> ports;
  for (const fs::path& device : sorted(root / "sys/class/infiniband")) {
    for (const fs::path& port : sorted(device / "ports")) {
      // "4: ACTIVE"
      const std::string state = line_in(port / "state");
      const std::size_t space = state.find(' ');
      ports.push_back({device.filename().string(), std::atoi(port.filename().c_str()),
                       space == std::string::npos ? state : state.substr(space + 1),
                       line_in(port / "rate"), line_in(port / "link_layer")});
    }
  }
  return ports;
}

std::vector<Finding> check_rdma(const std::vector<RdmaPort>& ports) {
  if (ports.empty()) return {ok("rdma", "no devices; machines talk by TCP")};
  std::vector<Finding> findings;
  for (const RdmaPort& port : ports) {
    const std::string which = fmt::format("{}/{}", port.device, port.port);
    const std::string found = fmt::format("{}, {}, {}", port.state, port.rate, port.layer);
    findings.push_back(on(
        which, port.state == "ACTIVE"
                   ? ok("rdma", found)
                   : warn("rdma", found,
                          "ibstat " + port.device + "; the cable, the switch, a subnet manager")));
  }
  return findings;
}

NetworkFacts look_at_network(const fs::path& root) {
  NetworkFacts facts;
  for (const InterfaceAddress& one : interface_addresses()) {
    const auto same = [&](const Interface& known) { return known.name == one.name; };
    auto at = std::find_if(facts.interfaces.begin(), facts.interfaces.end(), same);
    if (at == facts.interfaces.end()) {
      const fs::path folder = root / "sys/class/net" / one.name;
      // Of virtual ones the speed is -1, or cannot be read.
      at = facts.interfaces.insert(at, {one.name,
                                        {},
                                        std::max(std::atoi(line_in(folder / "speed").c_str()), 0),
                                        std::atoi(line_in(folder / "mtu").c_str())});
    }
    at->addresses.push_back(one.address);
  }
  const auto variable = [](const char* name) {
    const char* const value = ::getenv(name);
    return value != nullptr ? std::string(value) : "";
  };
  facts.ssh_connection = variable("SSH_CONNECTION");
  facts.nccl_interfaces = variable("NCCL_SOCKET_IFNAME");
  return facts;
}

Finding check_network(const NetworkFacts& facts) {
  const std::string check = "network";
  const std::string all = interfaces_text(facts.interfaces);
  std::string found = all.empty() ? "no address but loopback" : all;
  if (!facts.nccl_interfaces.empty()) found += "; NCCL_SOCKET_IFNAME=" + facts.nccl_interfaces;
  if (!facts.wanted.empty()) {
    std::vector<InterfaceAddress> own;
    for (const Interface& one : facts.interfaces) {
      for (const std::string& address : one.addresses) own.push_back({one.name, address});
    }
    const auto chosen = choose_address(facts.wanted, facts.ssh_connection, own);
    if (!chosen) return bad(check, "this machine " + chosen.error().message, "resources.network");
    found +=
        fmt::format("; services listen on {}, MPI uses {}", *chosen, mpi_network(facts.wanted, {}));
    if (facts.gpus && facts.nccl_interfaces.empty())
      found += ", NCCL " + nccl_interfaces(facts.wanted, own);
    return ok(check, found);
  }
  if (!facts.many_machines)
    return ok(check, found + "; workers of one machine use shared memory and loopback");
  if (all.empty())
    return bad(check, found + ", and the job names other machines",
               "ip address; resources.network");
  return ok(check, fmt::format("{}; services listen where ssh comes in (see host), MPI {} the "
                               "smallest network that holds those addresses",
                               found, facts.gpus ? "and NCCL use" : "uses"));
}

}  // namespace surefoot::doctor
