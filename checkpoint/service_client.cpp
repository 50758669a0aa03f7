#include "checkpoint/service_client.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <zmq.hpp>

#include "checkpoint/service_core.h"
#include "common/file.h"

namespace surefoot {
namespace {

using std::chrono::milliseconds;

// How long an answer is waited for before looking whether the service is still the one that was
// asked.
constexpr Duration kPatience = milliseconds(200);
constexpr Duration kBetweenConnects = milliseconds(50);  // where each one is ended at once
constexpr std::int64_t kMaxReplyBytes = 64 << 20;        // far more than a service says
constexpr Duration kProbe = milliseconds(500);           // of a status call, while a service starts
constexpr Duration kBetweenStarts = std::chrono::seconds(1);
constexpr int kStarts = 4;  // the first may find another one that is just ending
constexpr Duration kBetweenCalls = std::chrono::seconds(2);  // of when_missing's function

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

// What the address means at this moment; nothing: nobody is there.
std::optional<std::string> endpoint_of(const ServiceAddress& address) {
  if (address.folder.empty()) return address.endpoint;
  const std::filesystem::path socket_path = address.folder / "service.sock";
  if (!listens(socket_path)) return std::nullopt;
  if (!address.keys) return "ipc://" + socket_path.string();
  // Written before the socket is there, so it is never of an earlier life.
  auto text = read_file(address.folder / "endpoint");
  if (!text || !text->starts_with("tcp://")) return std::nullopt;
  return text->substr(0, text->find('\n'));
}

}  // namespace

ServiceAddress ServiceAddress::elsewhere(std::string endpoint, ServiceKeys client_keys) {
  ServiceAddress address({}, std::move(client_keys));
  address.endpoint = std::move(endpoint);
  return address;
}

// A question, its answer, and the connection that is kept for the next one.
class ServiceClient::Connection {
 public:
  ~Connection() { disconnect(); }

  Result<std::string> ask(const ServiceAddress& address, const std::string& request, Time deadline,
                          const std::function<void()>& missing) {
    bool sent = false;
    while (now() < deadline) {
      if (!sent) {
        SUREFOOT_ASSIGN(sent, send(address, request, deadline, missing));
        if (!sent) continue;
      }
      if (auto answer = receive(std::min(deadline, now() + kPatience))) {
        waiting_ = false;
        return *std::move(answer);
      }
      if (denied_) break;
      // It was killed and started again: its next life does not know the question.
      sent = !lost_ && (address.folder.empty() || endpoint_of(address) == endpoint_);
    }
    const std::string where = address.folder.empty() ? address.endpoint : address.folder.string();
    if (denied_) {
      return error(Code::kInvalid, "the checkpoint service at {} does not take this job's key",
                   where);
    }
    return error(Code::kRetry, "the checkpoint service in {} does not answer", where);
  }

 private:
  // False: nobody is there; some time has been waited.
  Result<bool> send(const ServiceAddress& address, const std::string& request, Time deadline,
                    const std::function<void()>& missing) {
    read_events();
    if (!socket_ || waiting_ || lost_) {
      const auto endpoint = endpoint_of(address);
      if (!endpoint || (lost_ && now() < next_connect_)) {
        if (!endpoint && missing && now() >= next_call_) {
          missing();
          next_call_ = now() + kBetweenCalls;
        }
        std::this_thread::sleep_for(std::min<Duration>(milliseconds(10), deadline - now()));
        return false;
      }
      connect(*endpoint, address.keys);
    }
    if (!unless_interrupted([&] {
          return socket_.send(zmq::buffer(request), zmq::send_flags::dontwait).has_value();
        }))
      return false;
    waiting_ = true;
    return true;
  }

  // First the events end, then who listens goes: libzmq's thread would wait for another one, and do
  // nothing else, when it has something to tell in between.
  void disconnect() {
    if (socket_) (void)::zmq_socket_monitor(socket_.handle(), nullptr, 0);
    socket_.close();
    events_.close();
  }

  void connect(const std::string& endpoint, const std::optional<ServiceKeys>& keys) {
    disconnect();
    lost_ = denied_ = waiting_ = false;
    next_connect_ = now() + kBetweenConnects;
    endpoint_ = endpoint;
    events_ = zmq::socket_t(context_, zmq::socket_type::pair);
    events_.set(zmq::sockopt::linger, 0);
    // Unlimited, as it would wait for its events to be read, too.
    events_.set(zmq::sockopt::rcvhwm, 0);
    socket_ = zmq::socket_t(context_, zmq::socket_type::req);
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::reconnect_ivl, 20);
    socket_.set(zmq::sockopt::maxmsgsize, kMaxReplyBytes);
    if (keys) {
      socket_.set(zmq::sockopt::curve_serverkey, keys->server_public);
      socket_.set(zmq::sockopt::curve_publickey, keys->client_public);
      socket_.set(zmq::sockopt::curve_secretkey, keys->client_secret);
      // A machine that is gone says nothing any more.
      socket_.set(zmq::sockopt::heartbeat_ivl, 1000);
      socket_.set(zmq::sockopt::heartbeat_timeout, 5000);
    }
    const std::string events = fmt::format("inproc://events-{}", ++count_);
    if (::zmq_socket_monitor(socket_.handle(), events.c_str(),
                             ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) != 0)
      throw zmq::error_t();
    events_.connect(events);
    if (endpoint.starts_with("tcp://[")) socket_.set(zmq::sockopt::ipv6, true);
    socket_.connect(endpoint);
  }

