// How the command line talks to the supervisor that runs: <job directory>/supervisor.sock, a Unix
// socket of mode 0600.
//
//   verb        {"ask": "status"}\n
//   supervisor  {...}\n, or {"error": {"code": N, "message": "..."}}\n, then it closes
//
// One request and one reply a connection; `code` is a surefoot::Code. Requests are at most 16 KiB,
// replies 16 MiB; who does not write or read his part within a second is cut off, and at most 32
// are served at once. A thread of its own reads and writes, so nobody who is slow holds the
// driver's loop: that only answers whole requests, which it finds in its inbox. The verbs and what
// they ask for: docs/verbs.md.
//
// The socket of a supervisor that was killed is replaced by the next one: who opens it holds the
// job's lock. Its path may be longer than the 108 bytes of a socket's name.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "common/clock.h"
#include "common/status.h"
#include "launcher/task_thread.h"

namespace surefoot {

class ControlServer {
 public:
  // Run by the loop, as an item of the inbox. Must not throw or block.
  using Answer = std::function<Result<nlohmann::json>(const nlohmann::json& request)>;

  // kRetry: the job directory takes no socket; verbs then read the journal and send signals.
  // `patience`: for a client to write, or read, its part.
  [[nodiscard]] static Result<std::unique_ptr<ControlServer>> open(
      const std::filesystem::path& job_directory, std::shared_ptr<Inbox> inbox, Answer answer,
      Duration patience = std::chrono::seconds(1));
  // Removes the socket; who waits is cut off. Waits for the thread, which does not block.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;

 private:
  struct Shared;
  class Server;
  explicit ControlServer(std::unique_ptr<Server> server);
  std::unique_ptr<Server> server_;
};

// kNotFound: no supervisor listens there. kRetry: it did not answer by `deadline`. kInvalid: its
// socket cannot be used, or its answer not be read. Else the error that it answered.
[[nodiscard]] Result<nlohmann::json> ask_supervisor(const std::filesystem::path& job_directory,
                                                    const nlohmann::json& request, Time deadline);

}  // namespace surefoot
