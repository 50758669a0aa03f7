// The pure rules: publishing, deleting, choosing what to restore.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "checkpoint/commit.h"
#include "checkpoint/part.h"
#include "checkpoint/restore.h"
#include "checkpoint/retention.h"

namespace surefoot::testing {
namespace {

std::string text(const PublishEffect& effect) {
  struct Text {
    std::string operator()(const ListSet&) { return "list"; }
    std::string operator()(const ReadHeader& read) { return "header " + std::to_string(read.part); }
    std::string operator()(const PutManifest&) { return "put"; }
    std::string operator()(const ReadManifest&) { return "read"; }
    std::string operator()(const VerifyOther&) { return "verify"; }
    std::string operator()(const RemoveManifest&) { return "remove"; }
    std::string operator()(const PublishDone& done) { return std::string(name(done.outcome)); }
  };
  return std::visit(Text{}, effect);
}

// Runs a publisher of a set of two through these events; the narration of its effects.
std::string narrate(int own_part, const std::vector<PublishEvent>& events) {
  PublishDecision decision = start_publishing(2, own_part, false);
  std::string all = text(decision.effect);
  for (const PublishEvent& event : events) {
    decision = decide(decision.next, event);
    EXPECT_FALSE(decision.reason.empty());
    all += ", " + text(decision.effect);
  }
  return all;
}

SetListed listed(bool part0, bool part1, bool manifest, bool newer = false) {
  return {{part0, part1}, manifest, newer};
}
constexpr HeaderRead kGood{HeaderRead::kGood};

TEST(Commit, PublishesACompleteSetAndLooksAgain) {
  EXPECT_EQ(narrate(0, {listed(true, true, false), kGood, kGood, ManifestPut{ManifestPut::kDone},
                        listed(true, true, true)}),
            "list, header 0, header 1, put, list, published");
}

TEST(Commit, WaitsForMissingParts) {
  EXPECT_EQ(narrate(0, {listed(true, false, false)}), "list, waiting");
  EXPECT_EQ(narrate(1, {listed(false, true, false)}), "list, waiting");
  EXPECT_EQ(narrate(1, {listed(true, true, false), kGood, HeaderRead{HeaderRead::kAbsent}}),
            "list, header 0, header 1, waiting");
}

TEST(Commit, LoserOfTheRaceIsContent) {
  EXPECT_EQ(narrate(1, {listed(true, true, false), kGood, kGood, ManifestPut{ManifestPut::kExists},
                        ManifestRead{ManifestRead::kOurs}, listed(true, true, true)}),
            "list, header 0, header 1, put, read, list, published");
  EXPECT_EQ(narrate(1, {listed(true, true, true), ManifestRead{ManifestRead::kOurs},
                        listed(true, true, true)}),
            "list, read, list, published");
}

TEST(Commit, RefusesADamagedOrForeignPart) {
  EXPECT_EQ(narrate(0, {listed(true, true, false), kGood, HeaderRead{HeaderRead::kBad}}),
            "list, header 0, header 1, refused");
}

TEST(Commit, WithdrawsAManifestWhosePartsAreGone) {
  EXPECT_EQ(narrate(0, {listed(true, true, false), kGood, kGood, ManifestPut{ManifestPut::kDone},
                        listed(true, false, true), ManifestRemoved{}}),
            "list, header 0, header 1, put, list, remove, withdrawn");
  EXPECT_EQ(narrate(0, {listed(false, true, true), ManifestRead{ManifestRead::kOurs},
                        listed(false, true, true), ManifestRemoved{}}),
            "list, read, list, remove, withdrawn");
}

// Found by commit_model_test.cpp: the other publisher stored its part and published in between.
TEST(Commit, DoesNotWithdrawBecauseOfWhatItSawBeforeTheManifest) {
  EXPECT_EQ(narrate(1, {listed(false, true, true), ManifestRead{ManifestRead::kOurs},
                        listed(true, true, true)}),
            "list, read, list, published");
}

TEST(Commit, LeavesAGoodCheckpointOfAnotherAttempt) {
  EXPECT_EQ(narrate(0, {listed(true, true, true), ManifestRead{ManifestRead::kOther},
                        OtherVerified{true}}),
            "list, read, verify, superseded");
}

TEST(Commit, OnlyTheOwnerOfPart0OfTheNewestAttemptReplacesADamagedManifest) {
  const ManifestRead damaged{ManifestRead::kDamaged};
  EXPECT_EQ(narrate(0, {listed(true, true, true), damaged, ManifestRemoved{}, kGood, kGood,
                        ManifestPut{ManifestPut::kDone}, listed(true, true, true)}),
            "list, read, remove, header 0, header 1, put, list, published");
  EXPECT_EQ(narrate(1, {listed(true, true, true), damaged}), "list, read, waiting");
  EXPECT_EQ(narrate(0, {listed(true, true, true, true), damaged}), "list, read, waiting");
  EXPECT_EQ(narrate(0, {listed(true, false, true), damaged}), "list, read, waiting");
  EXPECT_EQ(narrate(0, {listed(true, true, true), ManifestRead{ManifestRead::kOther},
                        OtherVerified{false}, ManifestRemoved{}}),
            "list, read, verify, remove, header 0");
}

TEST(Commit, ReplacesOnlyOnce) {
  EXPECT_EQ(narrate(0, {listed(true, true, true), ManifestRead{ManifestRead::kDamaged},
                        ManifestRemoved{}, kGood, kGood, ManifestPut{ManifestPut::kExists},
                        ManifestRead{ManifestRead::kDamaged}}),
            "list, read, remove, header 0, header 1, put, read, waiting");
}

TEST(Commit, ReadsTheManifestWhenAPutMayHaveHappened) {
  const std::vector<PublishEvent> before{listed(true, true, false), kGood, kGood,
                                         ManifestPut{ManifestPut::kUnknown}};
  auto landed = before;
  landed.insert(landed.end(), {ManifestRead{ManifestRead::kOurs}, listed(true, true, true)});
  EXPECT_EQ(narrate(0, landed), "list, header 0, header 1, put, read, list, published");
  // Absent is not refused: it may still land, so this is a failure to be looked at again.
  auto absent = before;
  absent.push_back(ManifestRead{ManifestRead::kAbsent});
  EXPECT_EQ(narrate(0, absent), "list, header 0, header 1, put, read, failed");
}

TEST(Commit, IsSupersededByALaterVerifiedStep) {
  EXPECT_EQ(text(start_publishing(2, 0, true).effect), "superseded");
}

// Every sequence of six events: no event that does not fit changes anything, and each effect is one
// that its phase waits for.
TEST(Commit, IsTotal) {
  std::vector<PublishEvent> events{kGood,
                                   HeaderRead{HeaderRead::kBad},
                                   HeaderRead{HeaderRead::kAbsent},
                                   OtherVerified{true},
                                   OtherVerified{false},
                                   ManifestRemoved{},
                                   StoreFailed{}};
  for (auto outcome : {ManifestPut::kDone, ManifestPut::kExists, ManifestPut::kUnknown})
    events.push_back(ManifestPut{outcome});
  for (auto what :
       {ManifestRead::kOurs, ManifestRead::kOther, ManifestRead::kDamaged, ManifestRead::kAbsent})
    events.push_back(ManifestRead{what});
  for (int bits = 0; bits < 16; ++bits)
    events.push_back(listed(bits & 1, bits & 2, bits & 4, bits & 8));
  std::vector<Publisher> seen;
  std::vector<Publisher> todo;
  for (int own : {0, 1}) todo.push_back(start_publishing(2, own, false).next);
  while (!todo.empty()) {
    const Publisher state = todo.back();
    todo.pop_back();
    if (std::find(seen.begin(), seen.end(), state) != seen.end()) continue;
    seen.push_back(state);
    for (const PublishEvent& event : events) {
      const PublishDecision decision = decide(state, event);
      EXPECT_FALSE(decision.reason.empty());
      EXPECT_EQ(std::holds_alternative<PublishDone>(decision.effect),
                decision.next.phase == Publisher::Phase::kDone);
      if (state.phase == Publisher::Phase::kDone) {
        EXPECT_EQ(decision.next, state);
      }
      if (std::holds_alternative<PutManifest>(decision.effect)) {
        EXPECT_EQ(decision.next.phase, Publisher::Phase::kPutting);
      }
      if (const auto* read = std::get_if<ReadHeader>(&decision.effect)) {
        EXPECT_LT(read->part, 2);
      }
      todo.push_back(decision.next);
    }
  }
  EXPECT_GT(seen.size(), 30U);
}

// ---- Retention

ObjectInfo object(const std::string& name, Duration age = std::chrono::hours(1)) {
  return {name, 1, age};
}

StepInventory step_of(std::int64_t step, StepState state, Duration age = std::chrono::hours(1)) {
  const Attempt attempt{1};
  StepInventory inventory{Step{step}, state, attempt, {}};
  inventory.objects.push_back(object(part_name(Step{step}, attempt, 0, 2), age));
  inventory.objects.push_back(object(part_name(Step{step}, attempt, 1, 2), age));
  if (state != StepState::kUnpublished)
    inventory.objects.push_back(object(manifest_name(Step{step}), age));
  return inventory;
}

std::vector<std::int64_t> steps_of(const std::vector<RemovalGroup>& groups) {
  std::vector<std::int64_t> steps;
  for (const RemovalGroup& group : groups) steps.push_back(group.step.value);
  return steps;
}

using Steps = std::vector<std::int64_t>;

TEST(Retention, KeepsTheNewestAndRemovesTheRest) {
  const std::vector<StepInventory> steps{
      step_of(10, StepState::kWhole), step_of(20, StepState::kWhole),
      step_of(30, StepState::kWhole), step_of(40, StepState::kWhole)};
  EXPECT_EQ(steps_of(plan_removal(steps, Step{40}, 1)), (Steps{30, 20, 10}));
  EXPECT_EQ(steps_of(plan_removal(steps, Step{40}, 3)), (Steps{10}));
  EXPECT_EQ(steps_of(plan_removal(steps, Step{40}, 9)), Steps{});
}

TEST(Retention, KeepsForEverTheFirstCheckpointAtOrAfterEachMultiple) {
  std::vector<StepInventory> steps;
  for (const std::int64_t step : {5, 90, 100, 110, 190, 205, 290, 310, 400})
    steps.push_back(step_of(step, StepState::kWhole));
  EXPECT_EQ(steps_of(plan_removal(steps, Step{400}, {1, 100})), (Steps{290, 190, 110, 90, 5}));
  EXPECT_EQ(steps_of(plan_removal(steps, Step{400}, {2, 200})), (Steps{290, 190, 110, 100, 90, 5}));
  // A damaged one is none: the next whole one stands for its range.
  steps[2] = step_of(100, StepState::kDamaged);
  EXPECT_EQ(steps_of(plan_removal(steps, Step{400}, {1, 100})), (Steps{290, 190, 100, 90, 5}));
}

// As the job goes on, what is kept for ever stays the same.
TEST(Retention, NeverTakesBackWhatItHasKeptForEver) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<StepInventory> steps;
    std::int64_t at = 0;
    for (int i = 0; i < 60; ++i) {
      at += 1 + static_cast<std::int64_t>(random() % 40);
      steps.push_back(step_of(at, StepState::kWhole));
      for (const std::int64_t gone : steps_of(plan_removal(steps, Step{at}, {2, 50}))) {
        std::erase_if(steps, [&](const auto& step) { return step.step.value == gone; });
      }
    }
    std::set<std::int64_t> ranges;
    for (const StepInventory& step : steps) ranges.insert(step.step.value / 50);
    EXPECT_GE(static_cast<std::int64_t>(ranges.size()), at / 50 * 3 / 4)
        << "a jump may skip a range";
    EXPECT_LE(steps.size(), ranges.size() + 2);
  }
}

