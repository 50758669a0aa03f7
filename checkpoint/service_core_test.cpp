#include "checkpoint/service_core.h"

#include <gtest/gtest.h>

#include "checkpoint/deadline.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;

const Time kStart = Time(1000h);

// ---- when ----

TEST(DecideCheckpoint, AsksForTheFirstOneAtOnce) {
  CheckpointFacts facts;
  facts.now = kStart;
  facts.interval = 5min;
  facts.store_seen = true;
  EXPECT_TRUE(decide_checkpoint(facts).ask);
}

TEST(DecideCheckpoint, WaitsUntilItIsKnownWhatTheStoreHas) {
  CheckpointFacts facts;
  facts.now = kStart;
  EXPECT_FALSE(decide_checkpoint(facts).ask);
}

TEST(DecideCheckpoint, AsksOnceTheIntervalHasPassedAndNotBefore) {
  CheckpointFacts facts;
  facts.now = kStart;
  facts.interval = 5min;
  facts.store_seen = true;
  facts.newest = kStart - 5min + 1ns;
  EXPECT_FALSE(decide_checkpoint(facts).ask);
  facts.newest = kStart - 5min;
  EXPECT_TRUE(decide_checkpoint(facts).ask);
  facts.busy = true;
  EXPECT_FALSE(decide_checkpoint(facts).ask);
  facts.busy = false;
  facts.not_before = kStart + 1s;
  EXPECT_FALSE(decide_checkpoint(facts).ask);
}

TEST(PauseBeforeTry, DoublesUpToHalfAMinute) {
  const Duration expected[] = {0s, 0s, 1s, 2s, 4s, 8s, 16s, 30s};
  for (int number = 0; number < 8; ++number)
    EXPECT_EQ(pause_before_try(number), expected[number]) << number;
  EXPECT_EQ(pause_before_try(1'000'000), Duration(30s));
}

// ---- a new gang ----

HelloFacts resumed() {
  HelloFacts facts;
  facts.gang = {Attempt{0}, digest("layout"), digest("keys"), {"train.seed: 1"}, false};
  facts.memory = {true,       false, digest("layout"), digest("keys"), {"train.seed: 1"},
                  Attempt{3}, true};
  facts.stored = {true, digest("layout"), digest("keys"), {"train.seed: 1"}, Step{5}, Attempt{2}};
  return facts;
}

TEST(DecideHello, GivesTheNumberAfterTheHighestAnybodyKnows) {
  HelloFacts facts = resumed();
  EXPECT_EQ(decide_hello(facts)->attempt, Attempt{4});
  facts.stored.last_attempt = Attempt{9};
  EXPECT_EQ(decide_hello(facts)->attempt, Attempt{10});
  EXPECT_EQ(decide_hello(HelloFacts{})->attempt, Attempt{1});
}

TEST(DecideHello, TakesTheNumberItIsGivenUnlessANewerOneHasRunHere) {
  HelloFacts facts = resumed();
  facts.gang.attempt = Attempt{3};  // said again
  EXPECT_EQ(decide_hello(facts)->attempt, Attempt{3});
  facts.gang.attempt = Attempt{7};
  EXPECT_EQ(decide_hello(facts)->attempt, Attempt{7});
  facts.gang.attempt = Attempt{2};
  EXPECT_EQ(decide_hello(facts).error().code, Code::kStale);
}

TEST(DecideHello, UsesTheArenaOfThisJob) {
  auto decision = decide_hello(resumed());
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->arena, ArenaAction::kUse);
  EXPECT_TRUE(decision->changed_keys.empty());
}

TEST(DecideHello, MakesAnArenaWhereThereIsNoneOrADamagedOne) {
  HelloFacts facts = resumed();
  facts.memory.damaged = true;
  EXPECT_EQ(decide_hello(facts)->arena, ArenaAction::kMake);
  facts.memory = {};
  EXPECT_EQ(decide_hello(facts)->arena, ArenaAction::kMake);
}

