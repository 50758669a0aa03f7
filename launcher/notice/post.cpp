#include "launcher/notice/post.h"

#include <httplib.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "common/log.h"
#include "launcher/notice/book.h"
#include "launcher/notice/payloads.h"

namespace surefoot::notice {
namespace {

constexpr std::size_t kLongestBody = 4096;
constexpr int kThreads = 2;
constexpr Duration kTryAgain = std::chrono::seconds(3);
constexpr Duration kStopLook = std::chrono::milliseconds(20);
constexpr int kBadRequest = 400;

}  // namespace

struct PostServer::State {
  ListenAddress address;
  Duration lead;
  std::shared_ptr<Desk> desk;
  Book book{"http", /*cancels=*/false};
  httplib::Server server;
  std::mutex mutex;
  std::condition_variable changed;
  int port = 0;
  bool stopping = false;
  bool ended = false;

  void set_up();
  void take(const httplib::Request& request, httplib::Response& response);
  void run();
  bool wait(Duration pause);
};

void PostServer::State::set_up() {
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  // httplib's own would let a second job listen on the same port, and each hear half of it.
  server.set_socket_options([](socket_t socket) {
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
  server.set_payload_max_length(kLongestBody);
  server.set_read_timeout(std::chrono::seconds(1));
  server.set_write_timeout(std::chrono::seconds(1));
  server.set_keep_alive_max_count(1);
  server.Post("/notice", [this](const httplib::Request& request, httplib::Response& response) {
    take(request, response);
  });
}

void PostServer::State::take(const httplib::Request& request, httplib::Response& response) {
  const Reading reading = read_seconds(request.body, lead);
  if (reading.trouble) {
    response.status = kBadRequest;
    response.set_content(reading.trouble->message + "\n", "text/plain");
    return;
  }
  const Time at = now();
  const auto wall = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const std::lock_guard lock(mutex);
  // Between two POSTs nobody says anything.
  (void)book.take({"post", {}, {}}, at, wall);
  for (const Change& change : book.take({"post", reading.sightings, {}}, at, wall).changes) {
    desk->take(change);
    spdlog::warn("notice from http, {}: this machine is taken in {:.1f} s ({})",
                 printable(request.remote_addr), seconds(*change.notice.deadline - at),
                 change.notice.id);
  }
  response.set_content("this machine leaves the job\n", "text/plain");
}

// True: it is time to end.
bool PostServer::State::wait(Duration pause) {
  std::unique_lock lock(mutex);
  return changed.wait_for(lock, pause, [this] { return stopping; });
}

void PostServer::State::run() {
  bool complained = false;
  for (bool stop = false; !stop; stop = wait(kTryAgain)) {
    int bound = address.port;
    if (bound == 0) {
      bound = server.bind_to_any_port(address.host);
    } else if (!server.bind_to_port(address.host, bound)) {
      bound = -1;
    }
    if (bound <= 0) {
      if (!std::exchange(complained, true))
        spdlog::error("cannot listen for notices on {} port {}: tried again every few seconds",
                      address.host, address.port);
      continue;
    }
    spdlog::info("listening for notices: POST http://{}:{}/notice", address.host, bound);
    {
      const std::lock_guard lock(mutex);
      port = bound;
    }
    server.listen_after_bind();
  }
  const std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
}

PostServer::PostServer(ListenAddress address, Duration lead, std::shared_ptr<Desk> desk)
    : state_(std::make_shared<State>()) {
  state_->address = std::move(address);
  state_->lead = lead;
  state_->desk = std::move(desk);
  state_->set_up();
  std::thread([state = state_] { state->run(); }).detach();
}

PostServer::~PostServer() {
  stop(now());
}

int PostServer::port() const {
  const std::lock_guard lock(state_->mutex);
  return state_->port;
}

// httplib forgets a stop that comes before it runs, so it is told until it has ended.
void PostServer::stop(Time deadline) {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  do {
    lock.unlock();
    state_->server.stop();
    lock.lock();
  } while (!state_->changed.wait_until(lock, std::min(deadline, now() + kStopLook), [this] {
    return state_->ended;
  }) && now() < deadline);
}

}  // namespace surefoot::notice
