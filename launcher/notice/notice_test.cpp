// The pure layers: times, payloads, what is new, and what follows from it.
#include <gmock/gmock.h>

#include "checkpoint/deadline.h"
#include "launcher/notice/book.h"
#include "launcher/notice/desk.h"
#include "launcher/notice/payloads.h"
#include "launcher/notice/times.h"

namespace surefoot::notice {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr Duration kLead = 30s;
constexpr std::chrono::minutes kChina = 8h;
// 2017-09-18T08:20:00Z
const WallTime kWall{std::chrono::sys_days(std::chrono::year{2017} / 9 / 18) + 8h + 20min};
const Time kNow{1000h};

TEST(Times, AreReadInTheFormsOfAllClouds) {
  struct Case {
    std::string text;
    std::string expected;  // empty: it is no time
  };
  const Case cases[] = {
      {"2017-09-18T08:22:00Z", "2017-09-18T08:22:00Z"},
      {" 2017-09-18T08:22:00Z\n", "2017-09-18T08:22:00Z"},
      {"2017-09-18T08:22:00.987654321Z", "2017-09-18T08:22:00Z"},
      {"2017-09-18 08:22:00Z", "2017-09-18T08:22:00Z"},
      {"2017-09-18T16:22:00+08:00", "2017-09-18T08:22:00Z"},
      {"2017-09-18T03:52:00-0430", "2017-09-18T08:22:00Z"},
      {"Mon, 19 Sep 2016 18:29:47 GMT", "2016-09-19T18:29:47Z"},
      {"21 Jan 2019 09:00:43 GMT", "2019-01-21T09:00:43Z"},
      {"1 Jan 2019 09:00:43 UTC", "2019-01-01T09:00:43Z"},
      {"2016-02-29T23:59:60Z", "2016-03-01T00:00:00Z"},
      {"0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"},
      {"2018-08-18 12:05:33", ""},  // of which zone?
      {"2017-02-29T08:22:00Z", ""},
      {"2017-13-01T08:22:00Z", ""},
      {"2017-09-18T24:22:00Z", ""},
      {"2017-09-18T08:60:00Z", ""},
      {"2017-09-18T08:22:00", ""},
      {"2017-09-18T08:22:00Zx", ""},
      {"2017-09-18T08:22:00+99:00", ""},
      {"2017-09-18T08:22:00.Z", ""},
      {"2017-9-18T08:22:00Z", ""},
      {"-017-09-18T08:22:00Z", ""},
      {"Mon, 19 Foo 2016 18:29:47 GMT", ""},
      {"Mon 19 Sep 2016 18:29:47 GMT", ""},
      {"Mon, 32 Sep 2016 18:29:47 GMT", ""},
      {"1505722920", ""},
      {"<html>", ""},
      {"", ""},
  };
  for (const Case& c : cases) {
    const auto time = parse_time(c.text);
    EXPECT_EQ(time ? to_text(*time) : "", c.expected) << c.text;
  }
}

TEST(Times, WithoutAZoneAreOfTheOneThatIsGiven) {
  const auto time = parse_time("2018-08-18 12:05:33", kChina);
  ASSERT_TRUE(time);
  EXPECT_EQ(to_text(*time), "2018-08-18T04:05:33Z");
  EXPECT_EQ(to_text(*parse_time("2018-08-18T12:05:33Z", kChina)), "2018-08-18T12:05:33Z");
}

// "terminate at 2017-09-18T08:22:00Z", "!" for trouble.
std::vector<std::string> told(const Reading& reading) {
  std::vector<std::string> out;
  for (const Sighting& sighting : reading.sightings) {
    std::string line = sighting.what;
    if (!sighting.id.empty()) line += " " + sighting.id;
    if (sighting.at) line += " at " + to_text(*sighting.at);
    if (sighting.in) line += fmt::format(" in {:.0f}", seconds(*sighting.in));
    line += sighting.kind == Kind::kReclaim ? "" : sighting.kind == Kind::kRebalance ? " ?" : " *";
    out.push_back(line);
  }
  if (reading.trouble) out.push_back("!");
  return out;
}

const std::vector<std::string> kNonsense = {"",
                                            " ",
                                            "null",
                                            "7",
                                            "\"text\"",
                                            "[",
                                            "{",
                                            "{}",
                                            "[[]]",
                                            "<html><body>Sign in</body></html>",
                                            std::string("\0\xff\xfe", 3),
                                            "{\"action\": 1, \"time\": 2}",
                                            "{\"Events\": 7}",
                                            std::string(60000, '['),
                                            "{\"action\": \"terminate\"}",
                                            "{\"time\": \"2017-09-18T08:22:00Z\"}"};

TEST(Payloads, OfNonsenseAreTroubleAndNoEvents) {
  for (const std::string& body : kNonsense) {
    EXPECT_THAT(told(read_aws_action(body, kLead)), ElementsAre("!")) << body;
    EXPECT_THAT(told(read_aws_rebalance(body)), ElementsAre("!")) << body;
    EXPECT_THAT(told(read_gcp_preempted(body, kLead)), ElementsAre("!")) << body;
    EXPECT_THAT(told(read_gcp_maintenance(body, kLead)), ElementsAre("!")) << body;
    EXPECT_THAT(told(read_azure_events(body, "me", kLead)), ElementsAre("!")) << body;
    EXPECT_THAT(read_aws_maintenance(body).sightings, IsEmpty()) << body;
    EXPECT_THAT(read_termination_time(body).sightings, IsEmpty()) << body;
  }
}

TEST(Payloads, OfAwsNameTheActionAndItsTime) {
  EXPECT_THAT(
      told(read_aws_action(R"({"action": "terminate", "time": "2017-09-18T08:22:00Z"})", kLead)),
      ElementsAre("terminate at 2017-09-18T08:22:00Z"));
  EXPECT_THAT(told(read_aws_action(R"({"action": "stop", "time": "2017-09-18T08:22:00Z", "x": []})",
                                   kLead)),
              ElementsAre("stop at 2017-09-18T08:22:00Z"));
  EXPECT_THAT(
      told(read_aws_action(R"({"action": "hibernate", "time": "2017-09-18T08:22:00Z"})", kLead)),
      ElementsAre("hibernate at 2017-09-18T08:22:00Z in 30"));
  EXPECT_THAT(told(read_aws_action(R"({"action": "terminate", "time": "not-a-time"})", kLead)),
              ElementsAre("!"));
  EXPECT_THAT(told(read_aws_rebalance(R"({"noticeTime": "2020-10-26T14:14:14Z"})")),
              ElementsAre("rebalance ?"));
}

TEST(Payloads, OfAwsMaintenanceAreReadEntryByEntry) {
  EXPECT_THAT(told(read_aws_maintenance("[]")), IsEmpty());
  EXPECT_THAT(told(read_aws_maintenance(R"([
        {"NotBefore": "21 Jan 2019 09:00:43 GMT", "Code": "system-reboot", "EventId": "e-1", "State": "active"},
        {"NotBefore": "22 Jan 2019 09:00:43 GMT", "Code": "system-reboot", "EventId": "e-2", "State": "completed"},
        {"NotBefore": "22 Jan 2019 09:00:43 GMT", "Code": "system-reboot", "EventId": "e-3", "State": "canceled"},
        {"NotBefore": "soon", "Code": "instance-stop", "EventId": "e-4", "State": "active"}, 7,
        {"NotBefore": "2019-01-23T00:00:00Z", "Code": "instance-retirement"}])")),
              ElementsAre("system-reboot e-1 at 2019-01-21T09:00:43Z *",
                          "instance-retirement at 2019-01-23T00:00:00Z *", "!"));
}

TEST(Payloads, OfGcpNameNoTime) {
  EXPECT_THAT(told(read_gcp_preempted("FALSE", kLead)), IsEmpty());
  EXPECT_THAT(told(read_gcp_preempted("TRUE\n", kLead)), ElementsAre("preempted in 30"));
  EXPECT_THAT(told(read_gcp_preempted("TRUE or not", kLead)), ElementsAre("!"));
  EXPECT_THAT(told(read_gcp_maintenance("NONE", kLead)), IsEmpty());
  EXPECT_THAT(told(read_gcp_maintenance("MIGRATE_ON_HOST_MAINTENANCE", kLead)),
              ElementsAre("migration *"));
  EXPECT_THAT(told(read_gcp_maintenance("TERMINATE_ON_HOST_MAINTENANCE", kLead)),
              ElementsAre("termination in 30 *"));
}

std::string azure_event(const std::string& type, const std::string& machine,
                        const std::string& status, const std::string& before, int duration) {
  return fmt::format(R"({{"EventId": "id-{0}", "EventType": "{0}", "ResourceType": "VirtualMachine",
    "Resources": ["other", "{1}"], "EventStatus": "{2}", "NotBefore": "{3}", "DurationInSeconds": {4}}})",
                     type, machine, status, before, duration);
}