TEST(DecideHello, RefusesChangedKeysAndSaysWhich) {
  HelloFacts facts = resumed();
  facts.gang.training_hash = digest("other keys");
  facts.gang.training_lines = {"train.seed: 2"};
  for (const bool in_memory : {true, false}) {
    for (const bool in_store : {true, false}) {
      HelloFacts some = facts;
      if (!in_memory) some.memory = {};
      if (!in_store) some.stored = {};
      auto decision = decide_hello(some);
      EXPECT_EQ(decision.has_value(), !in_memory && !in_store);
      if (decision) continue;
      EXPECT_EQ(decision.error().code, Code::kInvalid);
      EXPECT_NE(decision.error().message.find("train.seed: was 1, is 2"), std::string::npos);
      some.gang.accept_changes = true;
      decision = decide_hello(some);
      ASSERT_TRUE(decision);
      EXPECT_EQ(decision->changed_keys.size(), 1u);
      EXPECT_EQ(decision->arena, in_memory ? ArenaAction::kUseWithNewHash : ArenaAction::kMake);
    }
  }
}

TEST(DecideHello, DoesNotAskAgainForChangesThatWereAcceptedBeforeTheNextCheckpoint) {
  HelloFacts facts = resumed();
  facts.gang.training_hash = facts.memory.training_hash = digest("other keys");
  auto decision = decide_hello(facts);
  ASSERT_TRUE(decision) << decision.error().message;
  EXPECT_EQ(decision->arena, ArenaAction::kUse);
}

TEST(DecideHello, BeginsAnewWithChangedKeysWhenNoStepWasFinished) {
  HelloFacts facts = resumed();
  facts.stored = {};
  facts.memory.holds_work = false;
  facts.gang.training_hash = digest("other keys");
  EXPECT_EQ(decide_hello(facts)->arena, ArenaAction::kMake);
}

TEST(DecideHello, RefusesAnotherModelEvenWhenChangesAreAccepted) {
  HelloFacts facts = resumed();
  facts.gang.layout = digest("other layout");
  facts.gang.accept_changes = true;
  EXPECT_EQ(decide_hello(facts).error().code, Code::kInvalid);
  facts.stored = {};
  EXPECT_EQ(decide_hello(facts).error().code, Code::kInvalid);
  facts.memory.holds_work = false;
  EXPECT_EQ(decide_hello(facts)->arena, ArenaAction::kMake);
}

TEST(ArenaCandidates, AreTheReadySlots) {
  SlotInfo ready;
  ready.state = SlotState::kReady;
  ready.step = Step{4};
  ready.attempt = Attempt{2};
  ready.digest = digest("state");
  SlotInfo writing;
  writing.state = SlotState::kWriting;
  SlotInfo corrupt;
  corrupt.corrupt = true;
  const SlotInfo slots[] = {writing, ready, corrupt};
  const auto candidates = arena_candidates(slots, 1);
  ASSERT_EQ(candidates.size(), 1u);
  EXPECT_EQ(candidates[0],
            (Candidate{Candidate::Source::kArena, Step{4}, Attempt{2}, digest("state"), 1}));
}

TEST(StorePatience, IsShortOnlyWhereMemoryHoldsAllThatIsKnown) {
  EXPECT_LT(store_patience(Step{5}, Step{5}), store_patience(Step{5}, Step{6}));
  EXPECT_EQ(store_patience(Step{7}, Step{5}), store_patience(Step{5}, Step{5}));
  EXPECT_EQ(store_patience(Step{0}, Step{0}), store_patience(Step{5}, Step{6}));
}

// ---- life ----

LifeFacts alone() {
  LifeFacts facts;
  facts.now = kStart;
  facts.last_visit = facts.last_supervisor = kStart - 10min;
  facts.last_step = kStart - 1s;
  facts.lease = 30s;
  facts.arena_ttl = 1h;
  facts.supervisor_timeout = 10min;
  return facts;
}

TEST(DecideLife, AsksForADrainOnceWhenNoSupervisorIsHeard) {
  LifeFacts facts = alone();
  facts.workers = facts.supervised = true;
  EXPECT_EQ(decide_life(facts).action, LifeAction::kAskDrain);
  facts.drain_asked = true;
  EXPECT_EQ(decide_life(facts).action, LifeAction::kGoOn);
  facts.drain_asked = false;
  facts.last_supervisor += 1ns;
  EXPECT_EQ(decide_life(facts).action, LifeAction::kGoOn);
  facts.last_supervisor -= 1h;
  facts.supervised = false;
  EXPECT_EQ(decide_life(facts).action, LifeAction::kGoOn);
}

