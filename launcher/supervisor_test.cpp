// The supervisor core against every sequence of events to a small depth, from every situation a job
// gets into, and its accounting.
#include "launcher/supervisor.h"

#include <gtest/gtest.h>

#include "launcher/accounting.h"

namespace surefoot::supervisor {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Time at(double s) {
  return Time(milliseconds(static_cast<std::int64_t>(s * 1000)));
}

Rules small_rules() {
  Rules rules;
  rules.max_steps = Step{2};
  rules.max_failures = 2;
  rules.hang_timeout = rules.startup_timeout = seconds(10);
  rules.injected_faults = 1;
  return rules;
}

Rules fleet_rules() {
  Rules rules = small_rules();
  rules.fleet.alone = false;
  rules.fleet.max_nodes = 2;
  return rules;
}

NodeFacts facts(std::string_view boot) {
  return {std::string(boot), "x", "t"};
}

// Of two machines, and one that is not known.
void add_machines(std::vector<Event>& events, Time now) {
  for (const NodeId node : {0, 1, 2}) {
    events.push_back({now, ServiceAnswered{Step{1}, Step{-1}, node, facts("p")}});
    events.push_back({now, ServiceLost{node}});
    events.push_back({now, ServiceStartFailed{"x", node}});
    events.push_back({now, NodeLost{node, "x"}});
    events.push_back({now, NoticeReceived{now + seconds(30), node}});
  }
  events.push_back({now, ServiceAnswered{Step{1}, Step{-1}, 1, facts("q")}});
  events.push_back({now, ServiceAnswered{Step{-1}, Step{-1}, 1, {"p", "y", "t"}}});
  events.push_back({now, HostsListed{{{"a", 0, false}}}});
  events.push_back({now, HostsListed{{{"a", 0, false}, {"b", 2, false}}}});
}

// Every kind of event, about the attempt in hand, the one before, and one that never was; at `now`.
std::vector<Event> alphabet(const Rules& rules, const State& state, Time now) {
  std::vector<Event> events;
  const auto add = [&](auto what) { events.push_back({now, std::move(what)}); };
  const Attempt current = state.history.attempt;
  for (const Attempt attempt : {current, Attempt{current.value - 1}, Attempt{current.value + 1}}) {
    add(GangEnded{attempt});
    add(GangExited{attempt, 1, 0, {0, "a", Step{1}, Phase::kUpdate, "x"}, now});
    add(StepFinished{attempt, Step{state.attempt_step.value + 1}, now});
  }
  add(GangExited{current, 0, 0, {}, now});
  add(GangExited{current, 65, 0, {}, now});
  add(GangExited{current, kExitInterrupted, 0, {}, now - seconds(100)});
  add(JobOpened{});
  add(ServiceAnswered{});
  add(ServiceLost{});
  add(ServiceStartFailed{"x"});
  add(GangLaunched{current});
  add(LaunchFailed{current, "x"});
  add(StageReached{current, Stage::kStepping, now});
  add(FaultFired{current});
  add(GangNotEnded{current, "x"});
  add(TracesCollected{current});
  add(Interrupted{});
  add(NoticeReceived{});
  add(CancelAsked{});
  add(JobFinished{});
  add(FinishFailed{"x"});
  add(FinishFailed{"x", true});
  add(ArenaFlushed{});
  add(ArenaFreed{});
  add(TimerFired{});
  if (!rules.fleet.alone) add_machines(events, now);
  if (const Time due = deadline(rules, state); due != Time::max())
    events.push_back({due, TimerFired{}});
  return events;
}

// What must hold of every decision, whatever came before.
class Walk {
 public:
  explicit Walk(const Rules& rules) : rules_(rules) {}