TEST(Retention, TouchesNothingAtOrAboveTheNewestVerified) {
  const std::vector<StepInventory> steps{
      step_of(10, StepState::kWhole), step_of(20, StepState::kWhole),
      step_of(30, StepState::kDamaged), step_of(40, StepState::kWhole)};
  EXPECT_EQ(steps_of(plan_removal(steps, Step{20}, 1)), (Steps{10}));
  EXPECT_EQ(steps_of(plan_removal(steps, Step{10}, 1)), Steps{});
}

TEST(Retention, RemovesTheManifestFirst) {
  for (const StepState state : {StepState::kWhole, StepState::kDamaged}) {
    const auto groups =
        plan_removal({step_of(10, state), step_of(20, StepState::kWhole)}, Step{20}, 1);
    ASSERT_EQ(groups.size(), 1U);
    ASSERT_EQ(groups[0].names.size(), 3U);
    EXPECT_EQ(groups[0].names[0], manifest_name(Step{10}));
  }
  EXPECT_EQ(plan_step_removal(step_of(10, StepState::kWhole)).names[0], manifest_name(Step{10}));
}

TEST(Retention, DoesNotCountDamagedCheckpointsAsKept) {
  const std::vector<StepInventory> steps{step_of(10, StepState::kWhole),
                                         step_of(20, StepState::kDamaged),
                                         step_of(30, StepState::kWhole)};
  EXPECT_EQ(steps_of(plan_removal(steps, Step{30}, 2)), (Steps{20}));
}

