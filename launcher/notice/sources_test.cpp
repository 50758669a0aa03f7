// The watcher itself, and what only one source of notices does, over real sockets, files and posts.
#include <gmock/gmock.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "common/http.h"
#include "launcher/notice/testing/watched.h"
#include "launcher/notice/token.h"

namespace surefoot::notice {
namespace {

using config::Recovery;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- the watcher itself ----

class Scripted final : public Source {
 public:
  using Look = std::function<std::vector<Finding>(Asker& asker)>;
  explicit Scripted(Look look) : look_(std::move(look)) {}
  std::vector<Finding> look(Asker& asker, const Moment& /*moment*/) override {
    return look_(asker);
  }
  [[nodiscard]] Duration interval() const override { return 5ms; }

 private:
  Look look_;
};

TEST(Watcher, ReadsNoMoreOfAnyAnswerThanTheLongestOne) {
  for (const int status : {200, 500}) {
    for (const std::size_t more : {0, 1}) {
      auto server = MockServer::start("127.0.0.1", 0, [&](const MockRequest&) {
        return MockReply{
            MockReply::How::kWhole, status, std::string(kMaxAnswerBytes + more, '7'), {}};
      });
      ASSERT_TRUE(server);
      Question question;
      question.url = fmt::format("http://127.0.0.1:{}/", (*server)->port());
      std::atomic<int> told = -1;
      Ear ear("scripted", std::make_unique<Scripted>([&](Asker& asker) -> std::vector<Finding> {
                told = asker.ask(question).status;
                return {};
              }));
      EXPECT_TRUE(eventually([&] { return told >= 0; }));
      EXPECT_EQ(told, more > 0 ? 0 : status);
    }
  }
}

// A failed termination may leave one behind for hours; another one months later is news.
TEST(Watcher, SaysOnceOfEachStaleEventThatItIsIgnored) {
  const auto log = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(1000);
  auto& sinks = spdlog::default_logger()->sinks();
  sinks.push_back(log);
  std::atomic<bool> stale = true;
  std::atomic<int> looks = 0;
  const auto look = [&](Asker&) -> std::vector<Finding> {
    ++looks;
    if (!stale) return {{"q", {}, {}}};
    return {{"q", {{Kind::kReclaim, "terminate", "", wall_in(-60s), {}}}, {}}};
  };
  const auto looks_more = [&] {
    const int from = looks;
    return eventually([&] { return looks >= from + 3; });
  };
  {
    Ear ear("scripted", std::make_unique<Scripted>(look));
    for (const bool is_there : {true, false, true}) {
      stale = is_there;
      EXPECT_TRUE(looks_more());
    }
  }
  sinks.pop_back();
  const auto lines = log->last_formatted();
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const std::string& line) {
                            return line.find("in the past") != std::string::npos;
                          }),
            2);
}

// ---- aws ----

TEST(Aws, RenewsATokenThatIsWorthNothingAnyMore) {
  Watched watched(Recovery::aws);
  ASSERT_TRUE(watched.sees_answers(6));
  EXPECT_EQ(watched.mock().tokens_given(), 1);
  watched.mock().expire_tokens();
  watched.mock().announce(wall_in(120s));
  EXPECT_TRUE(watched.hears_of_it());
  EXPECT_EQ(watched.mock().tokens_given(), 2);
}

TEST(Aws, AsksWithoutATokenWhereThereIsNone) {
  Watched watched(Recovery::aws, kQuick, {.tokens = false});
  watched.mock().announce(wall_in(120s));
  EXPECT_TRUE(watched.hears_of_it());
}

// A service with tokens, as long as it gives any.
class TokenService final : public Asker {
 public:
  Answer ask(const Question& question) override {
    if (question.method == "PUT") {
      ++asked_for;
      return gives ? Answer{200, "", fmt::format("token{}", asked_for), ""}
                   : Answer{503, "", "", ""};
    }
    sent = question.headers.empty() ? "" : question.headers.front().second;
    return {accepts ? 404 : 401, "", "", ""};
  }
  bool gives = true;
  bool accepts = true;
  int asked_for = 0;
  std::string sent;  // with the last question; empty: none
};