  void go(const State& state, int depth) {
    if (depth == 0 || testing::Test::HasFailure()) return;
    for (const Event& event : alphabet(rules_, state, state.now + milliseconds(100))) {
      Decision decision = decide(rules_, state, event);
      ++decisions_;
      check(state, event, decision);
      if (testing::Test::HasFailure()) {
        ADD_FAILURE() << "after " << name(event) << " while " << name(state.doing);
        return;
      }
      go(decision.next, depth - 1);
    }
  }
  [[nodiscard]] std::int64_t decisions() const { return decisions_; }

 private:
  void check(const State& before, const Event& event, const Decision& decision) {
    const State& after = decision.next;
    EXPECT_FALSE(decision.reason.empty());
    EXPECT_TRUE(after.doing == Doing::kStopped || after.doing == Doing::kNothing ||
                deadline(rules_, after) != Time::max())
        << name(after.doing);
    EXPECT_TRUE(decision.record || decision.effects.empty() ||
                std::holds_alternative<TimerFired>(event.what));
    if (before.doing == Doing::kStopped) {
      EXPECT_TRUE(decision.effects.empty() && after.doing == Doing::kStopped);
    }
    EXPECT_GE(after.history.attempt, before.history.attempt);
    EXPECT_GE(after.history.finished_step, before.history.finished_step);
    EXPECT_GE(after.history.failures_total, before.history.failures_total);
    EXPECT_LE(after.history.accounting.mark, after.now);
    int launches = 0;
    for (std::size_t i = 0; i < decision.effects.size(); ++i) {
      const Effect& effect = decision.effects[i];
      const bool ends = std::holds_alternative<Stop>(effect);
      EXPECT_EQ(ends, ends && i + 1 == decision.effects.size() && after.doing == Doing::kStopped);
      if (std::holds_alternative<FreeArena>(effect)) {
        EXPECT_FALSE(after.history.attempt_open);
      }
      if (const auto* launch = std::get_if<LaunchGang>(&effect)) {
        ++launches;
        EXPECT_TRUE(!before.history.attempt_open || std::holds_alternative<GangEnded>(event.what));
        EXPECT_EQ(launch->attempt, before.history.attempt.next());
        EXPECT_TRUE(after.history.attempt_open && decision.record);
        EXPECT_EQ(launch->members, after.members);
        check_members(launch->members, after);
        EXPECT_EQ(after.stop.exit_code, -1);
      }
    }
    EXPECT_LE(launches, 1);
  }

  void check_members(const std::vector<Member>& members, const State& state) {
    const FleetRules& fleet = rules_.fleet;
    EXPECT_GE(static_cast<int>(members.size()), fleet.min_nodes);
    EXPECT_LE(static_cast<int>(members.size()), fleet.max_nodes);
    EXPECT_EQ(state.history.gang.size(), members.size());
    NodeId last = -1;
    for (const Member& member : members) {
      EXPECT_GT(member.node, last);
      last = member.node;
      const Node& node = state.fleet[static_cast<std::size_t>(member.node)];
      EXPECT_TRUE(node.up() && node.listed && !node.leaves && node.in_gang);
      EXPECT_EQ(node.stain, Attempt{});
    }
  }

