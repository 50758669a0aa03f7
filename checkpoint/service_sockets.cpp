#include "checkpoint/service_sockets.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "common/address.h"
#include "common/log.h"
#include "configs/machines.h"

namespace surefoot {
namespace {

constexpr std::size_t kMaxFrames = 8;
constexpr int kTurn = 64;       // arbitrary: a flood must not keep the loop from its other work
constexpr int kMaxWaiting = 8;  // messages of one peer; it has one question at a time
constexpr const char* kZapAddress = "inproc://zeromq.zap.01";  // libzmq's name for it
constexpr int kEvents = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED |
                        ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;

int milliseconds_of(Duration duration) {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

std::vector<zmq::message_t> receive_all(zmq::socket_t& socket) {
  std::vector<zmq::message_t> frames;
  bool more = true;
  while (more) {
    zmq::message_t frame;
    if (!socket.recv(frame, zmq::recv_flags::dontwait)) return {};
    more = frame.more();
    // One more than is given out: the identity.
    if (frames.size() <= kMaxFrames) frames.push_back(std::move(frame));
  }
  return frames;
}

// Bound to a free port, the first of `ports` that is. Not by libzmq: hold_back() needs the
// descriptor.
Result<Fd> listen_on(SocketAddress address, const std::string& text, const PortRange& ports) {
  for (int port = ports.first; port <= ports.last; ++port) {
    address.set_port(static_cast<std::uint16_t>(port));
    Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd && ::bind(fd.get(), address.name(), address.bytes) == 0 &&
        ::listen(fd.get(), SOMAXCONN) == 0)
      return fd;
    if (errno != EADDRINUSE) break;
  }
  return error(Code::kInvalid, "cannot listen on {}: {}", text, errno_text(errno));
}

int port_of(int fd) {
  SocketAddress bound;
  bound.bytes = sizeof bound.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.bytes) != 0) return 0;
  return bound.port();
}

}  // namespace

Status ServiceSockets::listen_locally(const std::filesystem::path& folder) {
  const std::string path = (folder / "service.sock").string();
  try {
    local_ = zmq::socket_t(context_, zmq::socket_type::router);
    // The last answer before the end goes out, or its asker would wait for nothing.
    local_.set(zmq::sockopt::linger, 500);
    local_.set(zmq::sockopt::maxmsgsize, std::int64_t{kMaxFrameBytes});
    // libzmq removes what a dead service has left there; the lock says that none lives. The folder
    // is closed to others, so nobody can come in before the chmod.
    local_.bind("ipc://" + path);
    ::chmod(path.c_str(), 0600);
  } catch (const zmq::error_t& failed) {
    return error(Code::kInvalid,
                 "cannot listen on {}: {}; a path may have 107 bytes, set checkpoint.arena to a "
                 "shorter one",
                 path, failed.what());
  }
  return {};
}

void ServiceSockets::close_local() {
  local_.close();
}

Status ServiceSockets::listen_remotely(const std::string& where, const ServiceKeys& keys) {
  const std::string address = where.substr(0, where.find(' '));
  PortRange ports;
  if (address.size() < where.size()) {
    SUREFOOT_ASSIGN(ports, parse_ports(where.substr(address.size() + 1)));
  }
  const auto parsed = parse_address(address);
  if (!parsed)
    return error(Code::kInvalid, "{} is not an address in numbers, such as 127.0.0.1 or ::1",
                 address);
  SUREFOOT_ASSIGN(Fd listener, listen_on(*parsed, where, ports));
  std::array<std::uint8_t, 32> client_key{};
  if (::zmq_z85_decode(client_key.data(), keys.client_public.c_str()) == nullptr)
    return error(Code::kInvalid, "the service's keys are not keys");
  client_key_.assign(client_key.begin(), client_key.end());
  const int port = port_of(listener.get());
  close_remote();
  const std::string events_address = fmt::format("inproc://service.events.{}", ++count_);
  try {
    // Stays: libzmq gives its address free at some later time only.
    if (!zap_) {
      zap_ = zmq::socket_t(context_, zmq::socket_type::rep);
      zap_.set(zmq::sockopt::linger, 0);
      zap_.bind(kZapAddress);
    }
    remote_ = zmq::socket_t(context_, zmq::socket_type::router);
    remote_.set(zmq::sockopt::linger, 500);
    remote_.set(zmq::sockopt::maxmsgsize, std::int64_t{kMaxFrameBytes});
    remote_.set(zmq::sockopt::rcvhwm, kMaxWaiting);
    remote_.set(zmq::sockopt::sndhwm, kMaxWaiting);
    remote_.set(zmq::sockopt::curve_server, true);
    remote_.set(zmq::sockopt::curve_secretkey, keys.server_secret);
    remote_.set(zmq::sockopt::zap_domain, "surefoot");
    remote_.set(zmq::sockopt::handshake_ivl, milliseconds_of(kHandshakePatience));
    // A supervisor whose machine is gone does not hold its connection for ever.
    remote_.set(zmq::sockopt::heartbeat_ivl, 5000);
    remote_.set(zmq::sockopt::heartbeat_timeout, 20000);
    remote_.set(zmq::sockopt::ipv6, parsed->is_v6());
    // Unlimited, as libzmq's own thread would wait for its events to be read.
    events_ = zmq::socket_t(context_, zmq::socket_type::pair);
    events_.set(zmq::sockopt::linger, 0);
    events_.set(zmq::sockopt::rcvhwm, 0);
    if (::zmq_socket_monitor(remote_.handle(), events_address.c_str(), kEvents) != 0)
      throw zmq::error_t();
    events_.connect(events_address);
    // libzmq closes the descriptor it is given.
    remote_.set(zmq::sockopt::use_fd, ::fcntl(listener.get(), F_DUPFD_CLOEXEC, 3));
    const std::string host = parsed->is_v6() ? "[" + address + "]" : address;
    endpoint_ = fmt::format("tcp://{}:{}", host, port);
    remote_.bind(endpoint_);
  } catch (const zmq::error_t& failed) {
    close_remote();
    return error(Code::kInvalid, "cannot listen on {}: {}", address, failed.what());
  }
  listener_ = std::move(listener);
  return {};
}

