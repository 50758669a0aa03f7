#include "launcher/control.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/file.h"
#include "common/log.h"

namespace surefoot {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr const char* kName = "supervisor.sock";
constexpr std::size_t kMaxRequestBytes = 16 << 10;  // arbitrary: a request has a name or two
constexpr std::size_t kMaxReplyBytes = 16 << 20;    // arbitrary: ten thousand machines
constexpr std::size_t kMaxConnections = 32;         // arbitrary
constexpr Duration kAcceptPause = 100ms;            // while descriptors are short; arbitrary

// A name that fits into 108 bytes however deep the folder lies. Valid while `folder` is open.
sockaddr_un address_in(const Fd& folder) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  fmt::format_to_n(address.sun_path, sizeof address.sun_path - 1, "/proc/self/fd/{}/{}",
                   folder.get(), kName);
  return address;
}

Fd open_folder(const std::filesystem::path& folder) {
  return Fd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

Fd make_socket() {
  return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::string text_of(const Result<json>& answer) {
  const json reply = answer ? *answer
                            : json{{"error",
                                    {{"code", static_cast<int>(answer.error().code)},
                                     {"message", answer.error().message}}}};
  // What is no UTF-8 (a host's answer, a file's name) must not end the supervisor.
  return reply.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

struct Connection {
  Fd fd;
  std::string in;
  std::string out;
  std::size_t sent = 0;
  bool asked = false;  // its request is with the loop
  Time deadline;       // of what is its part now; not while it waits for the loop
};

bool awaits_loop(const Connection& connection) {
  return connection.asked && connection.out.empty();
}

}  // namespace

// What the loop's items share with the thread.
struct ControlServer::Shared {
  Fd wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex;
  bool closing = false;
  std::map<std::uint64_t, std::string> replies;  // by connection

  void notify() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = ::write(wake.get(), &one, sizeof one);
  }
};

class ControlServer::Server {
 public:
  Server(Fd folder, Fd listener, std::shared_ptr<Inbox> inbox, Answer answer, Duration patience)
      : patience_(patience),
        folder_(std::move(folder)),
        listener_(std::move(listener)),
        inbox_(std::move(inbox)),
        answer_(std::make_shared<const Answer>(std::move(answer))),
        thread_([this] { run(); }) {}
  ~Server() {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->closing = true;
    }
    shared_->notify();
    thread_.join();
    ::unlinkat(folder_.get(), kName, 0);
  }

 private:
  void run() {
    while (take_replies()) {
      std::vector<pollfd> fds = {{shared_->wake.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      Time next = Time::max();
      if (now() < accept_from_) next = accept_from_;
      if (connections_.size() >= kMaxConnections || now() < accept_from_) fds[1].fd = -1;
      for (const auto& [id, connection] : connections_) {
        if (awaits_loop(connection)) continue;
        const short events = connection.out.empty() ? POLLIN : POLLOUT;
        fds.push_back({connection.fd.get(), events, 0});
        next = std::min(next, connection.deadline);
      }
      const auto patience =
          next == Time::max()
              ? -1
              : std::chrono::ceil<std::chrono::milliseconds>(std::max<Duration>(next - now(), 0s))
                    .count();
      ::poll(fds.data(), fds.size(), static_cast<int>(patience));
      for (auto at = connections_.begin(); at != connections_.end();)
        at = serve(at->first, at->second) ? std::next(at) : connections_.erase(at);
      accept_all();
    }
    for (auto& [id, connection] : connections_) {
      if (!connection.out.empty()) write_more(connection);
    }
  }

  // False: the server closes.
  bool take_replies() {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(shared_->wake.get(), &count, sizeof count);
    const std::lock_guard lock(shared_->mutex);
    for (auto& [id, text] : shared_->replies) {
      const auto found = connections_.find(id);
      if (found == connections_.end()) continue;
      found->second.out = std::move(text);
      found->second.deadline = now() + patience_;
    }
    shared_->replies.clear();
    return !shared_->closing;
  }

  void accept_all() {
    while (connections_.size() < kMaxConnections) {
      Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd) {
        // EMFILE, say: whoever knocks stays, and poll() would say so at once, again and again.
        if (errno != EAGAIN && errno != EINTR) accept_from_ = now() + kAcceptPause;
        return;
      }
      Connection& connection = connections_[++last_];
      connection.fd = std::move(fd);
      connection.deadline = now() + patience_;
    }
  }

  // False: it is done with, or cut off.
  bool serve(std::uint64_t id, Connection& connection) {
    if (awaits_loop(connection)) return true;
    if (now() >= connection.deadline) return false;
    return connection.out.empty() ? read_more(id, connection) : write_more(connection);
  }

  bool read_more(std::uint64_t id, Connection& connection) {
    char block[4096];
    const ssize_t got = ::recv(connection.fd.get(), block, sizeof block, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    connection.in.append(block, static_cast<std::size_t>(got));
    const std::size_t end = connection.in.find('\n');
    if (end == std::string::npos && connection.in.size() <= kMaxRequestBytes) return true;
    const json request =
        end > kMaxRequestBytes ? json() : json::parse(connection.in.substr(0, end), nullptr, false);
    connection.in.clear();
    connection.asked = true;
    if (!request.is_object()) {
      connection.out = text_of(error(Code::kInvalid, "not a request: one JSON object in a line"));
      return write_more(connection);
    }
    inbox_->put([shared = shared_, answer = answer_, id, request] {
      std::string text = text_of((*answer)(request));
      const std::lock_guard lock(shared->mutex);
      if (shared->closing) return;
      shared->replies[id] = std::move(text);
      shared->notify();
    });
    return true;
  }

  static bool write_more(Connection& connection) {
    const ssize_t sent = ::send(connection.fd.get(), connection.out.data() + connection.sent,
                                connection.out.size() - connection.sent, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    connection.sent += static_cast<std::size_t>(sent);
    return connection.sent < connection.out.size();
  }

  Duration patience_;
  Time accept_from_{};
  Fd folder_;
  Fd listener_;
  std::shared_ptr<Inbox> inbox_;
  std::shared_ptr<const Answer> answer_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::map<std::uint64_t, Connection> connections_;
  std::uint64_t last_ = 0;
  std::thread thread_;  // last: it uses what stands above
};

ControlServer::ControlServer(std::unique_ptr<Server> server) : server_(std::move(server)) {}
ControlServer::~ControlServer() = default;

Result<std::unique_ptr<ControlServer>> ControlServer::open(
    const std::filesystem::path& job_directory, std::shared_ptr<Inbox> inbox, Answer answer,
    Duration patience) {
  Fd folder = open_folder(job_directory);
  Fd listener = make_socket();
  const auto failed = [&](const char* what) {
    return error(Code::kRetry, "cannot {} {}: {}", what, (job_directory / kName).string(),
                 errno_text(errno));
  };
  if (!folder || !listener) return failed("make");
  if (::unlinkat(folder.get(), kName, 0) != 0 && errno != ENOENT) return failed("replace");
  // Before it has a name: at no moment may anybody else connect.
  if (::fchmod(listener.get(), 0600) != 0) return failed("protect");
  const sockaddr_un address = address_in(folder);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return failed("make");
  if (::listen(listener.get(), kMaxConnections) != 0) return failed("listen on");
  return std::unique_ptr<ControlServer>(new ControlServer(std::make_unique<Server>(
      std::move(folder), std::move(listener), std::move(inbox), std::move(answer), patience)));
}

// ---- The other side ----

namespace {

Error no_answer() {
  return error(Code::kRetry, "the supervisor does not answer");
}

// False: not by then.
bool await(const Fd& fd, short events, Time deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now()).count();
    if (left <= 0) return false;
    pollfd one{fd.get(), events, 0};
    const int ready = ::poll(&one, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready == 0) return false;
  }
}

Status send_all(const Fd& fd, const std::string& text, Time deadline) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t put = ::send(fd.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (put > 0) {
      sent += static_cast<std::size_t>(put);
    } else if (errno != EAGAIN || !await(fd, POLLOUT, deadline)) {
      return no_answer();
    }
  }
  return {};
}

Result<std::string> receive_all(const Fd& fd, Time deadline) {
  std::string text;
  char block[64 << 10];
  while (text.size() <= kMaxReplyBytes) {
    const ssize_t got = ::recv(fd.get(), block, sizeof block, 0);
    if (got == 0 && !text.empty() && text.back() == '\n') return text;
    if (got > 0) {
      text.append(block, static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EAGAIN || !await(fd, POLLIN, deadline)) {
      return no_answer();
    }
  }
  return error(Code::kInvalid, "the supervisor's answer is longer than {} bytes", kMaxReplyBytes);
}

Error cannot_ask(const std::filesystem::path& job_directory, int number) {
  // As many as it takes wait already.
  if (number == EAGAIN) return no_answer();
  if (number == ENOENT || number == ECONNREFUSED)
    return error(Code::kNotFound, "no supervisor runs in {}", job_directory.string());
  return error(Code::kInvalid, "cannot ask the supervisor by {}: {}",
               (job_directory / kName).string(), errno_text(number));
}

// Of whatever has answered: another version, or something else that listens there.
Error error_in(const json& failed) {
  Error found{Code::kRetry, "the supervisor refused"};
  if (!failed.is_object()) return found;
  const auto code = failed.find("code");
  const auto message = failed.find("message");
  if (code != failed.end() && code->is_number_integer()) {
    const auto number = code->get<std::int64_t>();
    if (number >= 0 && number <= static_cast<int>(Code::kNoSpace))
      found.code = static_cast<Code>(number);
  }
  if (message != failed.end() && message->is_string()) found.message = message->get<std::string>();
  return found;
}

}  // namespace

Result<json> ask_supervisor(const std::filesystem::path& job_directory, const json& request,
                            Time deadline) {
  const Fd folder = open_folder(job_directory);
  if (!folder) return cannot_ask(job_directory, errno);
  const Fd fd = make_socket();
  if (!fd) return cannot_ask(job_directory, errno);
  const sockaddr_un address = address_in(folder);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return cannot_ask(job_directory, errno);
  SUREFOOT_TRY(send_all(fd, request.dump() + "\n", deadline));
  SUREFOOT_ASSIGN(const std::string text, receive_all(fd, deadline));
  json reply = json::parse(text, nullptr, false);
  if (!reply.is_object()) return error(Code::kInvalid, "the supervisor's answer is not readable");
  const auto failed = reply.find("error");
  if (failed == reply.end()) return reply;
  return error_in(*failed);
}

}  // namespace surefoot
