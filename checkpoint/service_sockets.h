// The sockets of a service: `ipc://<arena folder>/service.sock` for the workers of this machine,
// and, once it has keys, `tcp://` with CURVE for the job's supervisor.
//
// Frames come out whole and go back by Peer; what they mean is the service's business. On the
// tcp side only who holds the job's client key gets a frame in: strangers are cut off by libzmq
// when they have not proved it within kHandshakePatience, there are never more than
// kMaxConnections at once (while there are, new ones wait in the kernel; those that are in stay),
// and a frame that announces more than kMaxFrameBytes ends its connection unread.
//
// One thread, that of the service's loop. Nothing here blocks but wait().
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "checkpoint/service_keys.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/status.h"

namespace surefoot {

inline constexpr int kMaxFrameBytes = 8 << 20;
inline constexpr Duration kHandshakePatience = std::chrono::seconds(3);
inline constexpr std::size_t kMaxConnections = 256;  // arbitrary; a job has one supervisor

// Who has asked.
struct Peer {
  bool remote = false;
  std::string identity;
};
struct Frames {
  Peer peer;
  std::vector<zmq::message_t> frames;  // without the identity; at most 8, the rest is dropped
};

class ServiceSockets {
 public:
  ServiceSockets() = default;
  ServiceSockets(const ServiceSockets&) = delete;
  ServiceSockets& operator=(const ServiceSockets&) = delete;

  // Again after close_local(): the folder was removed.
  Status listen_locally(const std::filesystem::path& folder);
  void close_local();
  // `where`: an address of this machine, as numbers, and which ports will do, if not all:
  // "127.0.0.1", "::1 4000-4100". kInvalid names what is wrong.
  // Again, with other keys: at another endpoint, and who came by the old keys is cut off.
  Status listen_remotely(const std::string& where, const ServiceKeys& keys);
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }  // empty: none

  // Until a message or a stranger comes, one of `fds` is readable, or `patience` is over. The
  // positions of those that are readable. An error: libzmq cannot go on.
  [[nodiscard]] Result<std::vector<std::size_t>> wait(std::span<const int> fds, Duration patience);
  // Lets in who has the key, counts who has not, keeps their number in bounds. Once a turn.
  void look_at_strangers();
  [[nodiscard]] std::optional<Frames> next();
  // A peer that is gone or does not take its answers gets nothing: it asks again.
  void send(const Peer& peer, const std::string& payload);
  void close();  // the last answers go out for half a second

  // Since the start: connections that were ended because nobody proved to hold a key, and those
  // that proved to hold another one.
  [[nodiscard]] std::int64_t strangers() const { return strangers_; }
  [[nodiscard]] std::int64_t wrong_keys() const { return wrong_keys_; }

 private:
  void close_remote();
  void answer_who_may_come_in();
  void read_events();
  void hold_back(bool hold);

  zmq::context_t context_{1};
  zmq::socket_t local_;
  zmq::socket_t remote_;
  zmq::socket_t zap_;     // libzmq asks here whether a key is one of ours
  zmq::socket_t events_;  // what becomes of connections to remote_
  Fd listener_;           // the one that remote_ listens on
  std::string endpoint_;
  int count_ = 0;           // of endpoints
  std::string client_key_;  // 32 bytes
  std::set<std::uint32_t> connections_;
  bool held_back_ = false;
  bool local_next_ = false;  // whose turn it is
  std::int64_t strangers_ = 0;
  std::int64_t wrong_keys_ = 0;
};

}  // namespace surefoot
