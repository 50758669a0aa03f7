#include "checkpoint/store/s3/testing/proxy.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "common/check.h"
#include "common/clock.h"

namespace surefoot::s3 {
namespace {

constexpr int kPoll_ms = 20;
constexpr std::size_t kBlock = 64 << 10;
constexpr std::size_t kMaxHeader = 64 << 10;

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

bool is_ready(int fd, short what) {
  pollfd entry{fd, what, 0};
  return ::poll(&entry, 1, kPoll_ms) == 1;
}

void reset(Fd& socket) {
  const linger at_once{1, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  socket.reset();
}

std::int64_t content_length(const std::string& header) {
  static constexpr std::string_view kName = "\r\ncontent-length:";
  std::string lower = header;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const auto at = lower.find(kName);
  return at == std::string::npos ? 0 : std::atoll(lower.c_str() + at + kName.size());
}

// Does its first line hold `match`?
bool is_about(const std::string& header, const std::string& match) {
  return header.substr(0, header.find("\r\n")).find(match) != std::string::npos;
}

}  // namespace

struct FaultProxy::Connection {
  Fd client;
  Fd server;
  Fault fault;
  bool has_fault = false;
  std::int64_t body_sent = 0;  // to the service
  std::int64_t answered = 0;   // to the client
  Time begun = now();

  [[nodiscard]] bool is(Fault::Kind kind) const { return has_fault && fault.kind == kind; }
};

FaultProxy::FaultProxy(int target_port) : target_port_(target_port) {
  listener_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof(address);
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  SUREFOOT_CHECK(::bind(listener_.get(), plain, size) == 0);
  SUREFOOT_CHECK(::listen(listener_.get(), 64) == 0);
  SUREFOOT_CHECK(::getsockname(listener_.get(), plain, &size) == 0);
  port_ = ntohs(address.sin_port);
  accepting_ = std::thread([this] { accept_all(); });
}

FaultProxy::~FaultProxy() {
  stop_ = true;
  accepting_.join();
  for (std::thread& thread : threads_) thread.join();
}

std::string FaultProxy::endpoint() const {
  return fmt::format("http://127.0.0.1:{}", port_);
}

void FaultProxy::add(Fault fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(std::move(fault));
}

void FaultProxy::clear() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
}

int FaultProxy::seen(const std::string& match) {
  return static_cast<int>(headers(match).size());
}

std::vector<std::string> FaultProxy::headers(const std::string& match) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> found;
  std::copy_if(headers_.begin(), headers_.end(), std::back_inserter(found),
               [&](const std::string& header) { return is_about(header, match); });
  return found;
}

bool FaultProxy::take(const std::string& header, Fault& fault) {
  const std::lock_guard lock(mutex_);
  headers_.push_back(header);
  for (Fault& one : faults_) {
    if (one.times == 0 || !is_about(header, one.match)) continue;
    --one.times;
    fault = one;
    ++faults_done_;
    return true;
  }
  return false;
}

void FaultProxy::accept_all() {
  while (!stop_) {
    if (!is_ready(listener_.get(), POLLIN)) continue;
    Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client)
      threads_.emplace_back(
          [this, client = std::move(client)]() mutable { serve(std::move(client)); });
  }
}

