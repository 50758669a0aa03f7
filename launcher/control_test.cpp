// The socket between verbs and supervisor, with clients of every kind.
#include "launcher/control.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/file.h"

namespace surefoot {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using nlohmann::json;

class Control : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "surefoot-control-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    folder_ = root_ / std::string(120, 'd');  // longer than a socket's name may be
    fs::create_directories(folder_);
  }
  void TearDown() override {
    server_.reset();
    stop_loop();
    fs::remove_all(root_);
  }

  void open(Duration patience = 1s) {
    auto server = ControlServer::open(
        folder_, inbox_,
        [this](const json& request) {
          ++asked_;
          return answer_(request);
        },
        patience);
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }
  // Plays the driver's loop.
  void run_loop() {
    loop_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pollfd one{inbox_->event_fd(), POLLIN, 0};
        ::poll(&one, 1, 5);
        for (const Inbox::Item& item : inbox_->take()) item();
      }
    });
  }
  void stop_loop() {
    loop_.request_stop();
    if (loop_.joinable()) loop_.join();
  }
  Result<json> ask(const json& request) { return ask_supervisor(folder_, request, now() + 20s); }
  Fd connect() {
    Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const Fd folder(::open(folder_.c_str(), O_PATH | O_DIRECTORY));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    fmt::format_to_n(address.sun_path, sizeof address.sun_path - 1,
                     "/proc/self/fd/{}/supervisor.sock", folder.get());
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  [[nodiscard]] static bool is_cut_off(const Fd& fd) {
    pollfd one{fd.get(), POLLIN, 0};
    return ::poll(&one, 1, 0) != 0;
  }
  // Until the other side closes.
  static std::string rest_of(const Fd& fd) {
    std::string text;
    char block[4096];
    for (ssize_t got; (got = ::recv(fd.get(), block, sizeof block, 0)) > 0;)
      text.append(block, static_cast<std::size_t>(got));
    return text;
  }

  fs::path root_;
  fs::path folder_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::function<Result<json>(const json&)> answer_ = [](const json& request) {
    return json{{"asked", request}};
  };
  int asked_ = 0;
  std::unique_ptr<ControlServer> server_;
  std::jthread loop_;
};

