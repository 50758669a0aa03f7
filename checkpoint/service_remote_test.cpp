// The supervisor's side of a service: keys, and what becomes of those who have none. The real
// program, on loopback.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>
#include <zmq.hpp>

#include "checkpoint/service_keys.h"
#include "checkpoint/service_sockets.h"
#include "checkpoint/service_test_util.h"

namespace surefoot {
namespace {

// ---- keys ----

TEST(ServiceKeys, AreMadeOnceForAllAndForTheirOwnerOnly) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "service.keys";
  EXPECT_EQ(read_service_keys(file).error().code, Code::kNotFound);
  std::vector<std::string> texts(4);
  std::vector<std::thread> makers;
  for (std::string& text : texts) {
    makers.emplace_back([&text, &file] {
      auto keys = make_service_keys(file);
      if (keys) text = to_text(*keys);
    });
  }
  for (std::thread& maker : makers) maker.join();
  for (const std::string& text : texts) EXPECT_EQ(text, *read_file(file));
  struct stat info {};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);

  ::chmod(file.c_str(), 0640);
  EXPECT_EQ(read_service_keys(file).error().code, Code::kInvalid);
}

TEST(ServiceKeys, GiveEachSideOnlyItsHalf) {
  const TemporaryFolder folder;
  const auto keys = make_service_keys(folder.path() / "service.keys");
  ASSERT_TRUE(keys);
  EXPECT_EQ(to_text(server_half(*keys)).find(keys->client_secret), std::string::npos);
  EXPECT_EQ(to_text(client_half(*keys)).find(keys->server_secret), std::string::npos);
  EXPECT_EQ(to_text(*parse_service_keys(to_text(server_half(*keys)))), to_text(server_half(*keys)));
}

TEST(ServiceKeys, RefuseWhatIsNotKeysAndNeverRepeatIt) {
  const TemporaryFolder folder;
  const std::string good = to_text(*make_service_keys(folder.path() / "service.keys"));
  std::mt19937_64 random(1);
  EXPECT_FALSE(parse_service_keys(""));
  EXPECT_FALSE(parse_service_keys(std::string(2000, 'a')));
  EXPECT_FALSE(parse_service_keys(good + good));
  EXPECT_FALSE(parse_service_keys(good.substr(0, good.find("server-secret"))));
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    bad.resize(random() % bad.size());
    for (std::uint64_t n = random() % 3; n > 0 && !bad.empty(); --n)
      bad[random() % bad.size()] = static_cast<char>(random());
    const auto parsed = parse_service_keys(bad);
    if (parsed) continue;
    EXPECT_EQ(parsed.error().message.find(good.substr(20, 10)), std::string::npos);
  }
}

TEST(ServiceKeys, AreNotWaitedForWhereTheFileIsAPipe) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "service.keys";
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_EQ(read_service_keys(file).error().code, Code::kInvalid);
}

// ---- strangers ----

class RemoteTest : public ServiceTest {
 protected:
  void make_keys() {
    auto keys = make_service_keys(launch_.job_directory / "service.keys");
    ASSERT_TRUE(keys) << keys.error().message;
    keys_ = *keys;
  }
  // A service with keys, a gang of one, and a supervisor.
  void begin() {
    make_keys();
    start();
    ASSERT_TRUE(say_hello(1));
    make_step(0);
    supervisor_ = std::make_unique<ServiceClient>(
        ServiceAddress{arena_, std::optional(client_half(keys_))}, kJobId);
    const auto text = read_file(arena_ / "endpoint");
    ASSERT_TRUE(text);
    endpoint_ = text->substr(0, text->find('\n'));
    ASSERT_EQ(endpoint_.rfind("tcp://127.0.0.1:", 0), 0u) << endpoint_;
  }
  Result<service::Reply> ask(ServiceClient& client, Duration patience = kPatience) {
    service::Request request;
    request.mutable_status();
    return client.call(request, now() + patience);
  }
  // Training and the supervisor notice nothing.
  void expect_all_is_well() {
    make_step(++step_);
    const auto reply = ask(*supervisor_);
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_EQ(reply->status().ready_step(), step_);
  }
  [[nodiscard]] int port() const { return std::stoi(endpoint_.substr(endpoint_.rfind(':') + 1)); }
  [[nodiscard]] Fd connect_raw() const {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    return fd;
  }
  static bool is_closed_by_peer(int fd) {
    char block[4096];
    for (;;) {
      const ssize_t got = ::recv(fd, block, sizeof block, MSG_DONTWAIT);
      if (got == 0) return true;
      if (got < 0) return errno != EAGAIN;
    }
  }
  [[nodiscard]] std::int64_t memory_kib() const {
    const auto text = read_file(fmt::format("/proc/{}/status", service_process()->pid));
    const std::size_t at = text->find("RssAnon:");
    return std::atoll(text->c_str() + at + 8);
  }
  [[nodiscard]] std::ptrdiff_t open_files() const {
    return std::distance(
        std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", service_process()->pid)),
        {});
  }