TEST(Payloads, OfAzureAreForThisMachineOnly) {
  const std::string time = "Mon, 19 Sep 2016 18:29:47 GMT";
  struct Case {
    std::string event;
    std::vector<std::string> expected;
  };
  const Case cases[] = {
      {azure_event("Preempt", "me", "Scheduled", time, -1),
       {"Preempt id-Preempt at 2016-09-19T18:29:47Z"}},
      {azure_event("Preempt", "ME", "Scheduled", time, -1),
       {"Preempt id-Preempt at 2016-09-19T18:29:47Z"}},
      {azure_event("Preempt", "me_2", "Scheduled", time, -1), {}},
      {azure_event("Terminate", "me", "Started", "", -1), {"Terminate id-Terminate in 30"}},
      {azure_event("Reboot", "me", "Scheduled", time, 60),
       {"Reboot id-Reboot at 2016-09-19T18:29:47Z *"}},
      {azure_event("Redeploy", "me", "Started", "", -1), {"Redeploy id-Redeploy in 30 *"}},
      {azure_event("Freeze", "me", "Scheduled", time, 8), {}},
      {azure_event("Freeze", "me", "Scheduled", time, 9),
       {"Freeze id-Freeze at 2016-09-19T18:29:47Z *"}},
      {azure_event("Freeze", "me", "Scheduled", time, -1),
       {"Freeze id-Freeze at 2016-09-19T18:29:47Z *"}},
      {azure_event("Preempt", "me", "Scheduled", "", -1), {"!"}},
      {azure_event("Explode", "me", "Scheduled", time, -1), {"!"}},
      {R"({"EventType": "Preempt", "Resources": ["me"], "NotBefore": ""})", {"!"}},
      {R"({"EventId": "a", "EventType": "Preempt", "Resources": "me"})", {}},
      {"7", {}},
  };
  for (const Case& c : cases)
    EXPECT_EQ(told(read_azure_events(R"({"Events": [)" + c.event + "]}", "me", kLead)), c.expected)
        << c.event;
  EXPECT_THAT(told(read_azure_events(R"({"DocumentIncarnation": 1, "Events": []})", "me", kLead)),
              IsEmpty());
}

