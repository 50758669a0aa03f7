// How machines are told of: what the core and the services know, as a report, as JSON, on a screen.
#include "launcher/fleet_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "launcher/requests.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
using supervisor::Standing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr Time kNow = Time{} + 1000s;

struct World {
  supervisor::Rules rules;
  supervisor::State state;
  std::vector<supervisor::Member> members;
  std::map<supervisor::NodeId, service::StatusReply> statuses;
  BusyTimes busy;

  World() {
    rules.fleet.alone = false;
    rules.fleet.workers_per_node = 2;
    rules.fleet.micro_batches = 24;
    state.doing = supervisor::Doing::kRunning;
    state.history.attempt = Attempt{3};
    state.history.attempt_open = true;
    state.history.finished_step = Step{40};
    for (int i = 0; i < 5; ++i) {
      supervisor::Node& node = state.fleet.emplace_back();
      node.host.name = fmt::format("host{}", i);
      node.tried = true;
    }
    for (const int used : {0, 2}) {
      state.fleet[used].standing = Standing::kReady;
      state.fleet[used].in_gang = true;
      members.push_back({used, 2});
      service::StatusReply& status = statuses[used];
      status.set_ready_step(41);
      status.set_stored_part_step(30);
      status.set_storing_step(-1);
      status.set_durable_step(used == 0 ? 30 : -1);
      status.set_durable_age_seconds(12);
      status.set_upload_bytes_per_second(2 << 20);
      status.set_arena_bytes(3 << 20);
      for (int local = 0; local < 2; ++local) {
        auto& rank = *status.add_ranks();
        rank.set_rank(used + local);
        rank.set_attempt(3);
        rank.set_alive(true);
        rank.set_step(42);
        rank.set_phase("reduction");
        rank.set_seconds_in_phase(0.5);
      }
    }
    state.fleet[1].why = "ssh: no route to host";
    state.fleet[1].due = kNow + 28s;
    state.fleet[3].why = "it has not answered for 5 s";
    state.fleet[3].lost = true;
    state.fleet[3].due = kNow + 4s;
    state.fleet[4].standing = Standing::kPreparing;
  }
  [[nodiscard]] FleetReport report() const {
    return fleet_report({rules, state, members,
                         [this](supervisor::NodeId node) {
                           const auto found = statuses.find(node);
                           return found == statuses.end() ? nullptr : &found->second;
                         },
                         busy, "front", kNow});
  }
  // Steps of 0.1 s, the rank `slow` of 0.25 s.
  void make_steps(int slow, int steps) {
    for (int step = 1; step <= steps; ++step) {
      for (auto& [node, status] : statuses) {
        for (auto& rank : *status.mutable_ranks()) {
          rank.set_step(step);
          rank.set_busy_seconds(rank.rank() == slow ? 0.25 : 0.1);
        }
        busy.learn(status, state.history.attempt);
      }
    }
  }
};

TEST(FleetReport, SaysHowEachMachineStands) {
  const FleetReport report = World().report();
  std::vector<std::string> standings;
  for (const NodeReport& node : report.nodes) standings.push_back(standing_text(report, node));
  EXPECT_THAT(standings,
              ElementsAre("in use, attempt 3, ranks 0-1",
                          "left out: ssh: no route to host; again in 28.0 s",
                          "in use, attempt 3, ranks 2-3",
                          "lost: it has not answered for 5 s; again in 4.00 s", "looked at"));
}

TEST(FleetReport, SaysWhichMachineGoesAndWhen) {
  World world;
  world.state.fleet[2].leaves = true;
  world.state.fleet[2].leaves_at = kNow + 28s;
  FleetReport report = world.report();
  EXPECT_EQ(standing_text(report, report.nodes[2]), "in use, attempt 3, ranks 2-3; goes in 28.0 s");
  world.state.fleet[2].leaves_at = kNow - 2s;
  report = world.report();
  EXPECT_THAT(standing_text(report, report.nodes[2]), HasSubstr("was to go 2.00 s ago"));
}

TEST(FleetReport, HasNoRanksOnceTheAttemptIsOverAndSaysWhatItWaitsFor) {
  World world;
  world.state.history.attempt_open = false;
  world.state.doing = supervisor::Doing::kAssembling;
  world.rules.fleet.min_nodes = 3;
  const FleetReport report = world.report();
  EXPECT_EQ(standing_text(report, report.nodes[0]), "ready");
  EXPECT_THAT(report.waits, HasSubstr("2 of at least 3 machines"));
  EXPECT_THAT(nodes_screen("job", report), HasSubstr("waits for"));
}

