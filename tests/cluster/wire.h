// How the keeper of a cluster is spoken to: one JSON object a packet, with file descriptors beside
// it, over Unix sockets with abstract names, so that no file is left by anyone who is killed.
//
// Blocking, but for what a deadline says. Both ends are of the same user: others are refused.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/file.h"
#include "common/status.h"

namespace surefoot::cluster {

struct Packet {
  nlohmann::json json;
  std::vector<Fd> fds;
};

// `name`: of the cluster. kExists: somebody listens there.
[[nodiscard]] Result<Fd> listen_as(const std::string& name);
// kNotFound: nobody listens.
[[nodiscard]] Result<Fd> connect_to(const std::string& name);
// A connection of this very user; kInvalid: it was of another one, and is closed.
[[nodiscard]] Result<Fd> accept_own(int listener);

Status send_packet(int socket, const nlohmann::json& json, const std::vector<int>& fds = {});
// kNotFound: the other end is gone. kRetry: nothing came in time.
[[nodiscard]] Result<Packet> receive_packet(int socket, Time deadline);

}  // namespace surefoot::cluster