  ServiceKeys keys_;
  std::unique_ptr<ServiceClient> supervisor_;
  std::string endpoint_;
  std::int64_t step_ = 0;
};

TEST_F(RemoteTest, AnswersTheSupervisorOverTcpAndWorkersOnTheirSocket) {
  begin();
  expect_all_is_well();
  EXPECT_EQ(status().endpoint(), endpoint_);
  // From another machine, as far as the client can tell.
  ServiceClient elsewhere(ServiceAddress::elsewhere(endpoint_, client_half(keys_)), kJobId);
  EXPECT_TRUE(ask(elsewhere));
  // Keys are nowhere but in their file.
  const auto process = service_process();
  for (const std::string& text : {log(), *read_file(fmt::format("/proc/{}/cmdline", process->pid)),
                                  *read_file(fmt::format("/proc/{}/environ", process->pid)),
                                  *read_file(arena_ / "endpoint")}) {
    EXPECT_EQ(text.find(keys_.server_secret), std::string::npos);
    EXPECT_EQ(text.find(keys_.client_secret), std::string::npos);
  }
}

TEST_F(RemoteTest, IsFoundAgainBySupervisorsWhenItIsKilledAndStartedAnew) {
  begin();
  for (int round = 0; round < 3; ++round) {
    kill_service();
    start();
    expect_all_is_well();
  }
}

TEST_F(RemoteTest, OpensItsTcpSideWhenKeysAreMadeLater) {
  start();
  ASSERT_TRUE(say_hello(1));
  EXPECT_EQ(status().endpoint(), "");
  make_keys();
  ServiceClient supervisor({arena_, std::optional(client_half(keys_))}, kJobId);
  EXPECT_TRUE(ask(supervisor));
}

TEST_F(RemoteTest, TakesTheKeysThatWereMadeAnewAndNoOthersAnyMore) {
  begin();
  expect_all_is_well();
  std::filesystem::remove(launch_.job_directory / "service.keys");
  make_keys();
  ServiceClient later({arena_, std::optional(client_half(keys_))}, kJobId);
  EXPECT_TRUE(eventually([&] { return ask(later, 2s).has_value(); }));
  EXPECT_FALSE(ask(*supervisor_, 500ms));
  EXPECT_EQ(status().endpoint() + "\n", *read_file(arena_ / "endpoint"));
}

TEST_F(RemoteTest, GivesNothingToWhoHasNotTheKeyAndCountsHim) {
  begin();
  const TemporaryFolder other;
  const ServiceKeys foreign = *make_service_keys(other.path() / "keys");
  // Knows the service's public key, which is no secret, but has a pair of its own.
  ServiceKeys wrong_client = client_half(keys_);
  wrong_client.client_public = foreign.client_public;
  wrong_client.client_secret = foreign.client_secret;
  ServiceClient denied(ServiceAddress::elsewhere(endpoint_, wrong_client), kJobId);
  EXPECT_EQ(ask(denied).error().code, Code::kInvalid);
  // Of another job altogether.
  ServiceClient lost(ServiceAddress::elsewhere(endpoint_, client_half(foreign)), kJobId);
  EXPECT_EQ(ask(lost, 500ms).error().code, Code::kRetry);
  expect_all_is_well();
  EXPECT_TRUE(eventually([&] {
    const auto reply = status();
    return reply.refused().count("key") > 0 && reply.refused().count("stranger") > 0;
  }));
  EXPECT_EQ(status().refused_messages(), 0) << "nothing of theirs was a message";
}