TEST_F(Control, AnswersWhatIsAskedInAFolderWhosePathIsLongerThanASocketsName) {
  open();
  run_loop();
  const auto reply = ask({{"ask", "status"}});
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ((*reply)["asked"]["ask"], "status");
  struct stat info {};
  ASSERT_EQ(::stat((folder_ / "supervisor.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(Control, HandsOnTheCodeAndTheTextOfARefusal) {
  answer_ = [](const json&) { return error(Code::kInvalid, "there is no machine x"); };
  open();
  run_loop();
  const auto reply = ask({{"ask", "drain"}});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Code::kInvalid);
  EXPECT_EQ(reply.error().message, "there is no machine x");
}

TEST_F(Control, HandsOnAnAnswerOfManyPieces) {
  answer_ = [](const json&) { return json{{"text", std::string(3 << 20, 'x')}}; };
  open();
  run_loop();
  const auto reply = ask({{"ask", "status"}});
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ((*reply)["text"].get<std::string>().size(), 3u << 20);
}

TEST_F(Control, IsNotFoundWhereNobodyListens) {
  EXPECT_EQ(ask({{"ask", "status"}}).error().code, Code::kNotFound);
  open();
  server_.reset();
  EXPECT_EQ(ask({{"ask", "status"}}).error().code, Code::kNotFound);
  EXPECT_FALSE(fs::exists(folder_ / "supervisor.sock"));
  fs::remove_all(folder_);
  EXPECT_EQ(ask({{"ask", "status"}}).error().code, Code::kNotFound);
}

TEST_F(Control, ReplacesTheSocketOfASupervisorThatWasKilled) {
  open();
  const fs::path socket = folder_ / "supervisor.sock";
  fs::create_hard_link(socket, folder_ / "left");
  server_.reset();
  fs::rename(folder_ / "left", socket);
  EXPECT_EQ(ask({{"ask", "status"}}).error().code, Code::kNotFound);
  open();
  run_loop();
  EXPECT_TRUE(ask({{"ask", "status"}}));
}

TEST_F(Control, ServesOthersWhileManyClientsSayNothingAndCutsThoseOff) {
  open(5s);  // longer than the answer takes on a busy machine
  run_loop();
  std::vector<Fd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(connect());
  EXPECT_TRUE(ask({{"ask", "status"}}));
  for (const Fd& fd : silent)
    EXPECT_FALSE(is_cut_off(fd)) << "it was served while they said nothing";
  for (const Fd& fd : silent) EXPECT_EQ(rest_of(fd), "");
  EXPECT_EQ(asked_, 1) << "the loop hears of whole requests only";
}

TEST_F(Control, WaitsQuietlyWhileThereAreNoDescriptors) {
  open();
  run_loop();
  ASSERT_TRUE(ask({{"ask", "status"}}));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto processor_seconds = [] {
    timespec used{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
  };
  // All that it takes to knock is there before descriptors get short.
  const Fd other(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Fd folder(::open(folder_.c_str(), O_PATH | O_DIRECTORY));
  const rlimit none{3, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  fmt::format_to_n(address.sun_path, sizeof address.sun_path - 1,
                   "/proc/self/fd/{}/supervisor.sock", folder.get());
  EXPECT_EQ(::connect(other.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const double used = processor_seconds();
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(processor_seconds() - used, 0.2);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(::send(other.get(), "{}\n", 3, MSG_NOSIGNAL), 3);
  EXPECT_NE(rest_of(other).find("asked"), std::string::npos) << "its turn comes";
}

TEST_F(Control, IsNotFoundOnlyWhereNobodyListens) {
  open();
  run_loop();
  fs::remove(folder_ / "supervisor.sock");
  fs::create_symlink("supervisor.sock", folder_ / "supervisor.sock");  // to itself
  EXPECT_EQ(ask({{"ask", "status"}}).error().code, Code::kInvalid);
  if (::geteuid() == 0) return;  // to whom all is allowed
  server_.reset();
  open();
  fs::permissions(folder_ / "supervisor.sock", fs::perms::none);
  EXPECT_EQ(ask({{"ask", "status"}}).error().code, Code::kInvalid);
}

TEST_F(Control, TakesAnErrorOfAnyShape) {
  open();
  run_loop();
  for (const json& shape : {json("no"), json(7), json::array(), json{{"code", "x"}, {"message", 7}},
                            json{{"code", 1000}}}) {
    answer_ = [shape](const json&) { return json{{"error", shape}}; };
    const auto reply = ask({{"ask", "status"}});
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code, Code::kRetry) << shape;
    EXPECT_EQ(reply.error().message, "the supervisor refused");
  }
}

TEST_F(Control, ServesThirtyTwoAtOnceAndTheOthersWhenTheirTurnComes) {
  open(1h);
  run_loop();
  std::vector<Fd> silent;
  for (int i = 0; i < 31; ++i) silent.push_back(connect());
  EXPECT_TRUE(ask({{"ask", "status"}}));
  silent.push_back(connect());
  const auto late = ask_supervisor(folder_, {{"ask", "status"}}, now() + 300ms);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kRetry);
  silent.pop_back();
  const auto reply = ask({{"ask", "status"}});
  EXPECT_TRUE(reply) << reply.error().message;
}

TEST_F(Control, RefusesWhatIsNoRequestAndGoesOn) {
  open();
  run_loop();
  for (const std::string& text : {std::string("hello\n"), std::string("[1]\n"), std::string("{\n"),
                                  std::string(17 << 10, 'x')}) {
    const Fd fd = connect();
    ASSERT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    EXPECT_NE(rest_of(fd).find("not a request"), std::string::npos);
  }
  EXPECT_TRUE(ask({{"ask", "status"}}));
  EXPECT_EQ(asked_, 1);
}

TEST_F(Control, IsToBeTriedAgainWhenTheLoopDoesNotAnswerInTime) {
  open();
  const auto reply = ask_supervisor(folder_, {{"ask", "status"}}, now() + 50ms);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Code::kRetry);
}

TEST_F(Control, AnswersNobodyAfterItsEnd) {
  open();
  const Fd fd = connect();
  const std::string text = "{}\n";
  ASSERT_EQ(::send(fd.get(), text.data(), text.size(), 0), 3);
  pollfd one{inbox_->event_fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&one, 1, 20000), 1);
  server_.reset();
  for (const Inbox::Item& item : inbox_->take()) item();
  EXPECT_EQ(rest_of(fd), "");
}

}  // namespace
}  // namespace surefoot