TEST(FleetReport, LeavesOutMachinesThatNobodyNamesAnyMore) {
  World world;
  world.state.fleet[1].listed = false;
  world.state.fleet[0].listed = false;  // still at work
  EXPECT_EQ(world.report().nodes.size(), 4u);
}

TEST(FleetReport, ShowsSnapshotsStoreAndRanksOfEachMachine) {
  World world;
  world.statuses[2].set_waiting_for("parts of others");
  const std::string screen = nodes_screen("job", world.report());
  EXPECT_THAT(screen, HasSubstr("job: 2 of 5 machines ready, attempt 3, step 40\n"));
  EXPECT_THAT(screen, HasSubstr("snapshot of step 41 in 3.0 MiB, part of step 30 stored, "
                                "2.0 MiB/s\n                checkpoint: step 30, 12.0 s old\n"));
  EXPECT_THAT(screen, HasSubstr("waits: parts of others\n"));
  EXPECT_THAT(screen, HasSubstr("rank 3: step 42, reduction for 0.50 s\n"));
  EXPECT_THAT(screen, HasSubstr("2 slots\n"));
}

TEST(FleetReport, ShowsWarningsThatAMachineMayGo) {
  World world;
  world.statuses[2].add_warnings("aws: this machine may be taken soon (r)");
  const FleetReport report = world.report();
  EXPECT_THAT(nodes_screen("job", report),
              HasSubstr("warning: aws: this machine may be taken soon (r)\n"));
  EXPECT_THAT(fleet_lines(report), ::testing::Contains(std::pair<std::string, std::string>(
                                       "", "warning: aws: this machine may be taken soon (r)")));
  EXPECT_THAT(to_json(report)["nodes"][2]["warnings"],
              ElementsAre("aws: this machine may be taken soon (r)"));
}

TEST(FleetReport, IsTheSameAfterItsJourneyAsJson) {
  World world;
  world.statuses[0].add_warnings("w");
  world.make_steps(3, 5);
  const FleetReport report = world.report();
  const nlohmann::json json = to_json(report);
  const auto back = fleet_of(nlohmann::json::parse(json.dump()));
  ASSERT_TRUE(back);
  EXPECT_EQ(to_json(*back), json);
  EXPECT_EQ(nodes_screen("job", *back), nodes_screen("job", report));
  EXPECT_TRUE(json["nodes"][1]["snapshot"].is_null());
  EXPECT_TRUE(json["nodes"][2]["checkpoint_age_seconds"].is_null());
  EXPECT_EQ(json["nodes"][0]["checkpoint"], 30);
  EXPECT_FALSE(fleet_of(nlohmann::json{{"nodes", "none"}}));
}

TEST(FleetReport, NamesARankThatIsSlowWithItsMachine) {
  World world;
  world.make_steps(3, 5);
  const FleetReport report = world.report();
  ASSERT_EQ(report.slow.size(), 1u);
  EXPECT_EQ(slow_text(report.slow[0]), "rank 3 on host2: 2.5 times the median");
  EXPECT_THAT(nodes_screen("job", report), HasSubstr("slow          rank 3 on host2"));
  EXPECT_THAT(fleet_lines(report), ::testing::Contains(std::pair<std::string, std::string>(
                                       "slow", slow_text(report.slow[0]))));
}

TEST(FleetReport, KnowsWithoutASupervisorWhatItsJournalKnows) {
  JournalView journal;
  journal.history.attempt = Attempt{2};
  journal.history.attempt_open = true;
  journal.history.gang = {"a", "b"};
  const FleetReport report = fleet_report(journal);
  EXPECT_FALSE(report.live);
  const std::string screen = nodes_screen("job", report);
  EXPECT_THAT(screen, HasSubstr("no supervisor runs; its journal knows 2 machines in attempt 2"));
  EXPECT_THAT(screen, HasSubstr("was in use by attempt 2"));
  EXPECT_THAT(screen, Not(HasSubstr("slot")));
}

TEST(SlowRanks, AreFarAboveTheMedianAndKeepOthersWaiting) {
  EXPECT_THAT(slow_ranks({{0, "a", 0.1}, {1, "a", 0.1}, {2, "b", 0.149}}, 24, 3), IsEmpty());
  EXPECT_THAT(slow_ranks({{0, "a", 0.1}, {1, "a", 0.1}, {2, "b", 0.151}}, 24, 3).size(), 1u);
  EXPECT_THAT(slow_ranks({{0, "a", 0.001}, {1, "a", 0.001}, {2, "b", 0.005}}, 24, 3), IsEmpty())
      << "nobody waits for so short a time";
  const auto slow = slow_ranks({{0, "a", 0.2}, {1, "a", 0.1}, {2, "b", 0.3}, {3, "b", 0.1}}, 24, 4);
  ASSERT_EQ(slow.size(), 2u);
  EXPECT_EQ(slow[0].rank, 2) << "the slowest first";
}