void ServiceSockets::close_remote() {
  endpoint_.clear();
  remote_.close();
  events_.close();
  listener_.reset();
  connections_.clear();
  held_back_ = false;
}

Result<std::vector<std::size_t>> ServiceSockets::wait(std::span<const int> fds, Duration patience) {
  std::vector<zmq::pollitem_t> items;
  for (const int fd : fds) items.push_back({nullptr, fd, ZMQ_POLLIN, 0});
  for (zmq::socket_t* socket : {&local_, &remote_, &zap_, &events_}) {
    if (*socket) items.push_back({socket->handle(), 0, ZMQ_POLLIN, 0});
  }
  std::vector<std::size_t> readable;
  try {
    zmq::poll(items, std::chrono::ceil<std::chrono::milliseconds>(patience));
  } catch (const zmq::error_t& failed) {
    if (failed.num() == EINTR) return readable;
    return error(Code::kRestart, "libzmq: {}", failed.what());
  }
  for (std::size_t i = 0; i < fds.size(); ++i) {
    if ((items[i].revents & ZMQ_POLLIN) != 0) readable.push_back(i);
  }
  return readable;
}

// ---- strangers ----

void ServiceSockets::look_at_strangers() {
  if (!remote_) return;
  try {
    answer_who_may_come_in();
    read_events();
  } catch (const zmq::error_t& failed) {
    if (failed.num() != EINTR) spdlog::warn("libzmq, on strangers: {}", failed.what());
  }
  if (!held_back_ && connections_.size() >= kMaxConnections) hold_back(true);
  if (held_back_ && connections_.size() <= kMaxConnections / 2) hold_back(false);
}

// ZeroMQ RFC 27: version, request id, domain, address, identity, mechanism, key.
void ServiceSockets::answer_who_may_come_in() {
  for (int i = 0; i < kTurn; ++i) {
    const auto request = receive_all(zap_);
    if (request.empty()) return;
    const bool known = request.size() == 7 && request[5].to_string_view() == "CURVE" &&
                       request[6].to_string_view() == client_key_;
    const std::string id = request.size() > 1 ? request[1].to_string() : std::string();
    const std::array<std::string, 6> answer = {
        "1.0", id, known ? "200" : "400", known ? "OK" : "not the key of this job", "", ""};
    for (std::size_t frame = 0; frame < answer.size(); ++frame) {
      const bool last = frame + 1 == answer.size();
      zap_.send(zmq::buffer(answer[frame]),
                last ? zmq::send_flags::none : zmq::send_flags::sndmore);
    }
    if (!known && wrong_keys_++ == 0)
      spdlog::warn("refused a connection with another key (more are only counted)");
  }
}

// An event: its number (16 bits) and its value (32 bits, here the descriptor), then the address.
void ServiceSockets::read_events() {
  for (;;) {
    const auto event = receive_all(events_);
    if (event.empty()) return;
    std::uint16_t what = 0;
    std::uint32_t value = 0;
    if (event[0].size() < sizeof what + sizeof value) continue;
    std::memcpy(&what, event[0].data(), sizeof what);
    std::memcpy(&value, static_cast<const char*>(event[0].data()) + sizeof what, sizeof value);
    if (what == ZMQ_EVENT_ACCEPTED) {
      connections_.insert(value);
    } else if (what == ZMQ_EVENT_DISCONNECTED) {
      connections_.erase(value);
    } else if (strangers_++ == 0) {
      spdlog::warn("ended a connection that did not show this job's key (more are only counted)");
    }
  }
}

// A filter on the listening socket that lets no packet through: connections that are there do not
// notice, new ones are tried again by their kernel after a second.
void ServiceSockets::hold_back(bool hold) {
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &drop_all};
  const int unused = 0;
  const int done =
      hold ? ::setsockopt(listener_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program)
           : ::setsockopt(listener_.get(), SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
  if (done != 0) spdlog::warn("strangers cannot be held back: {}", errno_text(errno));
  held_back_ = hold;
}

// ---- messages ----

std::optional<Frames> ServiceSockets::next() {
  try {
    for (int side = 0; side < 2; ++side) {
      local_next_ = !local_next_;
      zmq::socket_t& socket = local_next_ ? local_ : remote_;
      if (!socket) continue;
      auto frames = receive_all(socket);
      if (frames.empty()) continue;
      Frames message{{!local_next_, frames.front().to_string()}, {}};
      frames.erase(frames.begin());
      message.frames = std::move(frames);
      return message;
    }
  } catch (const zmq::error_t& failed) {
    if (failed.num() != EINTR) spdlog::warn("libzmq, on a message: {}", failed.what());
  }
  return std::nullopt;
}

void ServiceSockets::send(const Peer& peer, const std::string& payload) {
  try {
    zmq::socket_t& socket = peer.remote ? remote_ : local_;
    socket.send(zmq::buffer(peer.identity), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    socket.send(zmq::message_t(), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    socket.send(zmq::buffer(payload), zmq::send_flags::dontwait);
  } catch (const zmq::error_t& failed) {
    spdlog::debug("a reply was not sent: {}", failed.what());
  }
}

void ServiceSockets::close() {
  local_.close();
  remote_.close();
  zap_.close();
  events_.close();
  listener_.reset();
}

}  // namespace surefoot