// Each lost connection is told by libzmq's thread, which is never to wait for who listens.
TEST_F(RemoteTest, AClientWhoseConnectionIsLostAgainAndAgainIsAnsweredInTheEnd) {
  make_keys();
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listener.get(), name, bytes), 0);
  ASSERT_EQ(::listen(listener.get(), 64), 0);
  ASSERT_EQ(::getsockname(listener.get(), name, &bytes), 0);
  const int at = ntohs(address.sin_port);
  std::atomic<int> answered{0};
  std::vector<std::jthread> askers;
  constexpr int kAskers = 8;
  for (int i = 0; i < kAskers; ++i) {
    askers.emplace_back([&] {
      ServiceClient client(
          ServiceAddress::elsewhere(fmt::format("tcp://127.0.0.1:{}", at), client_half(keys_)),
          kJobId);
      if (ask(client)) ++answered;
    });
  }
  int lost = 0;
  for (const Time until = now() + 4s; now() < until;) {
    pollfd one{listener.get(), POLLIN, 0};
    ::poll(&one, 1, 10);
    const Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) continue;
    ++lost;
    const linger at_once{1, 0};  // leaves nothing behind on the port
    ::setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  EXPECT_GT(lost, 50);
  listener.reset();
  ServiceSockets sockets;
  const Status listening =
      sockets.listen_remotely(fmt::format("127.0.0.1 {}-{}", at, at + 7), server_half(keys_));
  ASSERT_TRUE(listening) << listening.error().message;
  ASSERT_TRUE(sockets.endpoint().ends_with(fmt::format(":{}", at))) << sockets.endpoint();
  service::Reply reply;
  reply.mutable_status();
  for (const Time late = now() + kPatience; answered < kAskers && now() < late;) {
    ASSERT_TRUE(sockets.wait({}, 20ms));
    sockets.look_at_strangers();
    while (const auto message = sockets.next())
      sockets.send(message->peer, reply.SerializeAsString());
  }
  EXPECT_EQ(answered, kAskers);
}

TEST_F(RemoteTest, DoesNotSpeakWithoutCurve) {
  begin();
  zmq::context_t context;
  zmq::socket_t plain(context, zmq::socket_type::req);
  plain.set(zmq::sockopt::linger, 0);
  plain.set(zmq::sockopt::rcvtimeo, 500);
  plain.connect(endpoint_);
  service::Request request;
  request.set_protocol(kProtocol);
  request.set_job_id(kJobId);
  request.mutable_status();
  plain.send(zmq::buffer(request.SerializeAsString()), zmq::send_flags::dontwait);
  zmq::message_t answer;
  EXPECT_FALSE(plain.recv(answer));
  expect_all_is_well();
}