TEST(SlowRanks, OfTwoOneCanBeSlowAndOneAloneCannot) {
  EXPECT_EQ(slow_ranks({{0, "a", 0.1}, {1, "b", 0.2}}, 8, 2).size(), 1u);
  EXPECT_THAT(slow_ranks({{0, "a", 0.2}}, 8, 1), IsEmpty());
  EXPECT_THAT(slow_ranks({{0, "a", 0.2}, {1, "b", 0}}, 8, 2), IsEmpty()) << "one is not known";
}

// Three micro-batches over two ranks: one and two of them.
TEST(SlowRanks, HaveMoreTimeWhereTheyHaveMoreToDo) {
  EXPECT_THAT(slow_ranks({{0, "a", 0.1}, {1, "b", 0.2}}, 3, 2), IsEmpty());
  EXPECT_EQ(slow_ranks({{0, "a", 0.2}, {1, "b", 0.2}}, 3, 2).size(), 1u);
}

// Rank 3 has twice the work of the others; machine "c", with rank 2, has not answered.
TEST(SlowRanks, AreReckonedOverTheGangNotOverThoseThatHaveAnswered) {
  EXPECT_THAT(slow_ranks({{0, "a", 0.1}, {1, "b", 0.1}, {3, "d", 0.2}}, 5, 4), IsEmpty());
  EXPECT_THAT(slow_ranks({{0, "a", 0.1}, {7, "b", 0.3}}, 8, 2), IsEmpty()) << "of another gang";
}

TEST(BusyTimes, TakeEachStepOnceAndForgetAnEarlierAttempt) {
  BusyTimes busy;
  service::StatusReply status;
  auto& rank = *status.add_ranks();
  rank.set_attempt(1);
  rank.set_step(1);
  rank.set_busy_seconds(0.1);
  for (int i = 0; i < 10; ++i) busy.learn(status, Attempt{1});
  EXPECT_EQ(busy.typical(0), 0) << "one step is not enough";
  for (int step = 2; step <= 4; ++step) {
    rank.set_step(step);
    rank.set_busy_seconds(step == 3 ? 5.0 : 0.1);
    busy.learn(status, Attempt{1});
  }
  EXPECT_DOUBLE_EQ(busy.typical(0), 0.1) << "one odd step does not count";
  rank.set_attempt(2);
  busy.learn(status, Attempt{2});
  EXPECT_EQ(busy.typical(0), 0);
}

TEST(Requests, FindTheMachineAndItsTime) {
  const World world;
  const auto asked = [&](const nlohmann::json& request) {
    return notice_asked_for(request, world.rules, world.state.fleet, "front", kNow);
  };
  const auto notice = asked({{"node", "host2"}, {"seconds", 28}});
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice->node, 2);
  EXPECT_EQ(notice->leaves, kNow + 28s);
  EXPECT_EQ(asked({{"node", "host0"}})->leaves, std::nullopt);
  EXPECT_EQ(asked({{"node", "host0"}, {"seconds", -1e300}})->leaves, kNow);
  EXPECT_TRUE(asked({{"node", "host0"}, {"seconds", 1e300}}));
}

TEST(Requests, AreRefusedWithTheNamesThatThereAre) {
  World world;
  const auto unknown =
      notice_asked_for({{"node", "host9"}}, world.rules, world.state.fleet, "front", kNow);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::kInvalid);
  EXPECT_THAT(unknown.error().message, HasSubstr("host0, host1, host2, host3, host4"));
  EXPECT_FALSE(notice_asked_for({{"node", 7}}, world.rules, world.state.fleet, "front", kNow));
  for (const nlohmann::json& when :
       {nlohmann::json("28"), nlohmann::json(nullptr), nlohmann::json::array()}) {
    const auto notice = notice_asked_for({{"node", "host0"}, {"seconds", when}}, world.rules,
                                         world.state.fleet, "front", kNow);
    ASSERT_FALSE(notice) << "taken for: nobody knows when";
    EXPECT_EQ(notice.error().code, Code::kInvalid);
  }
  world.rules.fleet.alone = true;
  world.state.fleet.resize(1);
  world.state.fleet[0].host.name = "localhost";
  for (const char* name : {"front", "localhost"})
    EXPECT_TRUE(notice_asked_for({{"node", name}}, world.rules, world.state.fleet, "front", kNow));
}

}  // namespace
}  // namespace surefoot