TEST(Retention, LeavesWhatItCouldNotLookAt) {
  const std::vector<StepInventory> steps{step_of(10, StepState::kUnknown),
                                         step_of(20, StepState::kWhole)};
  EXPECT_TRUE(plan_removal(steps, Step{20}, 1).empty());
}

TEST(Retention, RemovesUnpublishedSetsOnceNobodyTouchesThem) {
  using std::chrono::minutes;
  const auto plan = [](Duration age) {
    return plan_removal({step_of(10, StepState::kUnpublished, age), step_of(20, StepState::kWhole)},
                        Step{20}, 5);
  };
  EXPECT_TRUE(plan(minutes(9)).empty());
  EXPECT_EQ(steps_of(plan(minutes(10))), (Steps{10}));
  // One part is being written.
  StepInventory mixed = step_of(10, StepState::kUnpublished);
  mixed.objects[1].age = minutes(1);
  EXPECT_TRUE(plan_removal({mixed, step_of(20, StepState::kWhole)}, Step{20}, 5).empty());
  // Newer than the newest verified: it may still be published.
  EXPECT_TRUE(plan_removal({step_of(30, StepState::kUnpublished), step_of(20, StepState::kWhole)},
                           Step{20}, 5)
                  .empty());
}

TEST(Retention, RemovesTheOtherSetOfAKeptStepButNotItsOwn) {
  StepInventory two = step_of(10, StepState::kWhole);
  const std::string other = part_name(Step{10}, Attempt{2}, 0, 1);
  two.objects.push_back(object(other));
  const auto groups = plan_removal({two, step_of(20, StepState::kWhole)}, Step{20}, 5);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].names, std::vector<std::string>{other});
}