// Hundreds of connections that say nothing, or anything: none lasts, none costs.
TEST_F(RemoteTest, GoesOnWhileHundredsOfStrangersHangOnAndTalkNonsense) {
  begin();
  expect_all_is_well();
  const auto memory_before = memory_kib();
  std::mt19937_64 random(7);
  std::vector<Fd> strangers;
  for (int i = 0; i < 400; ++i) {
    strangers.push_back(connect_raw());
    if (i % 3 == 0) continue;
    std::string bytes(random() % 2000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    // Some as a peer of ZeroMQ begins, so that they come further.
    if (i % 3 == 1) bytes = std::string("\xFF\0\0\0\0\0\0\0\x01\x7F\x03\x01", 12) + "CURVE" + bytes;
    pollfd ready{strangers.back().get(), POLLOUT, 0};
    if (::poll(&ready, 1, 0) == 1)
      (void)::send(strangers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (i % 50 == 0) expect_all_is_well();
  }
  expect_all_is_well();
  EXPECT_LE(open_files(), static_cast<std::ptrdiff_t>(kMaxConnections) + 100);
  EXPECT_LT(memory_kib() - memory_before, 64 << 10);
  // Each is ended, the silent ones too, by the service.
  EXPECT_TRUE(eventually([&] {
    std::erase_if(strangers, [](const Fd& fd) { return is_closed_by_peer(fd.get()); });
    return strangers.empty();
  }));
  expect_all_is_well();
  EXPECT_TRUE(eventually([&] { return open_files() < 60; }));
  ServiceClient later({arena_, std::optional(client_half(keys_))}, kJobId);
  EXPECT_TRUE(ask(later));
  EXPECT_GT(status().refused().at("stranger"), 0);
}

// What the supervisor sends, recorded on the wire and sent again, is worth nothing.
TEST_F(RemoteTest, TakesNoReplayedBytes) {
  begin();
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  std::string recorded;
  std::thread wire([&] {
    const Fd client(::accept(listener.get(), nullptr, nullptr));
    const Fd server = connect_raw();
    for (bool open = true; open;) {
      pollfd fds[] = {{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
      ::poll(fds, 2, -1);
      for (int from = 0; from < 2; ++from) {
        if (fds[from].revents == 0) continue;
        char block[4096];
        const ssize_t got = ::recv(fds[from].fd, block, sizeof block, 0);
        open = open && got > 0;
        if (got <= 0) continue;
        if (from == 0) recorded.append(block, static_cast<std::size_t>(got));
        (void)::send(fds[1 - from].fd, block, static_cast<std::size_t>(got), MSG_NOSIGNAL);
      }
    }
  });
  {
    ServiceClient through(
        ServiceAddress::elsewhere(fmt::format("tcp://127.0.0.1:{}", ntohs(address.sin_port)),
                                  client_half(keys_)),
        kJobId);
    service::Request request;
    request.mutable_ask()->set_drain(true);
    ASSERT_TRUE(through.call(request, now() + kPatience));
  }
  wire.join();
  ASSERT_NE(mapped_->requests().load() & kRequestDrain, 0u);
  mapped_->requests().fetch_and(~std::uint64_t{kRequestDrain});
  ASSERT_GT(recorded.size(), 300u);
  const Fd replay = connect_raw();
  pollfd ready{replay.get(), POLLOUT, 0};
  ASSERT_EQ(::poll(&ready, 1, 1000), 1);
  ASSERT_GT(::send(replay.get(), recorded.data(), recorded.size(), MSG_NOSIGNAL), 0);
  EXPECT_TRUE(eventually([&] { return is_closed_by_peer(replay.get()); }));
  EXPECT_EQ(mapped_->requests().load() & kRequestDrain, 0u);
  expect_all_is_well();
}

// With the key a message is still only a message.
TEST_F(RemoteTest, RefusesAndCountsWhatIsNotARequestOnBothSockets) {
  begin();
  zmq::context_t context;
  std::int64_t refused = 0;
  for (const std::string& where : {endpoint_, "ipc://" + (arena_ / "service.sock").string()}) {
    zmq::socket_t socket(context, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::rcvtimeo, 10000);
    if (where == endpoint_) {
      socket.set(zmq::sockopt::curve_serverkey, keys_.server_public);
      socket.set(zmq::sockopt::curve_publickey, keys_.client_public);
      socket.set(zmq::sockopt::curve_secretkey, keys_.client_secret);
    }
    socket.connect(where);
    service::Request stale;
    stale.set_protocol(kProtocol);
    stale.set_job_id(kJobId);
    *stale.mutable_hello() = hello_of(1, layout_);
    ASSERT_TRUE(say(hello_of(2, layout_)));
    const std::string good = stale.SerializeAsString();
    for (const std::string& bad : {std::string(100, '\xFF'), good.substr(0, good.size() - 1), good,
                                   std::string((4 << 20) + 1, 'x')}) {
      socket.send(zmq::message_t(), zmq::send_flags::sndmore);
      socket.send(zmq::buffer(bad), zmq::send_flags::none);
      zmq::message_t frame;
      bool more = true;
      while (more && socket.recv(frame)) more = frame.more();
      service::Reply reply;
      ASSERT_TRUE(reply.ParseFromArray(frame.data(), static_cast<int>(frame.size())));
      EXPECT_TRUE(reply.has_error());
      EXPECT_EQ(status().refused_messages(), ++refused) << where;
    }
  }
  const auto reply = status();
  EXPECT_EQ(reply.refused().at("unreadable"), 4);
  EXPECT_EQ(reply.refused().at("oversized"), 2);
  EXPECT_EQ(reply.refused().at("stale"), 2);
  std::size_t lines = 0;
  for (std::size_t at = log().find("refused a message"); at != std::string::npos;
       at = log().find("refused a message", at + 1))
    ++lines;
  EXPECT_EQ(lines, 3u) << "a line a kind";
}

}  // namespace
}  // namespace surefoot
