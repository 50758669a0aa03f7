// What every watcher of a metadata service must do, over real sockets against a mock of the
// service, with all the answers that it must survive.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include "launcher/notice/testing/watched.h"

namespace surefoot::notice {
namespace {

using config::Recovery;
using testing::IsEmpty;

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

}  // namespace
}  // namespace surefoot::notice