TEST(Token, ThatCannotBeRenewedIsGoodUntilItsLifeIsOver) {
  TokenAsker token("http://mock", {"ttl", "token"});
  TokenService service;
  const Time start = now();
  const auto sent_after = [&](Duration after) {
    (void)token.get(service, "/", start + after);
    return service.sent;
  };
  EXPECT_EQ(sent_after(0s), "token1");
  service.gives = false;
  EXPECT_EQ(sent_after(3h), "token1");
  EXPECT_EQ(sent_after(3h + 59s), "token1");
  EXPECT_EQ(service.asked_for, 2);
  EXPECT_EQ(sent_after(3h + 1min), "token1");
  EXPECT_EQ(service.asked_for, 3);
  EXPECT_EQ(sent_after(6h), "");
  service.gives = true;
  EXPECT_EQ(sent_after(6h + 1min), "token5");
}

TEST(Token, ThatIsRefusedIsNotSentAgain) {
  TokenAsker token("http://mock", {"ttl", "token"});
  TokenService service;
  const Time start = now();
  (void)token.get(service, "/", start);
  service.gives = service.accepts = false;
  (void)token.get(service, "/", start + 1s);
  service.accepts = true;
  (void)token.get(service, "/", start + 2s);
  EXPECT_EQ(service.sent, "");
}

TEST(Aws, ARaisedRiskAsksForACheckpoint) {
  Watched watched(Recovery::aws);
  watched.mock().set_aws_rebalance(R"({"noticeTime": "2020-10-26T14:14:14Z"})");
  EXPECT_TRUE(eventually([&] { return watched.look().checkpoint; }));
  EXPECT_THAT(watched.look().warnings, ElementsAre(HasSubstr("may be taken soon")));
  EXPECT_FALSE(watched.look().leave);
}

TEST(Aws, AMaintenanceThatIsFarAwayIsAWarning) {
  Watched watched(Recovery::aws);
  watched.mock().set_aws_maintenance(
      R"([{"NotBefore": "21 Jan 2199 09:00:43 GMT", "Code": "system-reboot", "EventId": "instance-event-0d5", "State": "active"}])");
  EXPECT_TRUE(eventually([&] { return watched.look().checkpoint; }));
  EXPECT_THAT(watched.look().warnings, ElementsAre(HasSubstr("instance-event-0d5")));
  EXPECT_FALSE(watched.look().leave);
  watched.mock().set_aws_maintenance("");
  EXPECT_TRUE(eventually([&] { return watched.look().warnings.empty(); }));
}

// ---- gcp ----

TEST(Gcp, TerminationForMaintenanceMakesTheMachineGoAndMigrationDoesNot) {
  Watched watched(Recovery::gcp);
  watched.mock().set_gcp_maintenance("MIGRATE_ON_HOST_MAINTENANCE");
  EXPECT_TRUE(eventually([&] { return watched.look().checkpoint; }));
  EXPECT_FALSE(watched.look().leave);
  watched.mock().set_gcp_maintenance("TERMINATE_ON_HOST_MAINTENANCE");
  EXPECT_TRUE(watched.hears_of_it());
}

// ---- azure ----

TEST(Azure, IsApprovedOnceWhenTheStateIsSafe) {
  Watched watched(Recovery::azure);
  watched.mock().announce(wall_in(120s));
  ASSERT_TRUE(watched.hears_of_it());
  ASSERT_TRUE(watched.sees_answers(5));
  EXPECT_THAT(watched.mock().approved(), IsEmpty());
  const std::string id = watched.look(/*safe=*/true).leave->id;
  ASSERT_TRUE(eventually([&] { return !watched.mock().approved().empty(); }));
  ASSERT_TRUE(watched.sees_answers(5));
  EXPECT_THAT(watched.mock().approved(), ElementsAre(id));
}

TEST(Azure, TakesEventsOfOtherMachinesForNothing) {
  Watched watched(Recovery::azure, kQuick, {.machine = "trainer_3"}, "trainer_2");
  ASSERT_TRUE(watched.sees_answers(3)) << "until it has heard its name";
  watched.mock().set_azure_events(
      R"({"EventId": "a", "EventType": "Preempt", "Resources": ["trainer_2"], "EventStatus": "Started", "NotBefore": ""})");
  ASSERT_TRUE(watched.sees_answers(10));
  EXPECT_FALSE(watched.look().leave);
  watched.mock().set_azure_events(
      R"({"EventId": "b", "EventType": "Preempt", "Resources": ["trainer_3"], "EventStatus": "Started", "NotBefore": ""})");
  EXPECT_TRUE(watched.hears_of_it());
}