  std::optional<std::string> receive(Time deadline) {
    zmq::pollitem_t items[] = {{socket_.handle(), 0, ZMQ_POLLIN, 0},
                               {events_.handle(), 0, ZMQ_POLLIN, 0}};
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - now());
    zmq::message_t message;
    const bool came = unless_interrupted([&] {
      zmq::poll(items, 2, std::max(left, milliseconds(1)));
      return socket_.recv(message, zmq::recv_flags::dontwait).has_value();
    });
    if (came) return message.to_string();
    read_events();
    return std::nullopt;
  }

  // A signal says nothing of the service: as if nothing had come, or gone.
  static bool unless_interrupted(const std::function<bool()>& act) {
    try {
      return act();
    } catch (const zmq::error_t& failed) {
      if (failed.num() != EINTR) throw;
      return false;
    }
  }

  void read_events() {
    zmq::message_t frame;
    const auto comes = [&] {
      return unless_interrupted(
          [&] { return events_.recv(frame, zmq::recv_flags::dontwait).has_value(); });
    };
    while (events_ && comes()) {
      std::uint16_t what = 0;
      if (frame.size() >= sizeof what) std::memcpy(&what, frame.data(), sizeof what);
      lost_ = lost_ || what == ZMQ_EVENT_DISCONNECTED;
      denied_ = denied_ || what == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
      while (frame.more() && comes()) continue;
    }
  }

  zmq::context_t context_{1};
  zmq::socket_t socket_;
  zmq::socket_t events_;  // of the connection
  std::string endpoint_;
  int count_ = 0;
  bool waiting_ = false;  // for an answer that has not come
  bool lost_ = false;     // the connection has ended
  bool denied_ = false;   // ... as the key was not the right one
  Time next_connect_{};
  Time next_call_{};
};

ServiceClient::ServiceClient(ServiceAddress address, std::string job_id)
    : address_(std::move(address)), job_id_(std::move(job_id)) {}
ServiceClient::~ServiceClient() = default;
ServiceClient::ServiceClient(ServiceClient&&) noexcept = default;
ServiceClient& ServiceClient::operator=(ServiceClient&&) noexcept = default;

Result<service::Reply> ServiceClient::call(service::Request request, Time deadline) {
  request.set_protocol(kProtocol);
  request.set_job_id(job_id_);
  try {
    // Made by the first call: its thread must not exist before a caller forks or daemonizes.
    if (!connection_) connection_ = std::make_unique<Connection>();
    SUREFOOT_ASSIGN(const std::string answer,
                    connection_->ask(address_, request.SerializeAsString(), deadline, missing_));
    service::Reply reply;
    if (!reply.ParseFromString(answer))
      return error(Code::kInvalid, "the checkpoint service answers something unreadable");
    if (!reply.has_error()) return reply;
    const int code = reply.error().code();
    const bool known = code >= 0 && code <= static_cast<int>(Code::kNoSpace);
    return Error{known ? static_cast<Code>(code) : Code::kRetry, reply.error().message()};
  } catch (const zmq::error_t& failed) {
    connection_.reset();
    return error(Code::kRetry, "cannot talk to the checkpoint service: {}", failed.what());
  }
}

namespace {

// Makes the folder of its log.
SpawnOptions spawn_options(const ServiceLaunch& launch) {
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
  return options;
}

}  // namespace

Status ServiceStarter::look(Time at) {
  if (listens(folder_ / "service.sock")) {
    starts_ = 0;
    return {};
  }
  if (at < not_before_ || (started_ && is_alive(*started_))) return {};
  not_before_ = at + pause_before_try(++starts_ + 2);
  SUREFOOT_ASSIGN(started_, spawn(spawn_options(launch_)));
  return {};
}

Status ensure_service(ServiceClient& client, const ServiceLaunch& launch, Time deadline) {
  service::Request request;
  request.mutable_status()->set_records_from(~std::uint64_t{0});
  const SpawnOptions options = spawn_options(launch);

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
  return address_.folder.empty() || listens(address_.folder / "service.sock");
}

}  // namespace surefoot
