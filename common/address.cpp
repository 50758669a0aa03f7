#include "common/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <charconv>

namespace surefoot {

const sockaddr* SocketAddress::name() const {
  return reinterpret_cast<const sockaddr*>(&storage);
}

// The port stands at the same place for both families.
std::uint16_t SocketAddress::port() const {
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}
void SocketAddress::set_port(std::uint16_t port) {
  reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
}

std::string SocketAddress::host() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* number = &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr;
  if (is_v6()) number = &reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
  if (::inet_ntop(storage.ss_family, number, text.data(), text.size()) == nullptr) return "";
  return text.data();
}

std::optional<SocketAddress> parse_address(std::string_view text) {
  const std::string number(text);
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  // inet_pton() would stop at it.
  if (number.find('\0') != std::string::npos) return std::nullopt;
  if (::inet_pton(AF_INET, number.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    address.bytes = sizeof *v4;
    return address;
  }
  if (::inet_pton(AF_INET6, number.c_str(), &v6->sin6_addr) != 1) return std::nullopt;
  v6->sin6_family = AF_INET6;
  address.bytes = sizeof *v6;
  return address;
}

std::optional<SocketAddress> parse_address_and_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto number = std::from_chars(text.data() + colon + 1, end, port);
  if (number.ec != std::errc() || number.ptr != end || port == 0) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const bool in_brackets = host.starts_with('[') && host.ends_with(']');
  if (in_brackets) host = host.substr(1, host.size() - 2);
  auto address = parse_address(host);
  if (!address || address->is_v6() != in_brackets) return std::nullopt;
  address->set_port(port);
  return address;
}

std::optional<SocketAddress> parse_tcp_endpoint(std::string_view text) {
  constexpr std::string_view kScheme = "tcp://";
  if (!text.starts_with(kScheme)) return std::nullopt;
  return parse_address_and_port(text.substr(kScheme.size()));
}

}  // namespace surefoot
