// Every interleaving of two publishers, one deleter and a restorer over one store, one store
// operation at a time, with crashes anywhere.
//
// The publishers run the real Publisher (commit.h), the deleter the real plan_removal
// (retention.h). A publisher stores its part and publishes, step after step; a crash makes it start
// its step anew or ends it for good; an operation may fail, with or without having taken effect.
// The deleter goes round and round: looks, verifies the newest whole checkpoint part by part, looks
// again, plans, removes one object at a time; a crash starts a new round. Sets count as untouched
// for long at all times, so no clock protects them. The restorer looks at every state. All
// reachable states are visited, and in each
//   offered     what restore offers is whole
//   not lost    the newest whole checkpoint is never older than in the state before
//   no halves   a manifest stands without its parts only where parts were removed that the deleter
//   had seen unpublished (the race that the second look is for) true word   "published" is only
//   said of a set that was whole, with its manifest, at some moment
// and from states all over the graph a quiet end is reached: the newest step published, nothing
// half left.
#include <gtest/gtest.h>

#include <cstdio>
#include <deque>
#include <unordered_set>

#include "checkpoint/testing/commit_model.h"

namespace surefoot::testing {
namespace {

// ---- Scenarios. Steps 0, 1, 2 stand for three checkpoints one after the other.

StepObjects published(int attempt, int parts) {
  StepObjects step{};
  step.parts[attempt - 1] = static_cast<std::uint8_t>((1 << parts) - 1);
  step.manifest = static_cast<std::uint8_t>(attempt);
  step.was_whole = static_cast<std::uint8_t>(1 << attempt);
  return step;
}

// Two nodes store step 1 while step 0 stands; the deleter wants to be rid of 0.
Scenario one_step() {
  Scenario scenario{"one step"};
  scenario.start.steps[0] = published(1, 2);
  scenario.plans = {std::vector<int>{1}, {1}};
  return scenario;
}
// They are late: step 2 is published already, so the deleter takes their parts for left-overs.
Scenario late_set() {
  Scenario scenario{"late set"};
  scenario.start.steps[2] = published(1, 2);
  scenario.plans = {std::vector<int>{1}, {1}};
  scenario.final_step = 2;
  return scenario;
}
Scenario two_steps() {
  Scenario scenario{"two steps"};
  scenario.start.steps[0] = published(1, 2);
  scenario.plans = {std::vector<int>{1, 2}, {1, 2}};
  scenario.final_step = 2;
  return scenario;
}
// Attempts 1 and 2 both have a set of step 1.
Scenario two_sets() {
  Scenario scenario{"two sets of one step"};
  scenario.start.steps[0] = published(1, 1);
  scenario.attempts = {1, 2};
  scenario.parts = {1, 1};
  scenario.plans = {std::vector<int>{1}, {1}};
  return scenario;
}
// Of one attempt too: one node still tries to complete the set of two, of which the other part is
// there or not, while the other node has written the whole state alone.
Scenario two_sizes(bool complete) {
  Scenario scenario{complete ? "two sizes" : "two sizes, one half"};
  scenario.start.steps[0] = published(1, 2);
  scenario.start.steps[1].parts[0] = complete ? 2 : 0;
  scenario.attempts = {1, 2};
  scenario.attempt_of = {1, 1};
  scenario.parts = {2, 1};
  scenario.plans = {std::vector<int>{1}, {1}};
  return scenario;
}
// A damaged manifest stands where step 1 is to be published.
Scenario damaged_manifest() {
  Scenario scenario{"damaged manifest"};
  scenario.start.steps[0] = published(1, 2);
  scenario.start.steps[1].manifest = kDamaged;
  scenario.plans = {std::vector<int>{1}, {1}};
  return scenario;
}
// The newest checkpoint has lost a part: a manifest alone vouches for nothing.
Scenario half_newest() {
  Scenario scenario{"half newest"};
  scenario.start.steps[0] = published(1, 2);
  scenario.start.steps[2] = published(1, 2);
  scenario.start.steps[2].parts[0] = 1;
  scenario.start.steps[2].doomed = 1;  // not of our making
  scenario.plans = {std::vector<int>{1}, {1}};
  return scenario;
}

struct Explored {
  std::size_t states = 0;
  std::string violation;
  int settled = 0;
};

Explored explore(const Scenario& scenario) {
  Model model(scenario);
  std::unordered_set<World, Hash, Equal> seen{scenario.start};
  std::deque<const World*> todo{&*seen.begin()};
  Explored explored;
  std::vector<World> next;
  while (!todo.empty()) {
    const World world = *todo.front();
    todo.pop_front();
    next.clear();
    model.successors(world, next);
    for (const World& successor : next) {
      explored.violation = model.violation(world, successor);
      if (!explored.violation.empty()) return explored;
      const auto [place, fresh] = seen.insert(successor);
      if (fresh) todo.push_back(&*place);
    }
    // Every so often: a quiet end is reached from here, unless somebody died for good on the way.
    const bool alive = world.publishers[0].stage != PublisherProcess::kFinished ||
                       world.publishers[0].turn == scenario.plans[0].size();
    const bool both = alive && (world.publishers[1].stage != PublisherProcess::kFinished ||
                                world.publishers[1].turn == scenario.plans[1].size());
    if (++explored.states % 199 != 0 || !both || scenario.bug != Bug::kNone) continue;
    const World end = model.settle(world);
    ++explored.settled;
    if (newest_whole(scenario, end) < scenario.final_step)
      explored.violation = "quiet end: the newest step is not published";
    for (int i = 0; i < newest_whole(scenario, end); ++i) {
      if (end.steps[i].manifest != kNone || end.steps[i].parts[0] || end.steps[i].parts[1])
        explored.violation = "quiet end: something is left over";
    }
    if (!explored.violation.empty()) {
      return explored;
    }
  }
  return explored;
}

TEST(CommitModel, NoHalfCheckpointIsOfferedAndNoGoodOneLost) {
  for (const Scenario& scenario : {one_step(), late_set(), two_steps(), two_sets(), two_sizes(true),
                                   two_sizes(false), damaged_manifest(), half_newest()}) {
    const Explored explored = explore(scenario);
    EXPECT_EQ(explored.violation, "") << scenario.name;
    EXPECT_GT(explored.states, 1000U) << scenario.name;
    EXPECT_GT(explored.settled, 10) << scenario.name;
    std::printf("%-24s %9zu states, %d settled\n", scenario.name.c_str(), explored.states,
                explored.settled);
  }
}

std::string found(Scenario scenario, Bug bug) {
  scenario.bug = bug;
  return explore(scenario).violation;
}

TEST(CommitModel, SeesAPublisherThatDoesNotWaitForParts) {
  EXPECT_EQ(found(one_step(), Bug::kPublishBeforeParts),
            "no halves: a manifest stands without its parts");
}
TEST(CommitModel, SeesAPublisherThatTakesAnySetOfItsAttemptForItsOwn) {
  EXPECT_EQ(found(two_sizes(false), Bug::kOursByAttempt),
            "not lost: the newest good checkpoint is gone");
}
TEST(CommitModel, SeesAPublisherThatDoesNotLookAgain) {
  EXPECT_EQ(found(late_set(), Bug::kNoSecondLook),
            "true word: published was said of a set that never was whole");
}
TEST(CommitModel, SeesADeleterThatRemovesPartsBeforeTheManifest) {
  EXPECT_EQ(found(one_step(), Bug::kDeletePartsFirst),
            "no halves: a manifest stands without its parts");
}
TEST(CommitModel, SeesADeleterThatBelievesAManifest) {
  EXPECT_EQ(found(half_newest(), Bug::kDeleteUnverified),
            "not lost: the newest good checkpoint is gone");
}
TEST(CommitModel, SeesARestorerThatBelievesAManifest) {
  EXPECT_EQ(found(late_set(), Bug::kRestoreUnchecked), "offered: a half checkpoint is offered");
}

}  // namespace
}  // namespace surefoot::testing