TEST(Retention, LeavesFilesItDoesNotKnow) {
  StepInventory step = step_of(10, StepState::kWhole);
  step.objects.push_back(object("step-00000000010/notes.txt"));
  for (const RemovalGroup& group :
       {plan_removal({step, step_of(20, StepState::kWhole)}, Step{20}, 1).at(0),
        plan_step_removal(step)}) {
    EXPECT_EQ(group.names.size(), 3U);
  }
}

// Whatever is there: the newest verified, all above it and the newest `keep` whole ones stay, and
// no part goes before its manifest.
TEST(Retention, HoldsForRandomInventories) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::vector<StepInventory> steps;
    Steps whole;
    for (std::int64_t step = 1; step <= 6; ++step) {
      if (random() % 4 == 0) continue;
      const auto state = static_cast<StepState>(random() % 4);
      steps.push_back(step_of(step, state, std::chrono::minutes(random() % 20)));
      if (state == StepState::kWhole) whole.push_back(step);
    }
    if (whole.empty()) continue;
    std::shuffle(steps.begin(), steps.end(), random);
    const std::int64_t verified = whole[random() % whole.size()];
    const int keep = 1 + static_cast<int>(random() % 3);
    const auto groups = plan_removal(steps, Step{verified}, keep);
    const auto removed = steps_of(groups);
    int kept = 0;
    for (auto step = whole.rbegin(); step != whole.rend(); ++step) {
      if (*step > verified) continue;
      const bool gone = std::find(removed.begin(), removed.end(), *step) != removed.end();
      EXPECT_EQ(gone, kept >= keep);
      ++kept;
    }
    for (const RemovalGroup& group : groups) {
      EXPECT_LT(group.step.value, verified);
      const auto manifest =
          std::find(group.names.begin(), group.names.end(), manifest_name(group.step));
      EXPECT_TRUE(manifest == group.names.end() || manifest == group.names.begin());
    }
  }
}