TEST(Payloads, OfATerminationTimeAreOfChinaWithoutAZone) {
  EXPECT_THAT(told(read_termination_time("2015-01-05T18:02:00Z")),
              ElementsAre("termination at 2015-01-05T18:02:00Z"));
  EXPECT_THAT(told(read_termination_time("2018-08-18 12:05:33\n")),
              ElementsAre("termination at 2018-08-18T04:05:33Z"));
  EXPECT_THAT(told(read_termination_time("")), IsEmpty());
  EXPECT_THAT(told(read_termination_time("no time")), ElementsAre("!"));
}

TEST(Payloads, OfAPostAreSeconds) {
  EXPECT_THAT(told(read_seconds("", kLead)), ElementsAre("notice in 30"));
  EXPECT_THAT(told(read_seconds("120\n", kLead)), ElementsAre("notice in 120"));
  EXPECT_THAT(told(read_seconds("0", kLead)), ElementsAre("notice in 0"));
  EXPECT_THAT(told(read_seconds(R"({"seconds": 60.4})", kLead)), ElementsAre("notice in 60"));
  for (const char* bad : {"-1", "1e9", "1e999", "soon", "{}", "[1]", R"({"seconds": "60"})", "30s"})
    EXPECT_THAT(told(read_seconds(bad, kLead)), ElementsAre("!")) << bad;
}

TEST(Payloads, OfTokensAndNamesAreWhatAHeaderMayHold) {
  EXPECT_EQ(read_token("AQAEAL-x_y==\n"), "AQAEAL-x_y==");
  EXPECT_EQ(read_token("a\r\nX-Evil: 1"), "");
  EXPECT_EQ(read_token("<html>"), "");
  EXPECT_EQ(read_token(std::string(5000, 'a')), "");
  EXPECT_EQ(read_word("trainer_3"), "trainer_3");
  EXPECT_EQ(read_word("<html>"), "");
  EXPECT_EQ(printable("a\x1b[0m\xff"), "a?[0m?");
  EXPECT_THAT(printable(std::string(1000, 'a')), SizeIs(120));
}

// ---- what is new ----

