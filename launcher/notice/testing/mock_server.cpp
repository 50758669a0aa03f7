#include "launcher/notice/testing/mock_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

namespace surefoot::notice {
namespace {

constexpr int kPollMs = 20;
constexpr std::size_t kLongestRequest = 1 << 16;

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// Of a whole head, without the body.
MockRequest parse_head(const std::string& head) {
  MockRequest request;
  const std::string first = head.substr(0, head.find("\r\n"));
  const auto space = first.find(' ');
  request.method = first.substr(0, space);
  const std::string target =
      space == std::string::npos ? "" : first.substr(space + 1, first.rfind(' ') - space - 1);
  request.path = target.substr(0, target.find('?'));
  if (request.path.size() < target.size()) request.query = target.substr(request.path.size() + 1);
  for (std::size_t at = first.size() + 2; at < head.size();) {
    const auto end = std::min(head.find("\r\n", at), head.size());
    const std::string line = head.substr(at, end - at);
    if (const auto colon = line.find(':'); colon != std::string::npos)
      request.headers[lower(line.substr(0, colon))] = trimmed(line.substr(colon + 1));
    at = end + 2;
  }
  return request;
}

// Nothing: the peer has gone, or says too much.
std::optional<MockRequest> read_request(int socket) {
  std::string bytes;
  std::array<char, 4096> piece{};
  for (;;) {
    if (const auto end = bytes.find("\r\n\r\n"); end != std::string::npos) {
      MockRequest request = parse_head(bytes.substr(0, end));
      const auto length = request.headers.find("content-length");
      const std::size_t wanted =
          length == request.headers.end() ? 0 : std::strtoul(length->second.c_str(), nullptr, 10);
      request.body = bytes.substr(end + 4);
      if (request.body.size() >= wanted) return request;
    }
    const ssize_t got = ::recv(socket, piece.data(), piece.size(), 0);
    if (got <= 0 || bytes.size() > kLongestRequest) return std::nullopt;
    bytes.append(piece.data(), static_cast<std::size_t>(got));
  }
}

std::string to_bytes(const MockReply& reply) {
  const std::size_t more = reply.how == MockReply::How::kCut ? 1 : 0;
  std::string out = fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\nConnection: close\r\n",
                                reply.status, reply.body.size() + more);
  for (const auto& [name, value] : reply.headers) out += fmt::format("{}: {}\r\n", name, value);
  return out + "\r\n" + reply.body;
}

}  // namespace

Result<std::unique_ptr<MockServer>> MockServer::start(const std::string& address, int port,
                                                      Handler handler) {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t size = sizeof name;
  auto* const generic = reinterpret_cast<sockaddr*>(&name);
  if (::inet_pton(AF_INET, address.c_str(), &name.sin_addr) != 1 ||
      ::bind(listener.get(), generic, size) != 0 || ::listen(listener.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener.get(), generic, &size) != 0)
    return error(Code::kRetry, "cannot listen on {}:{}: {}", address, port, errno_text(errno));
  return std::unique_ptr<MockServer>(
      new MockServer(std::move(listener), ntohs(name.sin_port), std::move(handler)));
}

MockServer::MockServer(Fd listener, int port, Handler handler)
    : listener_(std::move(listener)), port_(port), handler_(std::move(handler)) {
  thread_ = std::thread([this] { accept_all(); });
}

MockServer::~MockServer() {
  stopping_ = true;
  thread_.join();
  for (Connection& connection : connections_) ::shutdown(connection.socket.get(), SHUT_RDWR);
  for (Connection& connection : connections_) connection.thread.join();
}

void MockServer::accept_all() {
  pollfd waiting{listener_.get(), POLLIN, 0};
  while (!stopping_) {
    if (::poll(&waiting, 1, kPollMs) <= 0) continue;
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) continue;
    Connection& connection = connections_.emplace_back();
    connection.socket = std::move(socket);
    connection.thread = std::thread([this, fd = connection.socket.get()] { serve(fd); });
  }
}

void MockServer::serve(int socket) {
  if (const auto request = read_request(socket)) {
    const MockReply reply = handler_(*request);
    const std::string bytes = reply.how == MockReply::How::kSilent ? "" : to_bytes(reply);
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t put = ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (put <= 0) break;
      sent += static_cast<std::size_t>(put);
    }
  }
  ::shutdown(socket, SHUT_RDWR);
}

}  // namespace surefoot::notice