// ---- Restore

Candidate arena(std::int64_t step, std::int64_t attempt = 1, int node = 0) {
  return {Candidate::Source::kArena, Step{step}, Attempt{attempt}, {}, node};
}
Candidate stored(std::int64_t step, std::int64_t attempt = 1) {
  return {Candidate::Source::kStore, Step{step}, Attempt{attempt}, {}, 0};
}

struct RestoreRow {
  std::string name;
  RestoreInventory inventory;
  std::optional<Candidate> source;
  std::string_view reason;
};

TEST(Restore, FollowsTheTable) {
  const std::vector<RestoreRow> table{
      {"a new job",
       {{}, {}, Step{0}, false},
       std::nullopt,
       "no step is known to have been finished: starting at step 0"},
      {"memory",
       {{arena(7)}, {}, Step{7}, false},
       arena(7),
       "the newest finished step lies in memory"},
      {"store",
       {{stored(7)}, {}, Step{7}, false},
       stored(7),
       "the newest finished step lies in the store"},
      {"memory beats an equal store",
       {{stored(7), arena(7)}, {}, Step{7}, false},
       arena(7),
       "the newest finished step lies in memory"},
      {"a newer store beats memory",
       {{stored(8), arena(7)}, {}, Step{8}, false},
       stored(8),
       "the newest finished step lies in the store"},
      {"the later attempt of a step",
       {{arena(7, 1), arena(7, 2)}, {}, Step{7}, false},
       arena(7, 2),
       "the newest finished step lies in memory"},
      {"the lower node",
       {{arena(7, 1, 2), arena(7, 1, 1)}, {}, Step{7}, false},
       arena(7, 1, 1),
       "the newest finished step lies in memory"},
      {"steps were lost",
       {{stored(5)}, {}, Step{7}, false},
       stored(5),
       "the newest good copy lies in the store and is older than the furthest finished step"},
      {"steps were lost, memory",
       {{arena(5)}, {}, Step{7}, false},
       arena(5),
       "the newest good copy lies in memory and is older than the furthest finished step"},
      {"the failed one is left out",
       {{arena(7), stored(7)}, {arena(7)}, Step{7}, false},
       stored(7),
       "the newest finished step lies in the store"},
      {"the same step on another node is another copy",
       {{arena(7, 1, 0), arena(7, 1, 1)}, {arena(7, 1, 0)}, Step{7}, false},
       arena(7, 1, 1),
       "the newest finished step lies in memory"},
      {"initial weights in memory",
       {{arena(0)}, {}, Step{0}, false},
       arena(0),
       "the newest finished step lies in memory"},
      {"restart on lost state",
       {{}, {stored(5)}, Step{7}, true},
       std::nullopt,
       "the state is lost and on_lost_state is restart: starting again at step 0"},
  };
  for (const RestoreRow& row : table) {
    const auto plan = plan_restore(row.inventory);
    ASSERT_TRUE(plan) << row.name;
    EXPECT_EQ(plan->source, row.source) << row.name;
    EXPECT_EQ(plan->reason, row.reason) << row.name;
  }
}