Sighting seen_at(std::chrono::milliseconds in, const std::string& id = "",
                 Kind kind = Kind::kReclaim) {
  return {kind, "terminate", id, kWall + in, {}};
}

class BookTest : public testing::Test {
 protected:
  // So long after kNow: "came 120", "earlier 60", "over"; the number: seconds from kNow.
  std::vector<std::string> take(Duration after, std::vector<Sighting> sightings,
                                bool trouble = false) {
    Finding finding{"q", std::move(sightings), {}};
    if (trouble) finding.trouble = Trouble{"t", "t"};
    const News news =
        book_.take(finding, kNow + after,
                   kWall + std::chrono::duration_cast<std::chrono::milliseconds>(after));
    std::vector<std::string> out;
    for (const Change& change : news.changes) {
      static constexpr std::array kNames = {"came", "earlier", "over"};
      std::string line = kNames.at(static_cast<std::size_t>(change.what));
      if (change.notice.deadline && change.what != Change::What::kOver)
        line += fmt::format(" {:.0f}", seconds(*change.notice.deadline - kNow));
      out.push_back(line);
      last_id_ = change.notice.id;
    }
    for (std::size_t i = 0; i < news.ignored.size(); ++i) out.emplace_back("ignored");
    return out;
  }
  Book book_{"aws", /*cancels=*/false};
  std::string last_id_;
};

TEST_F(BookTest, AnEventIsNewOnce) {
  EXPECT_THAT(take(0s, {}), IsEmpty());
  EXPECT_THAT(take(0s, {seen_at(120s)}), ElementsAre("came 120"));
  EXPECT_EQ(last_id_, "terminate at 2017-09-18T08:22:00Z");
  for (int i = 1; i < 200; ++i) EXPECT_THAT(take(i * 1s, {seen_at(120s)}), IsEmpty());
}

TEST_F(BookTest, NowPlusTwoMinutesAtEachQuestionIsOneEvent) {
  EXPECT_THAT(take(0s, {seen_at(120s)}), ElementsAre("came 120"));
  for (int i = 1; i < 1000; ++i) EXPECT_THAT(take(i * 1s, {seen_at(120s + i * 1s)}), IsEmpty());
}

TEST_F(BookTest, TheEarliestDeadlineCounts) {
  EXPECT_THAT(take(0s, {seen_at(120s)}), ElementsAre("came 120"));
  const std::string id = last_id_;
  EXPECT_THAT(take(1s, {seen_at(60s)}), ElementsAre("earlier 60"));
  EXPECT_EQ(last_id_, id);
  EXPECT_THAT(take(2s, {seen_at(59500ms)}), IsEmpty());
  EXPECT_THAT(take(3s, {seen_at(90s)}), IsEmpty());
  EXPECT_THAT(take(4s, {seen_at(2s)}), IsEmpty()) << "in the past";
}