void FaultProxy::serve(Fd client) {
  std::string header;
  std::array<char, kBlock> block{};
  while (!stop_ && header.find("\r\n\r\n") == std::string::npos && header.size() < kMaxHeader) {
    if (!is_ready(client.get(), POLLIN)) continue;
    const ssize_t got = ::recv(client.get(), block.data(), block.size(), 0);
    if (got <= 0) return;
    header.append(block.data(), static_cast<std::size_t>(got));
  }
  if (stop_) return;
  const auto header_end = header.find("\r\n\r\n") + 4;
  const auto line_end = header.find("\r\n");
  Connection connection;
  connection.has_fault = take(header.substr(0, header_end), connection.fault);
  const auto body_here = static_cast<std::int64_t>(header.size() - header_end);
  if (connection.is(Fault::Kind::kAnswer))
    return answer(client.get(), connection.fault,
                  content_length(header.substr(0, header_end)) - body_here);
  if (connection.is(Fault::Kind::kBlackHole)) return hold(client.get());
  if (connection.is(Fault::Kind::kDelay)) {
    const timespec pause{connection.fault.amount / 1000, connection.fault.amount % 1000 * 1000000};
    ::nanosleep(&pause, nullptr);
  }
  // One request a connection: the next one is looked at anew.
  header.insert(line_end, "\r\nConnection: close");
  connection.client = std::move(client);
  connection.server = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(target_port_);
  if (::connect(connection.server.get(), reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) != 0)
    return;
  connection.body_sent = body_here;
  if (::send(connection.server.get(), header.data(), header.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(header.size()))
    return;
  pump(connection);
}

// The body is taken first, or the client would see a reset.
void FaultProxy::answer(int client, const Fault& fault, std::int64_t body_left) const {
  std::array<char, kBlock> block{};
  while (body_left > 0 && !stop_) {
    if (!is_ready(client, POLLIN)) continue;
    const ssize_t got = ::recv(client, block.data(), block.size(), 0);
    if (got <= 0) return;
    body_left -= got;
  }
  const std::string body =
      fault.code.empty()
          ? fault.body
          : fmt::format("<Error><Code>{}</Code><Message>by the proxy</Message></Error>",
                        fault.code);
  const time_t time = ::time(nullptr) + fault.amount;
  tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 64> date{};
  ::strftime(date.data(), date.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  const std::string text = fmt::format(
      "HTTP/1.1 {} Fault\r\nDate: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      fault.status, date.data(), body.size(), body);
  (void)::send(client, text.data(), text.size(), MSG_NOSIGNAL);
}

void FaultProxy::hold(int client) const {
  while (!stop_) {
    pollfd entry{client, POLLRDHUP, 0};
    if (::poll(&entry, 1, kPoll_ms) == 1 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
      return;
  }
}

void FaultProxy::pump(Connection& connection) {
  using Kind = Fault::Kind;
  std::array<char, kBlock> block{};
  const bool cuts = connection.is(Kind::kCutRequest) || connection.is(Kind::kCutAnswer) ||
                    connection.is(Kind::kStall);
  const auto pass = [&](Fd& from, Fd& to, std::int64_t limit) -> ssize_t {
    const auto most = cuts ? static_cast<std::size_t>(std::clamp<std::int64_t>(
                                 limit, 1, static_cast<std::int64_t>(block.size())))
                           : block.size();
    const ssize_t got = ::recv(from.get(), block.data(), most, 0);
    if (got <= 0) return got;
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t now_sent =
          ::send(to.get(), block.data() + sent, static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
      if (now_sent <= 0) return -1;
      sent += now_sent;
    }
    return got;
  };
  const std::int64_t amount = connection.fault.amount;
  std::int64_t passed = 0;
  while (!stop_) {
    if (connection.is(Kind::kCutRequest) && connection.body_sent >= amount)
      return reset(connection.client);
    if (connection.is(Kind::kStall) && connection.body_sent >= amount)
      return hold(connection.client.get());
    if (connection.is(Kind::kCutAnswer) && connection.answered >= amount)
      return reset(connection.client);
    if (connection.is(Kind::kThrottle) &&
        static_cast<double>(passed) >
            seconds(now() - connection.begun) * static_cast<double>(amount)) {
      const timespec pause{0, 1'000'000};
      ::nanosleep(&pause, nullptr);
      continue;
    }
    std::array<pollfd, 2> entries{pollfd{connection.client.get(), POLLIN, 0},
                                  pollfd{connection.server.get(), POLLIN, 0}};
    if (::poll(entries.data(), 2, kPoll_ms) <= 0) continue;
    if (entries[1].revents != 0) {
      if (connection.is(Kind::kLoseAnswer)) return reset(connection.client);
      const ssize_t got = pass(connection.server, connection.client, amount - connection.answered);
      if (got <= 0) return;
      connection.answered += got;
      passed += got;
    }
    if (entries[0].revents != 0) {
      const ssize_t got = pass(connection.client, connection.server, amount - connection.body_sent);
      if (got <= 0) return;
      connection.body_sent += got;
      passed += got;
    }
  }
}

}  // namespace surefoot::s3