class Recorder final : public Asker {
 public:
  Answer ask(const Question& question) override {
    questions.push_back(question);
    if (!is_name(question)) return {200, "", R"({"Events": []})", ""};
    return knows_name ? Answer{200, "", "me", ""} : Answer{0, "none within 2.0 s", "", ""};
  }
  static bool is_name(const Question& question) { return question.url.ends_with("text"); }
  bool knows_name = true;
  std::vector<Question> questions;
};

TEST(Azure, IsGivenTwoMinutesForItsFirstAnswer) {
  const auto source = make_azure({"http://mock", kLead, "", "me"});
  Recorder recorder;
  for (int i = 0; i < 2; ++i) (void)source->look(recorder, {now(), {}});
  ASSERT_EQ(recorder.questions.size(), 3u);
  EXPECT_GE(recorder.questions[0].patience, 120s);
  EXPECT_LE(recorder.questions[1].patience, 2s);
  EXPECT_LE(recorder.questions[2].patience, 2s);
}

// A preemption leaves 30 s: the question for the name may hang, and must not be in the way.
TEST(Azure, IsAskedForTheNameAfterTheEventsAndOnceAMinuteUntilItIsKnown) {
  const auto source = make_azure({"http://mock", kLead, "", "host"});
  Recorder recorder;
  recorder.knows_name = false;
  const Time start = now();
  std::vector<int> asked;
  for (int second = 0; second <= 180; ++second) {
    if (second == 90) recorder.knows_name = true;
    recorder.questions.clear();
    (void)source->look(recorder, {start + second * 1s, {}});
    EXPECT_FALSE(Recorder::is_name(recorder.questions.front()));
    if (Recorder::is_name(recorder.questions.back())) asked.push_back(second);
  }
  EXPECT_THAT(asked, ElementsAre(0, 60, 120));
}

// ---- the file, the POST ----