// Over all combinations of who was heard when, and of what is there.
TEST(DecideLife, EndsAGangThatNeitherSupervisorNorStepsSpeakFor) {
  int ended = 0;
  for (int bits = 0; bits < 256; ++bits) {
    LifeFacts facts = alone();
    facts.workers = (bits & 1) != 0;
    facts.gang_expected = (bits & 2) != 0;
    facts.launched = (bits & 4) != 0;
    facts.supervised = (bits & 8) != 0;
    facts.drain_asked = (bits & 16) != 0;
    facts.unflushed = facts.flush_wanted = (bits & 32) != 0;
    const bool heard = (bits & 64) != 0;
    const bool steps = (bits & 128) != 0;
    facts.last_supervisor = facts.now - (heard ? 30s - 1ns : Duration(30s));
    facts.last_step = facts.now - (steps ? 30s - 1ns : Duration(10min));
    const bool gang = facts.workers || facts.gang_expected || facts.launched;
    const bool stale = gang && facts.supervised && !heard && !steps;
    EXPECT_EQ(decide_life(facts).action == LifeAction::kEndGang, stale) << bits;
    ended += stale ? 1 : 0;
  }
  EXPECT_EQ(ended, 28);
}

TEST(DecideLife, LetsTheNodesBeforeItStoreTheStepFirst) {
  LifeFacts facts = alone();
  facts.unflushed = facts.flush_wanted = true;
  facts.last_visit = facts.now - 5s;
  facts.flush_turn = 5s;
  EXPECT_EQ(decide_life(facts).action, LifeAction::kFlush);
  facts.flush_turn += 1ns;
  EXPECT_EQ(decide_life(facts).action, LifeAction::kGoOn);
  // Left alone for arena_ttl: from then on.
  facts.flush_wanted = false;
  facts.last_visit = facts.now - 1h - 5s;
  EXPECT_EQ(decide_life(facts).action, LifeAction::kGoOn);
  facts.flush_turn -= 1ns;
  EXPECT_EQ(decide_life(facts).action, LifeAction::kFlush);

  EXPECT_EQ(flush_turn(0, std::int64_t{1} << 40, 0), Duration::zero());
  EXPECT_EQ(flush_turn(3, 1, 1e9), Duration(15s));
  EXPECT_EQ(flush_turn(2, 1'000'000'000, 10'000'000), Duration(251s));
  EXPECT_EQ(flush_turn(2, 1'000'000'000, 0), Duration(126s)) << "not measured: 20 MB/s";
}

TEST(DecideLife, FreesTheMemoryOfAFinishedJobOnceItsWorkersAreGone) {
  LifeFacts facts = alone();
  facts.finished = true;
  facts.workers = true;
  EXPECT_EQ(decide_life(facts).action, LifeAction::kGoOn);
  facts.workers = false;
  EXPECT_EQ(decide_life(facts).action, LifeAction::kFree);
  facts.supervised = true;  // it will say so
  EXPECT_EQ(decide_life(facts).action, LifeAction::kGoOn);
}

// Over all combinations: memory whose newest step is not in the store is never freed, nothing is
// freed under a living worker, and what is left alone long enough is flushed and then freed.
TEST(DecideLife, NeverFreesWhatIsNotStoredAndAlwaysComesToAnEnd) {
  int freed = 0;
  for (int bits = 0; bits < 128; ++bits) {
    LifeFacts facts = alone();
    facts.workers = (bits & 1) != 0;
    facts.gang_expected = (bits & 2) != 0;
    facts.supervised = (bits & 4) != 0;
    facts.finished = (bits & 8) != 0;
    facts.unflushed = (bits & 16) != 0;
    facts.flush_wanted = (bits & 32) != 0;
    if ((bits & 64) != 0) facts.now = facts.last_step = kStart + 50min;
    const LifeDecision decision = decide_life(facts);
    if (decision.action == LifeAction::kFree) {
      ++freed;
      EXPECT_TRUE(!facts.unflushed || facts.finished) << bits;
      EXPECT_FALSE(facts.workers || facts.gang_expected) << bits;
    }
    if (facts.workers || facts.gang_expected || (bits & 64) == 0) continue;
    if (decision.action == LifeAction::kFlush) {
      EXPECT_TRUE(facts.unflushed);
      facts.flush_not_before = facts.now + 1s;  // it failed
      EXPECT_EQ(decide_life(facts).action, LifeAction::kGoOn) << bits;
      facts.now += 1s;
      EXPECT_EQ(decide_life(facts).action, LifeAction::kFlush) << bits;
      facts.unflushed = false;  // it worked
    }
    EXPECT_EQ(decide_life(facts).action, LifeAction::kFree) << bits;
  }
  EXPECT_GT(freed, 8);
}

}  // namespace
}  // namespace surefoot
