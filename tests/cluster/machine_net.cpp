#include "tests/cluster/machine_net.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tests/cluster/machine.h"
#include "tests/cluster/switch.h"

namespace surefoot::cluster {
namespace {

// Large, so that a transfer is few frames: this network is not the bottleneck of what is tested.
constexpr int kMtu = 65000;

Error failed(std::string_view what) {
  return error(Code::kRetry, "{}: {}", what, errno_text(errno));
}

ifreq device(const char* name) {
  ifreq request{};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  return request;
}

Status bring_up(int socket, const char* name) {
  ifreq request = device(name);
  if (::ioctl(socket, SIOCGIFFLAGS, &request) != 0) return failed(name);
  request.ifr_flags |= IFF_UP | IFF_RUNNING;
  if (::ioctl(socket, SIOCSIFFLAGS, &request) != 0) return failed(name);
  return {};
}

Status set_address(int socket, const char* name, unsigned long what, const char* address) {
  ifreq request = device(name);
  sockaddr_in in{};
  in.sin_family = AF_INET;
  ::inet_pton(AF_INET, address, &in.sin_addr);
  std::memcpy(&request.ifr_addr, &in, sizeof in);
  if (::ioctl(socket, what, &request) != 0)
    return failed(fmt::format("address {} of {}", address, name));
  return {};
}

}  // namespace

Result<Fd> make_network(int number) {
  // Its neighbour discovery would only be noise.
  std::ofstream("/proc/sys/net/ipv6/conf/all/disable_ipv6") << "1";
  std::ofstream("/proc/sys/net/ipv6/conf/default/disable_ipv6") << "1";
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return failed("socket");
  SUREFOOT_TRY(bring_up(socket.get(), "lo"));

  const char* name = "eth0";
  Fd tap(::open("/dev/net/tun", O_RDWR | O_CLOEXEC));
  ifreq request = device(name);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (!tap || ::ioctl(tap.get(), TUNSETIFF, &request) != 0) return failed("/dev/net/tun");
  request = device(name);
  request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
  const MacAddress mac = mac_of(number);
  std::memcpy(request.ifr_hwaddr.sa_data, mac.data(), mac.size());
  if (::ioctl(socket.get(), SIOCSIFHWADDR, &request) != 0) return failed("hardware address");
  request = device(name);
  request.ifr_mtu = kMtu;
  if (::ioctl(socket.get(), SIOCSIFMTU, &request) != 0) return failed("MTU");
  SUREFOOT_TRY(set_address(socket.get(), name, SIOCSIFADDR, address_of_host(number).c_str()));
  SUREFOOT_TRY(set_address(socket.get(), name, SIOCSIFNETMASK, "255.255.255.0"));
  SUREFOOT_TRY(bring_up(socket.get(), name));
  return tap;
}

Result<Fd> listen_on(int port) {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<std::uint16_t>(port));
  if (!listener ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0)
    return failed(fmt::format("port {}", port));
  return listener;
}

}  // namespace surefoot::cluster
