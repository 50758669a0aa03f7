// Addresses of machines in numbers, with or without a port, as text and as the kernel takes them.
// No names are looked up. Pure.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace surefoot {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  [[nodiscard]] bool is_v6() const { return storage.ss_family == AF_INET6; }
  [[nodiscard]] const sockaddr* name() const;
  [[nodiscard]] std::uint16_t port() const;
  void set_port(std::uint16_t port);
  [[nodiscard]] std::string host() const;  // "10.0.0.2", "fd00::2"
};

// "10.0.0.2" or "fd00::2". An address that needs its interface beside it (fe80::1%eth0) is none.
[[nodiscard]] std::optional<SocketAddress> parse_address(std::string_view text);
// "10.0.0.2:4000" or "[fd00::2]:4000"; port 0 is none.
[[nodiscard]] std::optional<SocketAddress> parse_address_and_port(std::string_view text);
// The same after "tcp://", as libzmq writes it.
[[nodiscard]] std::optional<SocketAddress> parse_tcp_endpoint(std::string_view text);

}  // namespace surefoot
