#include "checkpoint/service_client.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <zmq.hpp>

#include "common/file.h"

namespace surefoot {
namespace {

using std::chrono::milliseconds;

// How long an answer is waited for before looking whether the service is still the one that was
// asked.
constexpr Duration kPatience = milliseconds(200);
constexpr Duration kProbe = milliseconds(500);  // of a status call, while a service starts
constexpr Duration kBetweenStarts = std::chrono::seconds(1);
constexpr int kStarts = 4;  // the first may find another one that is just ending
constexpr Duration kBetweenCalls = std::chrono::seconds(2);  // of when_missing's function

// Names the running service (its pid, as its lock has it); empty when there was none yet.
std::string service_named_in(const std::filesystem::path& folder) {
  auto text = read_file(folder / "service.lock");
  return text ? *text : std::string();
}

// Somebody listens on the socket. A file alone says nothing: a killed service leaves it.
bool listens(const std::filesystem::path& socket_path) {
  const std::string path = socket_path.string();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  path.copy(address.sun_path, path.size());
  const Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
         errno == EAGAIN;
}

std::string last_line_of(const std::string& path) {
  auto text = read_file(path);
  if (!text) return text.error().message;
  while (text->ends_with('\n')) text->pop_back();
  return text->substr(text->rfind('\n') + 1);
}

class Conversation {
 public:
  Conversation(zmq::context_t& context, const std::filesystem::path& folder,
               const std::function<void()>& missing)
      : context_(context), folder_(folder), missing_(missing) {}

  Result<std::string> ask(const std::string& request, Time deadline) {
    std::string asked;
    bool sent = false;
    while (now() < deadline) {
      if (!sent && !listens(folder_ / "service.sock")) {
        if (missing_ && now() >= next_call_) {
          missing_();
          next_call_ = now() + kBetweenCalls;
        }
        std::this_thread::sleep_for(std::min<Duration>(milliseconds(10), deadline - now()));
        continue;
      }
      if (!sent) {
        asked = service_named_in(folder_);
        send(request);
        sent = true;
      }
      if (auto answer = receive(std::min(deadline, now() + kPatience))) return *std::move(answer);
      // It was killed and started again: its next life does not know the question.
      const bool same = service_named_in(folder_) == asked && listens(folder_ / "service.sock");
      sent = sent && same;
    }
    return error(Code::kRetry, "the checkpoint service in {} does not answer", folder_.string());
  }

 private:
  void send(const std::string& request) {
    socket_ = zmq::socket_t(context_, zmq::socket_type::req);
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::reconnect_ivl, 20);
    socket_.connect("ipc://" + (folder_ / "service.sock").string());
    socket_.send(zmq::buffer(request), zmq::send_flags::dontwait);
  }

  std::optional<std::string> receive(Time deadline) {
    zmq::pollitem_t item{socket_.handle(), 0, ZMQ_POLLIN, 0};
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - now());
    zmq::poll(&item, 1, std::max(left, milliseconds(1)));
    zmq::message_t message;
    if ((item.revents & ZMQ_POLLIN) == 0 || !socket_.recv(message, zmq::recv_flags::dontwait))
      return std::nullopt;
    return message.to_string();
  }

  zmq::context_t& context_;
  const std::filesystem::path& folder_;
  const std::function<void()>& missing_;
  Time next_call_{};
  zmq::socket_t socket_;
};

}  // namespace

ServiceClient::ServiceClient(std::filesystem::path arena_folder, std::string job_id)
    : folder_(std::move(arena_folder)), job_id_(std::move(job_id)) {}

Result<service::Reply> ServiceClient::call(service::Request request, Time deadline) {
  request.set_protocol(kProtocol);
  request.set_job_id(job_id_);
  try {
    // Made by the first call: its thread must not exist before a caller forks or daemonizes.
    if (!context_) context_ = std::make_shared<zmq::context_t>(1);
    Conversation conversation(*std::static_pointer_cast<zmq::context_t>(context_), folder_,
                              missing_);
    SUREFOOT_ASSIGN(const std::string answer,
                    conversation.ask(request.SerializeAsString(), deadline));
    service::Reply reply;
    if (!reply.ParseFromString(answer))
      return error(Code::kInvalid, "the checkpoint service answers something unreadable");
    if (!reply.has_error()) return reply;
    const int code = reply.error().code();
    const bool known = code >= 0 && code <= static_cast<int>(Code::kNoSpace);
    return Error{known ? static_cast<Code>(code) : Code::kRetry, reply.error().message()};
  } catch (const zmq::error_t& failed) {
    return error(Code::kRetry, "cannot talk to the checkpoint service in {}: {}", folder_.string(),
                 failed.what());
  }
}

Status ensure_service(ServiceClient& client, const ServiceLaunch& launch, Time deadline) {
  service::Request request;
  request.mutable_status()->set_records_from(~std::uint64_t{0});
  SpawnOptions options;
  options.argv = {launch.program.string(), launch.job_file.string(), "--dir",
                  launch.job_directory.string()};
  for (const std::string& set : launch.sets) {
    options.argv.push_back("--set");
    options.argv.push_back(set);
  }
  if (launch.supervised) options.argv.push_back("--supervised");
  options.detach = true;
  std::error_code ignored;
  std::filesystem::create_directories(launch.job_directory / "logs", ignored);
  options.output = (launch.job_directory / "logs" / "node.log").string();

  Time next_start{};
  int starts = 0;
  std::optional<ProcessId> started;
  while (now() < deadline) {
    if (client.has_service() || started) {
      auto reply = client.call(request, std::min(deadline, now() + kProbe));
      if (reply) return {};
      if (reply.error().code != Code::kRetry) return std::move(reply).error();
    }
    const bool running = started && is_alive(*started);
    if (running || now() < next_start || client.has_service()) continue;
    // Ended without a word to us: it found another one, which may be ending, or it cannot start.
    if (++starts > kStarts) {
      return error(Code::kRetry, "the checkpoint service ends as soon as it is started; {}: {}",
                   options.output, last_line_of(options.output));
    }
    SUREFOOT_ASSIGN(started, spawn(options));
    next_start = now() + kBetweenStarts;
  }
  return error(Code::kRetry, "the checkpoint service does not start; its log is {}",
               options.output);
}

bool ServiceClient::has_service() const {
  return listens(folder_ / "service.sock");
}

}  // namespace surefoot