  const Rules& rules_;
  std::int64_t decisions_ = 0;
};

State after(const Rules& rules, const std::vector<Event>& events) {
  State state;
  for (const Event& event : events) state = decide(rules, state, event).next;
  return state;
}

struct Situation {
  std::string_view name;
  std::vector<Event> events;
};

std::vector<Situation> situations() {
  const Event open{at(0), JobOpened{}};
  const Event up{at(0.1), ServiceAnswered{}};
  const Event stepping{at(1), StageReached{Attempt{1}, Stage::kStepping, at(1)}};
  const Event step{at(2), StepFinished{Attempt{1}, Step{1}, at(2)}};
  const Event last{at(3), StepFinished{Attempt{1}, Step{2}, at(3)}};
  const Event done{at(4), GangExited{Attempt{1}, 0, 0, {}, at(4)}};
  const Event crash{at(4), GangExited{Attempt{1}, 1, 0, {}, at(4)}};
  const Event ended{at(5), GangEnded{Attempt{1}}};
  History left;
  left.attempt = Attempt{3};
  left.attempt_open = true;
  left.finished_step = Step{1};
  const Event reopen{at(0), JobOpened{left, true}};
  return {{"nothing", {}},
          {"starting the service", {open}},
          {"launching", {open, up}},
          {"stepping", {open, up, stepping, step}},
          {"draining", {open, up, stepping, step, {at(3), Interrupted{}}}},
          {"hanging", {open, up, stepping, step, {at(30), TimerFired{}}}},
          {"ending", {open, up, stepping, step, crash}},
          {"backing off", {open, up, crash, ended}},
          {"finishing", {open, up, stepping, step, last, done, ended}},
          {"closing", {open, up, stepping, step, last, done, ended, {at(6), JobFinished{}}}},
          {"left by a dead supervisor", {reopen}},
          {"draining what a dead supervisor left", {reopen, up}},
          {"without service", {open, up, stepping, step, {at(3), ServiceLost{}}}}};
}

TEST(Supervisor, SurvivesEverySequenceOfThreeEventsFromEverySituation) {
  const Rules rules = small_rules();
  Walk walk(rules);
  for (const Situation& situation : situations()) {
    SCOPED_TRACE(situation.name);
    walk.go(after(rules, situation.events), 3);
  }
  EXPECT_GT(walk.decisions(), 300'000);
}

std::vector<Situation> fleet_situations() {
  const auto answered = [](NodeId node, double when, NodeFacts what) {
    return Event{at(when), ServiceAnswered{Step{-1}, Step{-1}, node, std::move(what)}};
  };
  std::vector<Event> running{{at(0), JobOpened{}},
                             {at(0), HostsListed{{{"a", 0, false}, {"b", 0, false}}}},
                             answered(0, 0.1, facts("p")),
                             answered(1, 0.2, facts("p"))};
  const std::vector<Event> opened(running.begin(), running.begin() + 3);
  running.push_back({at(1), StageReached{Attempt{1}, Stage::kStepping, at(1)}});
  running.push_back({at(2), StepFinished{Attempt{1}, Step{1}, at(2)}});
  const auto then = [](std::vector<Event> events, std::initializer_list<Event> more) {
    events.insert(events.end(), more);
    return events;
  };
  const Event notice{at(3), NoticeReceived{at(33), 1}};
  const Event lost{at(3), NodeLost{1, "x"}};
  History left;
  left.attempt = Attempt{3};
  left.attempt_open = true;
  left.gang = {"a", "b"};
  left.finished_step = Step{1};
  return {{"no list", {{at(0), JobOpened{}}}},
          {"one of two has answered", opened},
          {"stepping on two", running},
          {"one has lost its service", then(running, {{at(3), ServiceLost{1}}})},
          {"draining since one goes", then(running, {notice})},
          {"ending since one is lost", then(running, {lost})},
          {"going on without it", then(running, {lost, {at(4), GangEnded{Attempt{1}}}})},
          {"storing what they hold that go",
           then(running, {{at(3), NoticeReceived{at(33), 0}},
                          notice,
                          {at(3.1), HostsListed{{{"a", 0, false}, {"c", 0, false}}}},
                          answered(2, 3.2, facts("p")),
                          {at(4), GangEnded{Attempt{1}}},
                          {at(4), GangExited{Attempt{1}, kExitInterrupted, 0, {}, at(4)}},
                          {at(4), GangEnded{Attempt{1}}}})},
          {"left by a dead supervisor", {{at(0), JobOpened{left, true}}}},
          {"one of those left is asked for",
           {{at(0), JobOpened{left, true}}, answered(0, 0.1, facts("p"))}}};
}

TEST(Supervisor, SurvivesEverySequenceOfThreeEventsOfAFleet) {
  const Rules rules = fleet_rules();
  Walk walk(rules);
  for (const Situation& situation : fleet_situations()) {
    SCOPED_TRACE(situation.name);
    const State state = after(rules, situation.events);
    EXPECT_EQ(situation.name.starts_with("storing"), state.doing == Doing::kSaving);
    walk.go(state, 3);
  }
  EXPECT_GT(walk.decisions(), 500'000);
}

TEST(Supervisor, ReadsATimeThatGoesBackAsNow) {
  const Rules rules = small_rules();
  State state = after(rules, {{at(5), JobOpened{}}, {at(6), ServiceAnswered{}}});
  state = decide(rules, state, {at(1), StageReached{Attempt{1}, Stage::kStepping, at(0)}}).next;
  EXPECT_EQ(state.now, at(6));
  EXPECT_EQ(state.history.accounting.elapsed(), Duration(seconds(1)));
}

TEST(Supervisor, GivesEachStageItsLimitFromOneTable) {
  Rules rules;
  rules.startup_timeout = seconds(7);
  rules.hang_timeout = seconds(3);
  for (const Stage stage : {Stage::kLaunching, Stage::kLoading, Stage::kRestoring})
    EXPECT_EQ(time_limit(rules, stage), Duration(seconds(7)));
  for (const Stage stage : {Stage::kStepping, Stage::kEvaluating, Stage::kFinishing})
    EXPECT_EQ(time_limit(rules, stage), Duration(seconds(3)));
}

TEST(Supervisor, DoublesThePauseUpToItsLimit) {
  Rules rules = small_rules();
  rules.max_failures = rules.max_failures_total = -1;
  State state = after(rules, {{at(0), JobOpened{}}, {at(0), ServiceAnswered{}}});
  std::vector<Duration> pauses;
  for (int i = 1; i <= 8; ++i) {
    const Attempt attempt = state.history.attempt;
    state =
        decide(
            rules, state,
            {state.now,
             GangExited{
                 attempt, 1, 0, {0, "a", Step{1}, Phase::kUpdate, std::to_string(i)}, state.now}})
            .next;
    state = decide(rules, state, {state.now, GangEnded{attempt}}).next;
    pauses.push_back(state.deadline - state.now);
    state = decide(rules, state, {state.deadline, TimerFired{}}).next;
  }
  const std::vector<Duration> expected{seconds(1),  seconds(2),  seconds(4),  seconds(8),
                                       seconds(16), seconds(32), seconds(60), seconds(60)};
  EXPECT_EQ(pauses, expected);
}

TEST(Accounting, GivesEachMomentOneCause) {
  Accounting accounting;
  accounting.open(at(10));
  accounting.spend(Cause::kLaunch, at(11));
  accounting.spend(Cause::kRestore, at(10.5));  // before the mark: nothing
  accounting.spend_step(false, milliseconds(250), at(12));
  accounting.spend_step(true, seconds(9), at(13));  // waited longer than the span: all of it
  accounting.spend_step(true, Duration::zero(), at(15));
  EXPECT_EQ(accounting.of(Cause::kLaunch), Duration(seconds(1)));
  EXPECT_EQ(accounting.of(Cause::kRestore), Duration::zero());
  EXPECT_EQ(accounting.of(Cause::kSnapshot), Duration(milliseconds(1250)));
  EXPECT_EQ(accounting.of(Cause::kSteps), Duration(milliseconds(750)));
  EXPECT_EQ(accounting.of(Cause::kRedone), Duration(seconds(2)));
  EXPECT_EQ(accounting.elapsed(), Duration(seconds(5)));
  EXPECT_DOUBLE_EQ(accounting.goodput(), 0.15);
}

TEST(Accounting, HasNoGoodputBeforeAnythingHasElapsed) {
  EXPECT_EQ(Accounting{}.goodput(), 0.0);
}

}  // namespace
}  // namespace surefoot::supervisor
