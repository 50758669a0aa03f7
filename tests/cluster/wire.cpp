#include "tests/cluster/wire.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace surefoot::cluster {
namespace {

constexpr std::size_t kMaxPacketBytes = 64 << 10;
constexpr int kMaxFds = 4;

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
};

Address address_of(const std::string& name) {
  const std::string full = "surefoot-cluster-" + name;
  Address address;
  address.name.sun_family = AF_UNIX;
  // The first byte stays 0: an abstract name.
  SUREFOOT_CHECK(full.size() < sizeof address.name.sun_path - 1);
  full.copy(address.name.sun_path + 1, full.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + full.size());
  return address;
}

Result<Fd> open_socket() {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return error(Code::kRetry, "cannot make a socket: {}", errno_text(errno));
  return fd;
}

}  // namespace

Result<Fd> listen_as(const std::string& name) {
  SUREFOOT_ASSIGN(Fd fd, open_socket());
  const Address address = address_of(name);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.name), address.bytes) != 0)
    return error(Code::kExists, "the cluster {} is there already: {}", name, errno_text(errno));
  if (::listen(fd.get(), SOMAXCONN) != 0)
    return error(Code::kRetry, "cannot listen: {}", errno_text(errno));
  return fd;
}

Result<Fd> connect_to(const std::string& name) {
  SUREFOOT_ASSIGN(Fd fd, open_socket());
  const Address address = address_of(name);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.name), address.bytes) != 0)
    return error(Code::kNotFound, "there is no cluster {}: {}", name, errno_text(errno));
  return fd;
}

Result<Fd> accept_own(int listener) {
  Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd) return error(Code::kRetry, "accept: {}", errno_text(errno));
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 ||
      peer.uid != ::geteuid())
    return error(Code::kInvalid, "somebody else wants to use the cluster: user {}", peer.uid);
  return fd;
}

Status send_packet(int socket, const nlohmann::json& json, const std::vector<int>& fds) {
  SUREFOOT_CHECK(fds.size() <= kMaxFds);
  std::string text = json.dump();
  iovec piece{text.data(), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0)
    return error(Code::kNotFound, "the other end does not listen: {}", errno_text(errno));
  return {};
}

Result<Packet> receive_packet(int socket, Time deadline) {
  pollfd wait{socket, POLLIN, 0};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now()).count();
  const int got = ::poll(&wait, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
  if (got <= 0) return error(Code::kRetry, "no answer in time");
  std::string text(kMaxPacketBytes, '\0');
  iovec piece{text.data(), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t bytes = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (bytes <= 0) return error(Code::kNotFound, "the other end is gone");
  Packet packet;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      packet.fds.emplace_back(fd);
    }
  }
  packet.json = nlohmann::json::parse(text.begin(), text.begin() + bytes, nullptr, false);
  if (!packet.json.is_object()) return error(Code::kInvalid, "not a message of ours");
  return packet;
}

}  // namespace surefoot::cluster
