// What every watcher of a metadata service must do, over real sockets against a mock of the
// service, with all the answers that it must survive.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "common/http.h"
#include "common/log.h"
#include "launcher/notice/testing/mock_metadata.h"
#include "launcher/notice/token.h"
#include "launcher/notice/watchers.h"

namespace surefoot::notice {
namespace {

using namespace std::chrono_literals;
using config::Recovery;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Duration kPatience = 30s;  // far more than anything here takes
constexpr Duration kLead = 45s;
constexpr Pace kQuick{.longest_interval = 5ms, .longest_patience = 30s};
// Where a question must end by itself. Longer than any answer takes, and than no held one.
constexpr Pace kImpatient{.longest_interval = 5ms, .longest_patience = 200ms};

template <class Predicate>
bool eventually(const Predicate& predicate) {
  for (const Time deadline = now() + kPatience; now() < deadline; ::usleep(2000)) {
    if (predicate()) return true;
  }
  return predicate();
}

sockaddr_in loopback(int port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<std::uint16_t>(port));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return name;
}

WallTime wall_in(Duration in) {
  return std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now() + in);
}

// A proxy that nobody must use, for all tests: threads read the environment at any time.
class Proxy final : public testing::Environment {
 public:
  void SetUp() override {
    for (const char* variable : {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"})
      ::setenv(variable, "http://127.0.0.1:1", 1);
    for (const char* variable : {"no_proxy", "NO_PROXY"}) ::unsetenv(variable);
  }
};
const auto* const kProxy = testing::AddGlobalTestEnvironment(new Proxy);

std::string name_of(SourceKind kind) {
  return Recovery::NoticeSource_Name(kind);
}

std::unique_ptr<MockMetadata> started(MockMetadata::Options options) {
  auto mock = MockMetadata::start(std::move(options));
  SUREFOOT_CHECK(mock.has_value());
  return std::move(*mock);
}

// A watcher that has ended when it is gone, and what it has said.
class Ear {
 public:
  Ear(const std::string& name, std::unique_ptr<Source> source, Pace pace = kQuick)
      : watcher_(name, std::move(source), desk_, pace) {}
  Ear(SourceKind kind, const std::string& url, Pace pace = kQuick,
      const std::string& machine = "me")
      : Ear(name_of(kind), make_source(kind, {url, kLead, "", machine}), pace) {}
  ~Ear() { stop(); }
  Ear(const Ear&) = delete;
  Ear& operator=(const Ear&) = delete;
  void stop() { watcher_.stop(now() + kPatience); }
  MachineNotices look(bool safe = false) { return desk_->look(safe, now()); }
  bool hears_of_it() {
    return eventually([&] { return look().leave.has_value(); });
  }

 private:
  std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
  Watcher watcher_;
};

// A mock, and a watcher of one kind that looks at it.
class Watched {
 public:
  explicit Watched(SourceKind kind, Pace pace = kQuick, MockMetadata::Options options = {},
                   const std::string& machine = "me")
      : mock_(started(std::move(options))), ear_(kind, mock_->url(), pace, machine) {}
  MockMetadata& mock() { return *mock_; }
  MachineNotices look(bool safe = false) { return ear_.look(safe); }
  bool hears_of_it() { return ear_.hears_of_it(); }
  // So many answers more. A held question has to be let go first.
  bool sees_answers(int count) {
    const int from = mock_->questions();
    return eventually([&] { return mock_->questions() >= from + count; });
  }
  bool sees_spoiled(int count) {
    return eventually([&] { return mock_->spoiled() >= count; });
  }

 private:
  std::unique_ptr<MockMetadata> mock_;
  Ear ear_;
};

class Contract : public testing::TestWithParam<SourceKind> {
 protected:
  [[nodiscard]] static std::string cloud() { return Recovery::NoticeSource_Name(GetParam()); }
  // Deviations: gcp says that the machine goes, not when; only azure calls off.
  [[nodiscard]] static bool names_a_time() { return GetParam() != Recovery::gcp; }
  [[nodiscard]] static bool calls_off() { return GetParam() == Recovery::azure; }
  [[nodiscard]] static Duration expected(Duration in) { return names_a_time() ? in : kLead; }
};

TEST_P(Contract, SaysNothingWhileNothingIsPlanned) {
  Watched watched(GetParam());
  // The first of a held question's answers comes at once.
  ASSERT_TRUE(watched.sees_answers(3));
  const MachineNotices told = watched.look();
  EXPECT_FALSE(told.leave);
  EXPECT_FALSE(told.checkpoint);
  EXPECT_THAT(told.warnings, IsEmpty());
}

TEST_P(Contract, TellsOfANoticeWithItsDeadline) {
  Watched watched(GetParam());
  ASSERT_TRUE(watched.sees_answers(1));
  const Time before = now();
  watched.mock().announce(wall_in(120s));
  ASSERT_TRUE(watched.hears_of_it());
  const auto leave = watched.look().leave;
  EXPECT_EQ(leave->source, cloud());
  EXPECT_NE(leave->id, "");
  // The clouds' times are of whole seconds.
  EXPECT_GT(leave->deadline, before + expected(120s) - 2s);
  EXPECT_LE(leave->deadline, now() + expected(120s));
}

TEST_P(Contract, TellsOfANoticeThatWasThereBeforeIt) {
  const auto mock = started({});
  mock->announce(wall_in(120s));
  EXPECT_TRUE(Ear(GetParam(), mock->url()).hears_of_it());
}

TEST_P(Contract, TakesNowPlusTwoMinutesAtEachQuestionAsOneEvent) {
  Watched watched(GetParam(), kImpatient);
  watched.mock().announce_rolling(120s);
  ASSERT_TRUE(watched.hears_of_it());
  const auto first = watched.look().leave;
  ASSERT_TRUE(watched.sees_answers(20));
  const auto later = watched.look().leave;
  EXPECT_EQ(later->id, first->id);
  EXPECT_LE(later->deadline, first->deadline);
  EXPECT_GT(later->deadline, first->deadline - 3s);
}

TEST_P(Contract, TakesTheEarliestDeadline) {
  if (!names_a_time()) return;
  Watched watched(GetParam());
  watched.mock().announce(wall_in(120s));
  ASSERT_TRUE(watched.hears_of_it());
  const auto first = watched.look().leave;
  watched.mock().announce(wall_in(60s));
  EXPECT_TRUE(eventually([&] { return watched.look().leave->deadline < first->deadline - 50s; }));
  EXPECT_EQ(watched.look().leave->id, first->id);
  watched.mock().announce(wall_in(90s));
  ASSERT_TRUE(watched.sees_answers(10));
  EXPECT_LT(watched.look().leave->deadline, first->deadline - 50s);
}

TEST_P(Contract, IgnoresADeadlineInThePastAndTakesTheNextOne) {
  if (!names_a_time()) return;
  Watched watched(GetParam());
  watched.mock().announce(wall_in(-60s));
  ASSERT_TRUE(watched.sees_answers(10));
  EXPECT_FALSE(watched.look().leave);
  watched.mock().announce(wall_in(120s));
  EXPECT_TRUE(watched.hears_of_it());
}

TEST_P(Contract, AReclaimStandsUnlessTheCloudCallsOff) {
  Watched watched(GetParam(), kImpatient);
  watched.mock().announce(wall_in(120s));
  ASSERT_TRUE(watched.hears_of_it());
  watched.mock().call_off();
  if (calls_off()) {
    EXPECT_TRUE(eventually([&] { return !watched.look().leave; }));
  } else {
    ASSERT_TRUE(watched.sees_answers(10));
    EXPECT_TRUE(watched.look().leave);
  }
}

TEST_P(Contract, UsesNoProxyOfTheEnvironment) {
  ASSERT_STREQ(::getenv("http_proxy"), "http://127.0.0.1:1");
  Watched watched(GetParam());
  watched.mock().announce(wall_in(120s));
  EXPECT_TRUE(watched.hears_of_it());
}

TEST_P(Contract, FollowsNoRedirect) {
  auto elsewhere = MockMetadata::start({});
  ASSERT_TRUE(elsewhere);
  (*elsewhere)->announce(wall_in(120s));
  MockMetadata::Options options;
  options.redirect = (*elsewhere)->url();
  Watched watched(GetParam(), kQuick, options);
  watched.mock().spoil(Spoiled::kRedirected);
  ASSERT_TRUE(watched.sees_spoiled(10));
  EXPECT_EQ((*elsewhere)->questions(), 0);
  EXPECT_EQ((*elsewhere)->tokens_given(), 0);
  EXPECT_FALSE(watched.look().leave);
}

// A source that waits for each answer for as long as these tests do.
class Patient final : public Source {
 public:
  explicit Patient(std::unique_ptr<Source> source) : source_(std::move(source)) {}
  std::vector<Finding> look(Asker& asker, const Moment& moment) override {
    struct Stretch final : Asker {
      explicit Stretch(Asker& asker) : asker_(asker) {}
      Answer ask(const Question& question) override {
        Question patient = question;
        patient.patience = kPatience;
        return asker_.ask(patient);
      }
      Asker& asker_;
    } stretch(asker);
    return source_->look(stretch, moment);
  }
  [[nodiscard]] Duration interval() const override { return source_->interval(); }

 private:
  std::unique_ptr<Source> source_;
};

// Watchers waits for a second.
TEST_P(Contract, StopsWhileTheServiceHangs) {
  const auto mock = started({.spoiled = Spoiled::kHanging});
  Ear ear(cloud(),
          std::make_unique<Patient>(make_source(GetParam(), {mock->url(), kLead, "", "me"})));
  ASSERT_TRUE(eventually([&] { return mock->spoiled() >= 1; }));
  const Time start = now();
  ear.stop();
  EXPECT_LT(now() - start, 1s);
}

TEST_P(Contract, GoesOnWhenAQuestionIsNeverAnswered) {
  Watched watched(GetParam(), kImpatient);
  watched.mock().spoil(Spoiled::kHanging);
  ASSERT_TRUE(watched.sees_spoiled(4));
  watched.mock().announce(wall_in(120s));
  watched.mock().spoil(Spoiled::kNot);
  EXPECT_TRUE(watched.hears_of_it());
}

TEST_P(Contract, GoesOnWhenNobodyListens) {
  // Kept for as long as the test: else the port could become somebody else's.
  const Fd port(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ASSERT_EQ(::setsockopt(port.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
  sockaddr_in name = loopback(0);
  socklen_t size = sizeof name;
  auto* const generic = reinterpret_cast<sockaddr*>(&name);
  ASSERT_EQ(::bind(port.get(), generic, size), 0);
  ASSERT_EQ(::getsockname(port.get(), generic, &size), 0);
  const int number = ntohs(name.sin_port);
  Ear ear(GetParam(), fmt::format("http://127.0.0.1:{}", number));
  ::usleep(50'000);  // not waited for: so that it has probably been refused once
  auto mock = MockMetadata::start({.port = number});
  ASSERT_TRUE(mock) << mock.error().message;
  (*mock)->announce(wall_in(120s));
  EXPECT_TRUE(ear.hears_of_it());
}

const auto kClouds = testing::Values(Recovery::aws, Recovery::gcp, Recovery::azure,
                                     Recovery::alibaba, Recovery::tencent, Recovery::volcengine);
INSTANTIATE_TEST_SUITE_P(Clouds, Contract, kClouds,
                         [](const auto& param) { return name_of(param.param); });

struct Bad {
  Spoiled how;
  const char* name;
};
class BadAnswers : public testing::TestWithParam<std::tuple<SourceKind, Bad>> {};

TEST_P(BadAnswers, AreNoNoticeAndEndNothing) {
  const auto& [kind, bad] = GetParam();
  for (const bool from_the_beginning : {false, true}) {
    Watched watched(kind, kQuick, {.spoiled = from_the_beginning ? bad.how : Spoiled::kNot});
    ASSERT_TRUE(from_the_beginning || watched.sees_answers(1));
    watched.mock().spoil(bad.how);
    ASSERT_TRUE(watched.sees_spoiled(8));
    const MachineNotices told = watched.look();
    EXPECT_FALSE(told.leave);
    EXPECT_FALSE(told.checkpoint);
    EXPECT_THAT(told.warnings, IsEmpty());
    watched.mock().announce(wall_in(120s));
    watched.mock().spoil(Spoiled::kNot);
    EXPECT_TRUE(watched.hears_of_it()) << from_the_beginning;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Clouds, BadAnswers,
    testing::Combine(kClouds,
                     testing::Values(Bad{Spoiled::kUnauthorized, "Unauthorized"},
                                     Bad{Spoiled::kForbidden, "Forbidden"},
                                     Bad{Spoiled::kBroken, "Broken"}, Bad{Spoiled::kBusy, "Busy"},
                                     Bad{Spoiled::kRedirected, "Redirected"},
                                     Bad{Spoiled::kHtml, "Html"}, Bad{Spoiled::kEmpty, "Empty"},
                                     Bad{Spoiled::kHuge, "Huge"}, Bad{Spoiled::kCut, "Cut"},
                                     Bad{Spoiled::kSilent, "Silent"},
                                     Bad{Spoiled::kNoTime, "NoTime"})),
    [](const auto& param) {
      return name_of(std::get<0>(param.param)) + "_" + std::get<1>(param.param).name;
    });

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