TEST(Restore, NeverStartsAgainInSilence) {
  const std::vector<RestoreInventory> lost{{{}, {}, Step{7}, false},
                                           {{stored(7)}, {stored(7)}, Step{0}, false},
                                           {{arena(0)}, {}, Step{7}, false},
                                           {{}, {arena(7)}, Step{0}, false}};
  for (const RestoreInventory& inventory : lost) {
    const auto plan = plan_restore(inventory);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, Code::kInvalid);
    EXPECT_NE(plan.error().message.find("step 7"), std::string::npos);
  }
}

TEST(Restore, HoldsForRandomInventories) {
  std::mt19937_64 random(9);
  int errors = 0;
  int chosen = 0;
  for (int round = 0; round < 50000; ++round) {
    RestoreInventory inventory;
    for (std::uint64_t i = random() % 6; i > 0; --i) {
      const auto step = static_cast<std::int64_t>(random() % 4);
      const auto attempt = static_cast<std::int64_t>(random() % 3);
      inventory.candidates.push_back(random() % 2
                                         ? stored(step, attempt)
                                         : arena(step, attempt, static_cast<int>(random() % 2)));
    }
    for (const Candidate& candidate : inventory.candidates) {
      if (random() % 3 == 0) inventory.failed.push_back(candidate);
      // Whoever offers a copy knows of its step.
      inventory.known_step = std::max(inventory.known_step, candidate.step);
    }
    if (random() % 3 == 0) inventory.known_step = Step{static_cast<std::int64_t>(4 + random() % 3)};
    const auto plan = plan_restore(inventory);
    std::vector<Candidate> usable;
    for (const Candidate& candidate : inventory.candidates) {
      const bool failed = std::find(inventory.failed.begin(), inventory.failed.end(), candidate) !=
                          inventory.failed.end();
      if (!failed && (candidate.step > Step{0} || inventory.known_step == Step{0}))
        usable.push_back(candidate);
    }
    if (usable.empty()) {
      EXPECT_EQ(plan.has_value(), inventory.known_step == Step{0});
      errors += plan ? 0 : 1;
      continue;
    }
    ASSERT_TRUE(plan && plan->source);
    ++chosen;
    EXPECT_NE(std::find(usable.begin(), usable.end(), *plan->source), usable.end());
    for (const Candidate& candidate : usable) {
      EXPECT_LE(candidate.step, plan->source->step);
      if (candidate.step == plan->source->step && candidate.source == Candidate::Source::kArena) {
        EXPECT_EQ(plan->source->source, Candidate::Source::kArena);
      }
    }
    // All services must come to the same plan, whatever the order in which they heard of the
    // copies.
    std::shuffle(inventory.candidates.begin(), inventory.candidates.end(), random);
    EXPECT_EQ(plan_restore(inventory)->source, plan->source);
  }
  EXPECT_GT(errors, 100);
  EXPECT_GT(chosen, 1000);
}

}  // namespace
}  // namespace surefoot::testing
