#include "launcher/nodes/network.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>

#include "common/address.h"
#include "common/file.h"
#include "configs/machines.h"

namespace surefoot {
namespace {

bool is_v4(const std::string& address) {
  const auto parsed = parse_address(address);
  return parsed && !parsed->is_v6();
}

}  // namespace

bool is_own_address(const std::string& address) {
  const auto own = interface_addresses();
  return std::any_of(own.begin(), own.end(),
                     [&](const InterfaceAddress& one) { return one.address == address; });
}

bool is_loopback(const std::string& address) {
  return address == "::1" || (is_v4(address) && address.starts_with("127."));
}

Result<std::string> choose_address(const std::string& network, const std::string& ssh_connection,
                                   const std::vector<InterfaceAddress>& own) {
  if (network.empty()) {
    // "<client address> <client port> <server address> <server port>"
    std::istringstream words(ssh_connection);
    std::string client, port, server;
    words >> client >> port >> server;
    return parse_address(server) ? server : std::string("127.0.0.1");
  }
  SUREFOOT_ASSIGN(const Network wanted, parse_network(network));
  std::string found;
  std::string all;
  for (const InterfaceAddress& one : own) {
    all += fmt::format("{}{} {}", all.empty() ? "" : ", ", one.name, one.address);
    const bool is_it =
        wanted.interface.empty() ? contains(wanted, one.address) : one.name == wanted.interface;
    // A link-local address says nothing without its interface.
    if (!is_it || one.address.starts_with("fe80:")) continue;
    if (found.empty() || (!is_v4(found) && is_v4(one.address))) found = one.address;
  }
  if (!found.empty()) return found;
  return error(Code::kInvalid, "has no address in resources.network, {}; it has {}", network, all);
}

Result<std::string> address_towards(const std::string& peer) {
  auto address = parse_address(peer);
  if (!address) return error(Code::kInvalid, "{} is no address in numbers", peer);
  address->set_port(9);  // any will do
  // A datagram socket that is connected has looked up its route, and sent nothing.
  const Fd fd(::socket(address->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), address->name(), address->bytes) != 0)
    return error(Code::kRetry, "there is no way to {}: {}", peer, errno_text(errno));
  SocketAddress own;
  own.bytes = sizeof own.storage;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.bytes) != 0)
    return error(Code::kRetry, "there is no way to {}: {}", peer, errno_text(errno));
  return own.host();
}

std::string mpi_network(const std::string& network, const std::vector<std::string>& addresses) {
  if (!network.empty()) return network;
  std::vector<std::uint32_t> numbers;
  for (const std::string& address : addresses) {
    in_addr bytes{};
    if (::inet_pton(AF_INET, address.c_str(), &bytes) != 1) return "";
    // Of the supervisor's own machine: nobody else gets there by it.
    if ((ntohl(bytes.s_addr) >> 24) != 127) numbers.push_back(ntohl(bytes.s_addr));
  }
  if (numbers.empty()) return "";
  const std::uint32_t first = numbers.front();
  int common = 32;
  for (const std::uint32_t number : numbers) {
    while (common > 0 && ((first ^ number) >> (32 - common)) != 0) --common;
  }
  if (common < kMinCommonBits) return "";
  in_addr base{};
  base.s_addr = htonl(first & ~((std::uint64_t{1} << (32 - common)) - 1));
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &base, text.data(), text.size());
  return fmt::format("{}/{}", text.data(), common);
}

std::string address_of_endpoint(const std::string& endpoint) {
  const auto address = parse_tcp_endpoint(endpoint);
  return address ? address->host() : "";
}

}  // namespace surefoot