class Folder {
 public:
  Folder() {
    std::string form = (std::filesystem::temp_directory_path() / "surefoot-notice-XXXXXX").string();
    SUREFOOT_CHECK(::mkdtemp(form.data()) != nullptr);
    path_ = form;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::filesystem::path operator/(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

config::Recovery recovery_with(std::initializer_list<SourceKind> kinds) {
  Recovery recovery;
  recovery.set_notice_lead(45000);
  recovery.set_notice_listen("127.0.0.1:0");
  for (const SourceKind kind : kinds) recovery.add_notices(kind);
  return recovery;
}

TEST(File, MakesTheMachineGoWhenItAppears) {
  for (const std::string content : {"", "120\n", "nonsense"}) {
    const Folder folder;
    Recovery recovery = recovery_with({Recovery::file});
    recovery.set_notice_file((folder / "notice").string());
    auto watchers = Watchers::start(recovery, "host");
    ASSERT_TRUE(watchers);
    EXPECT_FALSE((*watchers)->look(false).leave);
    std::ofstream(folder / "new") << content;
    std::filesystem::rename(folder / "new", folder / "notice");
    ASSERT_TRUE(eventually([&] { return (*watchers)->look(false).leave.has_value(); })) << content;
    const auto leave = (*watchers)->look(false).leave;
    EXPECT_EQ(leave->source, "file");
    EXPECT_EQ(leave->deadline > now() + 60s, content == "120\n");
  }
}

// A folder, or a pipe that nobody writes to.
TEST(File, CountsAlsoWhenItCannotBeRead) {
  for (const bool is_pipe : {false, true}) {
    const Folder folder;
    Recovery recovery = recovery_with({Recovery::file});
    recovery.set_notice_file((folder / "notice").string());
    const int made = is_pipe ? ::mkfifo((folder / "notice").c_str(), 0600)
                             : ::mkdir((folder / "notice").c_str(), 0700);
    ASSERT_EQ(made, 0);
    auto watchers = Watchers::start(recovery, "host");
    ASSERT_TRUE(watchers);
    EXPECT_TRUE(eventually([&] { return (*watchers)->look(false).leave.has_value(); })) << is_pipe;
  }
}

int post(int port, const std::string& method, const std::string& path, const std::string& body) {
  Http http({.ca_bundle = "", .direct = true});
  HttpRequest request;
  request.method = method;
  request.url = fmt::format("http://127.0.0.1:{}{}", port, path);
  request.body = std::as_bytes(std::span(body));
  request.deadline = now() + kPatience;
  return http.perform(std::move(request)).status;
}

class Post : public testing::Test {
 protected:
  void SetUp() override {
    auto started = Watchers::start(recovery_with({Recovery::http}), "host");
    ASSERT_TRUE(started);
    watchers_ = std::move(*started);
    ASSERT_TRUE(eventually([&] { return watchers_->post_port() > 0; }));
  }
  [[nodiscard]] int say(const std::string& body) const {
    return post(watchers_->post_port(), "POST", "/notice", body);
  }
  std::unique_ptr<Watchers> watchers_;
};

TEST_F(Post, MakesTheMachineGo) {
  EXPECT_EQ(say(""), 200);
  const auto first = watchers_->look(false).leave;
  ASSERT_TRUE(first);
  EXPECT_EQ(first->source, "http");
  EXPECT_LE(first->deadline, now() + 45s);
  EXPECT_EQ(say("120"), 200);
  EXPECT_EQ(watchers_->look(false).leave->deadline, first->deadline);
  EXPECT_EQ(say(R"({"seconds": 10})"), 200);
  const auto later = watchers_->look(false).leave;
  EXPECT_EQ(later->id, first->id);
  EXPECT_LE(later->deadline, now() + 10s);
}

TEST_F(Post, ThatIsNoneIsRefused) {
  EXPECT_EQ(say("soon"), 400);
  EXPECT_EQ(say("-1"), 400);
  EXPECT_EQ(say(std::string(100000, '7')), 413);
  EXPECT_EQ(post(watchers_->post_port(), "POST", "/other", ""), 404);
  EXPECT_EQ(post(watchers_->post_port(), "GET", "/notice", ""), 404);
  EXPECT_FALSE(watchers_->look(false).leave);
  EXPECT_EQ(say("10"), 200);
  EXPECT_TRUE(watchers_->look(false).leave);
}

TEST_F(Post, IsHeardWhileOthersConnectAndSayNothing) {
  std::vector<Fd> silent;
  for (int i = 0; i < 16; ++i) {
    const sockaddr_in name = loopback(watchers_->post_port());
    const Fd& socket = silent.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  }
  const Time start = now();
  EXPECT_EQ(say("60"), 200);
  EXPECT_LT(now() - start, 5s);
}

// Else each of two jobs on a machine would hear half of what is said to one.
TEST_F(Post, SharesItsPortWithNobody) {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ASSERT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on), 0);
  const sockaddr_in name = loopback(watchers_->post_port());
  EXPECT_NE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
}

TEST_F(Post, WaitsForItsAddress) {
  Recovery recovery = recovery_with({Recovery::http});
  recovery.set_notice_listen(fmt::format("127.0.0.1:{}", watchers_->post_port()));
  auto second = Watchers::start(recovery, "host");
  ASSERT_TRUE(second);
  watchers_.reset();
  EXPECT_TRUE(eventually([&] { return (*second)->post_port() > 0; }));
}

// ---- what the job file says ----

TEST(Addresses, AreTheCloudsOwnUnlessTheJobFileNamesOthers) {
  Recovery recovery;
  EXPECT_EQ(base_of(Recovery::aws, recovery).value(), "http://169.254.169.254");
  EXPECT_EQ(base_of(Recovery::alibaba, recovery).value(), "http://100.100.100.200");
  recovery.add_notice_endpoints("aws=http://127.0.0.1:8080/");
  EXPECT_EQ(base_of(Recovery::aws, recovery).value(), "http://127.0.0.1:8080");
  EXPECT_EQ(base_of(Recovery::gcp, recovery).value(), "http://169.254.169.254");
}

}  // namespace
}  // namespace surefoot::notice