TEST_F(BookTest, ADeadlineInThePastIsIgnored) {
  EXPECT_THAT(take(0s, {seen_at(-1s)}), ElementsAre("ignored"));
  EXPECT_THAT(take(1s, {seen_at(-24h * 365'000)}), ElementsAre("ignored"));
  EXPECT_THAT(take(2s, {seen_at(120s)}), ElementsAre("came 120"));
}

TEST_F(BookTest, AReclaimThatIsNotNamedAnyMoreStands) {
  EXPECT_THAT(take(0s, {seen_at(120s)}), ElementsAre("came 120"));
  EXPECT_THAT(take(1s, {}), IsEmpty());
  EXPECT_THAT(take(2s, {seen_at(122s)}), IsEmpty()) << "the same, before its deadline";
  EXPECT_THAT(take(3s, {}), IsEmpty());
  EXPECT_THAT(take(400s, {seen_at(500s)}), ElementsAre("came 500")) << "another one";
}

TEST_F(BookTest, WhatCanBeCalledOffIsOverWhenItIsNotNamed) {
  book_ = Book("azure", /*cancels=*/true);
  EXPECT_THAT(take(0s, {seen_at(120s, "a")}), ElementsAre("came 120"));
  EXPECT_EQ(last_id_, "a");
  EXPECT_THAT(take(1s, {}, /*trouble=*/true), IsEmpty());
  EXPECT_THAT(take(2s, {seen_at(200s, "b")}), testing::UnorderedElementsAre("came 200", "over"));
  EXPECT_THAT(take(3s, {seen_at(200s, "b")}), IsEmpty());
  EXPECT_THAT(take(4s, {seen_at(120s, "a"), seen_at(200s, "b")}), ElementsAre("came 120"));
}

TEST_F(BookTest, ARaisedRiskHasNoDeadlineAndComesOnceInTenMinutes) {
  const Sighting risk{Kind::kRebalance, "rebalance", "", {}, {}};
  EXPECT_THAT(take(0s, {risk}), ElementsAre("came"));
  const std::string id = last_id_;
  EXPECT_THAT(take(1s, {risk}), IsEmpty());
  EXPECT_THAT(take(2s, {}), ElementsAre("over"));
  EXPECT_THAT(take(3s, {risk}), ElementsAre("came"));
  EXPECT_EQ(last_id_, id);
  EXPECT_THAT(take(4s, {}), ElementsAre("over"));
  EXPECT_THAT(take(700s, {risk}), ElementsAre("came"));
  EXPECT_NE(last_id_, id);
}

TEST_F(BookTest, EventsWithoutEndAreNotAllRemembered) {
  std::vector<Sighting> many;
  for (int i = 0; i < 1000; ++i) many.push_back(seen_at(120s, std::to_string(i)));
  const auto news = take(0s, many);
  EXPECT_EQ(std::count(news.begin(), news.end(), "came 120"), std::ptrdiff_t{Book::kMaxEvents});
}

// ---- what follows ----

Notice notice(Kind kind, std::optional<Duration> in, const std::string& id) {
  return {kind, in ? std::optional(kNow + *in) : std::nullopt, "aws", id, "what"};
}

TEST(Desk, TheEarliestReclaimMakesTheMachineGo) {
  const std::vector<Notice> standing = {notice(Kind::kReclaim, 120s, "a"),
                                        notice(Kind::kReclaim, 60s, "b"),
                                        notice(Kind::kReclaim, 90s, "c")};
  const MachineNotices told = decide_notices(standing, kNow);
  ASSERT_TRUE(told.leave);
  EXPECT_EQ(told.leave->id, "b");
  EXPECT_EQ(told.leave->deadline, kNow + 60s);
  EXPECT_THAT(told.warnings, IsEmpty());
}

// Else the first notice that a machine has outlived would be the last one that it hears.
TEST(Desk, ADeadlineThatHasPassedMasksNoneThatIsToCome) {
  const std::vector<Notice> standing = {notice(Kind::kReclaim, 60s, "a"),
                                        notice(Kind::kReclaim, 300s, "b"),
                                        notice(Kind::kReclaim, 120s, "c")};
  EXPECT_EQ(decide_notices(standing, kNow + 60s).leave->id, "a");
  EXPECT_EQ(decide_notices(standing, kNow + 61s).leave->id, "c");
  EXPECT_EQ(decide_notices(standing, kNow + 121s).leave->id, "b");
  EXPECT_EQ(decide_notices(standing, kNow + 24h).leave->id, "b") << "and stays it";
}

TEST(Desk, AReclaimThatNamesNoTimeIsNotAsFarAwayForEver) {
  Desk desk;
  desk.take({Change::What::kCame, notice(Kind::kReclaim, std::nullopt, "a")}, kNow);
  EXPECT_EQ(desk.look(false, kNow + 10s).leave->deadline, kNow + kUnknownDeadline);
}

TEST(Desk, AReclaimThatComesEndsThoseThatWereOutlived) {
  Desk desk;
  Notice other = notice(Kind::kReclaim, 10s, "other");
  other.source = "file";
  desk.take({Change::What::kCame, notice(Kind::kReclaim, 10s, "old")}, kNow);
  desk.take({Change::What::kCame, notice(Kind::kReclaim, 11s, "late")}, kNow);
  desk.take({Change::What::kCame, other}, kNow);
  const Time later = kNow + 11s + kOutlived;
  desk.take({Change::What::kCame, notice(Kind::kRebalance, std::nullopt, "risk")}, later);
  (void)desk.look(/*safe=*/true, later);
  EXPECT_THAT(desk.safe_ids("aws"), ElementsAre("late", "old"));
  EXPECT_THAT(desk.safe_ids("file"), ElementsAre("other"));
  desk.take({Change::What::kCame, notice(Kind::kReclaim, 300s, "new")}, later);
  EXPECT_EQ(desk.look(/*safe=*/true, later).leave->id, "new");
  EXPECT_THAT(desk.safe_ids("aws"), ElementsAre("late", "new"));
  EXPECT_THAT(desk.safe_ids("file"), IsEmpty());
}

// As POSTs of "0" would be, over and over.
TEST(Desk, NoticesWithoutEndAreNotAllRemembered) {
  Desk desk;
  desk.take({Change::What::kCame, notice(Kind::kReclaim, 60s, "real")}, kNow);
  for (int i = 0; i < 1000; ++i) {
    const Notice passed = notice(Kind::kReclaim, i * 1ms, fmt::format("passed{}", i));
    desk.take({Change::What::kCame, passed}, kNow + i * 1ms + 1ns);
  }
  EXPECT_EQ(desk.look(/*safe=*/true, kNow + 2s).leave->id, "real");
  EXPECT_EQ(desk.safe_ids("aws").size(), Desk::kMaxStanding);
  EXPECT_THAT(desk.safe_ids("aws"), testing::Contains("passed999"));
  for (int i = 0; i < 1000; ++i) {
    const Notice far = notice(Kind::kReclaim, 1h, fmt::format("far{}", i));
    desk.take({Change::What::kCame, far}, kNow + 2s);
  }
  EXPECT_EQ(desk.look(/*safe=*/true, kNow + 2s).leave->id, "real");
  EXPECT_EQ(desk.safe_ids("aws").size(), Desk::kMaxStanding);
}

TEST(Desk, AMaintenanceMakesTheMachineGoWhenItIsNear) {
  const std::vector<Notice> standing = {notice(Kind::kMaintenance, 301s, "a")};
  MachineNotices told = decide_notices(standing, kNow);
  EXPECT_FALSE(told.leave);
  EXPECT_THAT(told.warnings, ElementsAre("aws: maintenance of this machine, what (a)"));
  EXPECT_EQ(decide_notices(standing, kNow - 60s).warnings, told.warnings) << "said once";
  told = decide_notices(standing, kNow + 1s);
  EXPECT_TRUE(told.leave);
  EXPECT_THAT(told.warnings, IsEmpty());
  EXPECT_FALSE(
      decide_notices(std::vector{notice(Kind::kMaintenance, std::nullopt, "a")}, kNow).leave);
}

TEST(Desk, ARaisedRiskAsksForOneCheckpointAndWarnsForAsLongAsItStands) {
  Desk desk;
  EXPECT_FALSE(desk.look(false, kNow).checkpoint);
  desk.take({Change::What::kCame, notice(Kind::kRebalance, std::nullopt, "r")}, kNow);
  MachineNotices told = desk.look(false, kNow);
  EXPECT_TRUE(told.checkpoint);
  EXPECT_FALSE(told.leave);
  EXPECT_THAT(told.warnings, ElementsAre("aws: this machine may be taken soon (r)"));
  told = desk.look(false, kNow);
  EXPECT_FALSE(told.checkpoint);
  EXPECT_THAT(told.warnings, SizeIs(1));
  desk.take({Change::What::kOver, notice(Kind::kRebalance, std::nullopt, "r")}, kNow);
  EXPECT_THAT(desk.look(false, kNow).warnings, IsEmpty());
  desk.take({Change::What::kCame, notice(Kind::kRebalance, std::nullopt, "r")}, kNow);
  EXPECT_FALSE(desk.look(false, kNow).checkpoint) << "it has been asked for";
}

TEST(Desk, TellsTheSourceWhoseNoticeItIsThatTheStateIsSafe) {
  Desk desk;
  desk.take({Change::What::kCame, notice(Kind::kReclaim, 60s, "a")}, kNow);
  Notice other = notice(Kind::kReclaim, 90s, "b");
  other.source = "azure";
  desk.take({Change::What::kCame, other}, kNow);
  desk.take({Change::What::kCame, notice(Kind::kMaintenance, 24h, "far")}, kNow);
  (void)desk.look(false, kNow);
  EXPECT_THAT(desk.safe_ids("aws"), IsEmpty());
  (void)desk.look(true, kNow);
  EXPECT_THAT(desk.safe_ids("aws"), ElementsAre("a"));
  EXPECT_THAT(desk.safe_ids("azure"), ElementsAre("b")) << "of any that make it go";
  desk.take({Change::What::kOver, notice(Kind::kReclaim, 60s, "a")}, kNow);
  (void)desk.look(true, kNow);
  EXPECT_THAT(desk.safe_ids("aws"), IsEmpty());
}

}  // namespace
}  // namespace surefoot::notice
