// Recorded fleets read, mapped onto hosts, and priced. All texts are made up.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tests/replay/plan.h"
#include "tests/replay/trace.h"

namespace surefoot::replay {
namespace {

using Changes = std::vector<Change>;

Trace parsed(const std::string& text, std::optional<double> unit = {}) {
  auto trace = parse_trace(text, unit);
  EXPECT_TRUE(trace) << (trace ? "" : trace.error().message);
  return trace ? *trace : Trace{};
}

Code refused(const std::string& text) {
  const auto trace = parse_trace(text);
  EXPECT_FALSE(trace) << text;
  return trace ? Code::kRetry : trace.error().code;
}

TEST(Trace, RowsOfOneMomentAreOneChange) {
  const Trace trace = parsed(
      "0,add,a\n0,add,b\n0,add,c\n60000,remove,a\n60000,remove,c\r\n\n60000,add,d\n"
      "90000,remove,d\n");
  EXPECT_EQ(trace.form, "events");
  EXPECT_EQ(trace.changes, (Changes{{0, 3, 0}, {60, 1, 2}, {90, 0, 1}}));
  EXPECT_EQ(trace.seconds, 90);
}

TEST(Trace, TicksNameTheirMachinesAndEndWithTheLastTick) {
  const Trace trace = parsed(R"([0, "add", {"nodes": ["n0", "n1"], "duration": 60000}]
[60000, "remove", {"nodes": ["n1"], "strategy": [4, 8]}]
[120000, "no-op", {"nodes": []}]
)");
  EXPECT_EQ(trace.form, "ticks");
  EXPECT_EQ(trace.changes, (Changes{{0, 2, 0}, {60, 0, 1}}));
  EXPECT_EQ(trace.seconds, 120);
}

TEST(Trace, CountsAreSecondsWithTwoRowsAChange) {
  const Trace trace = parsed("0,0\n100,0\n100,4\n130,4\n130,1\n200,1\n");
  EXPECT_EQ(trace.form, "counts");
  EXPECT_EQ(trace.changes, (Changes{{100, 4, 0}, {130, 0, 3}}));
  EXPECT_EQ(trace.seconds, 200);
}

TEST(Trace, CountsWithAFractionAreHours) {
  EXPECT_EQ(parsed("0.000,2\n0.5,2\n0.5,1\n").changes, (Changes{{0, 2, 0}, {1800, 0, 1}}));
}

TEST(Trace, CountsTooLateForSecondsAreMilliseconds) {
  EXPECT_EQ(parsed("0,2\n36000000,1\n").changes, (Changes{{0, 2, 0}, {36000, 0, 1}}));
}

TEST(Trace, TheUnitOfCountsCanBeSaid) {
  EXPECT_EQ(parsed("0,2\n2000,1\n", 1e-3).changes, (Changes{{0, 2, 0}, {2, 0, 1}}));
}

TEST(Trace, ACountThatNeverChangesIsAFleetThatNeverDoes) {
  EXPECT_EQ(parsed("0,8\n").changes, (Changes{{0, 8, 0}}));
}

TEST(Trace, MachinesThatWereStoppedWereNotTakenAway) {
  const Trace trace = parsed(
      "vm,lifetime_s,end_op,day\nx,100.5,preempted,Monday\ny,7,stop,Friday\nz,300,preempted,"
      "Monday\n");
  EXPECT_EQ(trace.form, "lifetimes");
  EXPECT_EQ(trace.lifetimes, (std::vector<Lifetime>{{100.5, true}, {7, false}, {300, true}}));
}

TEST(Trace, TextsOfNoFormAreRefused) {
  for (const char* text : {
           "",
           "\n\n",
           "hello\n",
           "0,add\n",
           "0,add,a\n0,add,a\n",       // twice
           "0,remove,a\n",             // never came
           "5,add,a\n4,add,b\n",       // back in time
           "0,add,a\n1,leave,a\n",     // no such word
           "-1,add,a\n",               //
           "0,1\n1,-1\n",              //
           "0,1\n1,1.5\n",             // half a machine
           "0,1\n1,99999999999999\n",  // more than a fleet
           "0,1\nnan,1\n",             //
           "0,1\n1,1,1\n",             //
           "[0, \"add\"]\n",           //
           "[0, \"add\", {\"nodes\": [1]}]\n",
           "[0, \"add\", {\"nodes\": [\"a\"]}]\n[1, \"remove\", {\"nodes\": \"a\"}]\n",
           "vm,lifetime_s\nx,1\n",             // how did it end?
           "lifetime_s,end_op\n",              // nobody
           "lifetime_s,end_op\nlong,stop\n",   //
           "lifetime_s,end_op\n1,stop,more\n"  //
       }) {
    EXPECT_EQ(refused(text), Code::kInvalid);
  }
}

TEST(Trace, AnErrorNamesItsLine) {
  EXPECT_NE(parse_trace("0,add,a\n\n1,leave,a\n").error().message.find("line 3"),
            std::string::npos);
}

TEST(Trace, APartBeginsWithTheMachinesThatAreThere) {
  const Trace trace = parsed("0,5\n100,3\n150,4\n200,1\n250,9\n300,9\n");
  const Trace part = part_of(trace, 120, 100);
  EXPECT_EQ(part.changes, (Changes{{0, 3, 0}, {30, 1, 0}, {80, 0, 3}}));
  EXPECT_EQ(part.seconds, 100);
  EXPECT_EQ(part_of(trace, 250, 1000).seconds, 50);
  EXPECT_EQ(part_of(trace, 250, 1000).changes, (Changes{{0, 9, 0}}));
}

TEST(Lifetimes, AreDrawnFromTheKaplanMeierEstimate) {
  // By hand: S(10) = 1 - 1/4; at 20 one is stopped; S(30) = 3/4 x (1 - 1/2) = 3/8; S(40) = 0.
  Trace trace;
  trace.lifetimes = {{30, true}, {10, true}, {20, false}, {40, true}};
  constexpr int kMachines = 20000;
  const Trace fleet = fleet_of_lifetimes(trace, kMachines, 50, 1000, 1);
  std::map<double, double> share;
  for (const Change& change : fleet.changes)
    share[change.at] = static_cast<double>(change.lost) / kMachines;
  EXPECT_NEAR(share[10], 1.0 / 4, 0.015);  // more than four standard deviations
  EXPECT_NEAR(share[30], 3.0 / 8, 0.015);
  EXPECT_NEAR(share[40], 3.0 / 8, 0.015);
  EXPECT_EQ(share.count(20), 0U);
}

TEST(Lifetimes, OneThatOutlivesTheRecordIsNotLost) {
  Trace trace;
  trace.lifetimes = {{10, true}, {20, false}};
  int lost = 0;
  for (const Change& change : fleet_of_lifetimes(trace, 10000, 1e6, 1e7, 1).changes)
    lost += change.lost;
  EXPECT_NEAR(lost, 5000, 300);
}

TEST(Lifetimes, ALostMachineIsReplacedAndTheSeedDecides) {
  Trace trace;
  trace.lifetimes = {{10, true}};
  EXPECT_EQ(fleet_of_lifetimes(trace, 2, 25, 5, 1).changes,
            (Changes{{0, 2, 0}, {10, 0, 2}, {15, 2, 0}}));
  trace.lifetimes = {{10, true}, {11, true}, {12, true}, {13, true}};
  EXPECT_EQ(fleet_of_lifetimes(trace, 3, 100, 5, 7).changes,
            fleet_of_lifetimes(trace, 3, 100, 5, 7).changes);
  EXPECT_NE(fleet_of_lifetimes(trace, 3, 100, 5, 7).changes,
            fleet_of_lifetimes(trace, 3, 100, 5, 8).changes);
}

// Hosts that are up after each action; a host is lost only when it is up and told only then.
std::vector<int> counts_of(const Plan& plan) {
  std::set<int> up(plan.at_start.begin(), plan.at_start.end());
  std::vector<int> counts = {static_cast<int>(up.size())};
  double last = 0;
  for (const Action& action : plan.actions) {
    EXPECT_GE(action.at, last);
    last = action.at;
    if (action.kind == Action::Kind::kReturn) {
      EXPECT_TRUE(up.insert(action.host).second);
    } else {
      EXPECT_EQ(up.count(action.host), 1U) << to_text(action);
    }
    if (action.kind == Action::Kind::kLoss) up.erase(action.host);
    if (action.kind != Action::Kind::kNotice) counts.push_back(static_cast<int>(up.size()));
  }
  return counts;
}

Plan planned(const Trace& trace, const PlanOptions& options) {
  auto plan = make_plan(trace, options);
  EXPECT_TRUE(plan) << (plan ? "" : plan.error().message);
  return plan ? *plan : Plan{};
}

TEST(Plan, HostsFollowTheFleetInProportionToItsPeak) {
  // 32 is the peak: 4 hosts from 28 on, 3 from 20, 2 from 12, 1 from one machine, none from none.
  const Trace trace =
      parsed("0,28\n10,27\n20,32\n30,19\n40,12\n50,11\n60,1\n70,0\n80,20\n100,20\n");
  const Plan plan = planned(trace, {4, 50, 3});
  EXPECT_EQ(counts_of(plan), (std::vector<int>{4, 3, 4, 3, 2, 1, 0, 1, 2, 3}));
  EXPECT_EQ(plan.compression, 2);
  EXPECT_EQ(plan.peak, 32);
  EXPECT_EQ(plan.machines_lost, 1 + 13 + 7 + 1 + 10 + 1);
  EXPECT_EQ(plan.bursts, 6);
  EXPECT_EQ(plan.hosts_lost, 5);
  EXPECT_EQ(plan.hosts_returned, 4);
  EXPECT_DOUBLE_EQ(plan.without_hosts, 5);
}

TEST(Plan, WhatGoesInOneBurstGoesInOne) {
  const Plan plan = planned(parsed("0,8\n100,2\n200,2\n"), {4, 20, 1});
  ASSERT_EQ(plan.hosts_lost, 3);
  for (const Action& action : plan.actions) {
    if (action.kind == Action::Kind::kLoss) {
      EXPECT_DOUBLE_EQ(action.at, 10);
    }
  }
}

TEST(Plan, TimeBeginsWithTheFirstMachine) {
  const Plan plan = planned(parsed("0,0\n1000,4\n1010,3\n1020,3\n"), {4, 10, 1});
  EXPECT_EQ(plan.compression, 2);
  EXPECT_EQ(plan.at_start.size(), 4U);
  ASSERT_FALSE(plan.actions.empty());
  EXPECT_DOUBLE_EQ(plan.actions.back().at, 5);
}

TEST(Plan, ATraceShorterThanTheReplayIsNotStretched) {
  EXPECT_EQ(planned(parsed("0,4\n5,3\n"), {4, 60, 1}).compression, 1);
}

TEST(Plan, AFleetWithoutHostsAtTheEndIsWithoutThemToTheEnd) {
  EXPECT_DOUBLE_EQ(planned(parsed("0,4\n50,0\n100,0\n"), {4, 10, 1}).without_hosts, 5);
}

TEST(Plan, NoticesAreDrawnFromThreeAndCompressed) {
  std::string text = "0,4\n";
  for (int i = 1; i <= 300; ++i) text += fmt::format("{},3\n{},4\n", 1000 * i, 1000 * i + 500);
  const Plan plan = planned(parsed(text), {4, 3005, 5});
  ASSERT_NEAR(plan.compression, 100, 0.01);
  std::map<int, int> drawn;  // in tenths of a second
  for (const Action& action : plan.actions) {
    if (action.kind == Action::Kind::kLoss)
      ++drawn[static_cast<int>(std::lround(10 * action.notice))];
  }
  ASSERT_EQ(drawn.size(), 3U);
  for (const int tenths : {0, 3, 12}) EXPECT_NEAR(drawn[tenths], 100, 35) << tenths;
  EXPECT_EQ(plan.noticed, 300 - drawn[0]);
}

TEST(Plan, ANoticeIsNotEarlierThanItsHost) {
  std::string text = "0,1\n";
  for (int i = 1; i <= 50; ++i) text += fmt::format("{},0\n{},1\n", 100 * i, 100 * i + 90);
  const Plan plan = planned(parsed(text), {1, 5090, 2});  // each host is there for ten seconds
  counts_of(plan);
  for (const Action& action : plan.actions) {
    if (action.at > 101) {
      EXPECT_LE(action.notice, 10.001);
    }
  }
}

TEST(Plan, TheSeedDecides) {
  const Trace trace = parsed("0,4\n10,2\n20,4\n30,1\n40,4\n100,4\n");
  EXPECT_EQ(planned(trace, {4, 50, 1}).actions, planned(trace, {4, 50, 1}).actions);
  EXPECT_NE(planned(trace, {4, 50, 1}).actions, planned(trace, {4, 50, 2}).actions);
}

TEST(Plan, ATraceWithoutMachinesIsRefused) {
  EXPECT_EQ(make_plan(parsed("0,0\n10,0\n"), {4, 50, 1}).error().code, Code::kInvalid);
}

TEST(Plan, AnInterruptionIsAMomentAtWhichTheHostsChange) {
  Plan plan = planned(parsed("0,4\n10,2\n20,4\n40,4\n"), {4, 40, 1});
  ASSERT_GE(plan.interruptions.size(), 2U);
  EXPECT_DOUBLE_EQ(plan.interruptions.back(), 20);
  EXPECT_TRUE(std::is_sorted(plan.interruptions.begin(), plan.interruptions.end()));
}

TEST(Prediction, IsInterruptionsTimesRecoveryPlusWaitingPlusStart) {
  Plan plan;
  plan.seconds = 100;
  plan.compression = 50;
  plan.without_hosts = 5;
  plan.interruptions = {10, 12, 50};
  const Cost cost = predict(plan, {4, 6, 120});
  EXPECT_DOUBLE_EQ(cost.first_order, (3 * 4 + 5 + 6) / 120.0);
  EXPECT_DOUBLE_EQ(cost.overlapping, (2 + 4 + 4 + 5 + 6) / 120.0);
  EXPECT_DOUBLE_EQ(cost.uncompressed, (3 * 4 + 5 * 50) / 5000.0);
}

TEST(Prediction, OfNothingIsNothing) {
  EXPECT_EQ(predict(Plan{}, Measured{}).first_order, 0);
}

}  // namespace
}  // namespace surefoot::replay
