// When to checkpoint, what to save before a deadline, how hard to work, what is remembered: the
// pure rules.
#include "checkpoint/interval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/deadline.h"
#include "checkpoint/service_history.h"
#include "checkpoint/testing/temporary_folder.h"
#include "checkpoint/throttle.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
using surefoot::testing::TemporaryFolder;
using ::testing::HasSubstr;

double minutes(Duration duration) {
  return seconds(duration) / 60;
}

// ---- Daly ----

TEST(Interval, HasDalysKnownValues) {
  EXPECT_NEAR(minutes(daly_optimum(5min, 24h)), 117, 0.5);
  EXPECT_NEAR(minutes(daly_optimum(5min, 6h)), 57, 0.5);
  EXPECT_NEAR(minutes(daly_optimum(5min, 15min)), 9.1, 0.05);
}

TEST(Interval, IsNeverLongerThanTheTimeBetweenLossesWhereACheckpointCostsMore) {
  EXPECT_EQ(daly_optimum(2h, 1h), Duration(1h));
  EXPECT_EQ(daly_optimum(3h, 1h), Duration(1h));
  EXPECT_EQ(daly_optimum(0s, 1h), Duration(0));
}

// The share of time that is lost at an interval, by the model from which the formula comes
// (Daly, eq. 20, without a restart time): nothing near the optimum is better by more than a hair.
TEST(Interval, IsTheBestOfItsNeighbours) {
  const auto waste = [](double interval, double cost, double mean) {
    return mean * (std::exp((interval + cost) / mean) - 1) / interval;
  };
  for (const double cost : {0.1, 5.0, 60.0, 300.0}) {
    for (const double mean : {900.0, 3600.0, 86400.0}) {
      if (cost > mean / 2) continue;
      const double best = seconds(daly_optimum(from_seconds(cost), from_seconds(mean)));
      for (const double factor : {0.5, 0.8, 0.95, 1.05, 1.25, 2.0})
        EXPECT_LE(waste(best, cost, mean), waste(best * factor, cost, mean) * 1.0005)
            << cost << " " << mean << " " << factor;
    }
  }
}

TEST(Interval, ExpectsALossADayUntilMoreIsKnown) {
  EXPECT_EQ(mean_time_between_losses({}), Duration(24h));
  EXPECT_EQ(mean_time_between_losses({0h, 1}), Duration(12h));
  EXPECT_EQ(mean_time_between_losses({24h * 9, 0}), Duration(24h * 10));
  EXPECT_EQ(mean_time_between_losses({24h * 9, 19}), Duration(12h));
}

IntervalFacts facts() {
  IntervalFacts facts;
  facts.ceiling = 1h;
  return facts;
}

TEST(Interval, IsTheCeilingUntilTheCostIsMeasured) {
  const auto decision = decide_interval(facts());
  EXPECT_EQ(decision.interval, Duration(1h));
  EXPECT_EQ(decision.rule, IntervalRule::kCeiling);
  EXPECT_THAT(decision.reason, HasSubstr("not measured"));
}

TEST(Interval, IsTheOptimumBelowTheCeiling) {
  IntervalFacts known = facts();
  known.cost = 1s;
  const auto decision = decide_interval(known);
  EXPECT_EQ(decision.rule, IntervalRule::kOptimum);
  EXPECT_NEAR(minutes(decision.interval), 6.9, 0.1);
  EXPECT_THAT(decision.reason, HasSubstr("costs 1 s of training"));
  EXPECT_THAT(decision.reason, HasSubstr("24 h"));
  known.history = {24h, 7};
  EXPECT_LT(decide_interval(known).interval, decision.interval);
  known.cost = 5min;
  known.history = {};
  EXPECT_EQ(decide_interval(known).rule, IntervalRule::kCeiling);
}

TEST(Interval, IsNotShorterThanTenSecondsUnlessTheUserSaysSo) {
  IntervalFacts known = facts();
  known.cost = 0s;
  EXPECT_EQ(decide_interval(known).interval, kShortestInterval);
  EXPECT_EQ(decide_interval(known).rule, IntervalRule::kShortest);
  known.ceiling = 100ms;
  EXPECT_EQ(decide_interval(known).interval, Duration(100ms));
  EXPECT_EQ(decide_interval(known).rule, IntervalRule::kCeiling);
}

TEST(Interval, IsNeverBelowWhatTheStoreKeepsUpWith) {
  for (const auto cost : {std::optional<Duration>(), std::optional<Duration>(1ms)}) {
    IntervalFacts known = facts();
    known.ceiling = 5min;
    known.cost = cost;
    known.storing = 10min;
    const auto decision = decide_interval(known);
    EXPECT_EQ(decision.rule, IntervalRule::kStorage);
    EXPECT_EQ(decision.interval, Duration(750s));
    EXPECT_THAT(decision.reason, HasSubstr("10 min"));
  }
}

TEST(Interval, IsToldWhenItsRuleChangesOrItDoesByAFifth) {
  const IntervalDecision told{100s, IntervalRule::kOptimum, ""};
  EXPECT_FALSE(is_news(told, told));
  EXPECT_FALSE(is_news(told, {119s, IntervalRule::kOptimum, ""}));
  EXPECT_TRUE(is_news(told, {121s, IntervalRule::kOptimum, ""}));
  EXPECT_FALSE(is_news(told, {84s, IntervalRule::kOptimum, ""}));
  EXPECT_TRUE(is_news(told, {83s, IntervalRule::kOptimum, ""}));
  EXPECT_TRUE(is_news(told, {100s, IntervalRule::kCeiling, ""}));
}

// ---- what a checkpoint costs ----

class Training {
 public:
  void steps(int count, Duration each) {
    for (int i = 0; i < count; ++i) {
      at_ += each;
      meter.step_finished(1, ++step_, at_);
    }
  }
  // An upload that begins now, during `count` steps of `each`.
  void upload(int count, Duration each, Duration processor_time = {}) {
    const Time begun = at_;
    steps(count, each);
    meter.upload_ended(begun, at_, processor_time);
    steps(1, 100ms);
  }
  CostMeter meter;

 private:
  Time at_ = Time{1h};
  std::int64_t step_ = 0;
};

TEST(Cost, IsHowMuchLongerTheStepsBesideAnUploadTook) {
  Training training;
  training.steps(20, 100ms);
  EXPECT_FALSE(training.meter.cost());
  training.upload(10, 130ms);
  ASSERT_TRUE(training.meter.cost());
  EXPECT_EQ(*training.meter.cost(), Duration(300ms));
}

TEST(Cost, IsNotBelowTheProcessorTimeThatWasUsed) {
  Training training;
  training.steps(20, 100ms);
  training.upload(10, 99ms, 40ms);
  EXPECT_EQ(*training.meter.cost(), Duration(40ms));
}

TEST(Cost, IsCautiousWithFewSamplesAndNotMisledByOddOnes) {
  Training training;
  training.steps(20, 100ms);
  training.upload(10, 110ms);
  training.upload(10, 500ms);
  EXPECT_EQ(*training.meter.cost(), Duration(4000ms)) << "of two the larger";
  for (int i = 0; i < 6; ++i) training.upload(10, 110ms);
  EXPECT_EQ(*training.meter.cost(), Duration(100ms)) << "of many the usual one";
}

TEST(Cost, IsMeasuredAgainstStepsWithoutAnUploadOnly) {
  Training training;
  training.steps(10, 100ms);
  for (int i = 0; i < 50; ++i) {
    training.upload(100, 200ms);
    EXPECT_GE(*training.meter.cost(), Duration(9900ms));
  }
}

TEST(Cost, OfTheFirstCheckpointIsKnownWhenEnoughStepsFollow) {
  Training training;
  training.steps(1, 100ms);
  training.upload(3, 200ms);
  EXPECT_FALSE(training.meter.cost());
  training.steps(10, 100ms);
  EXPECT_EQ(training.meter.cost(), Duration(300ms));
}

TEST(Cost, CountsNoTimeBetweenAttemptsOrOfEvaluations) {
  CostMeter meter;
  Time at{1h};
  for (int i = 1; i <= 20; ++i) meter.step_finished(1, i, at += 100ms);
  const Time begun = at;
  meter.step_finished(2, 21, at += 1min);  // after a restart
  meter.pause();
  meter.step_finished(2, 22, at += 1min);  // after an evaluation
  meter.step_finished(2, 23, at += 150ms);
  meter.upload_ended(begun, at, {});
  meter.step_finished(2, 24, at += 100ms);
  EXPECT_EQ(meter.cost(), Duration(50ms));
}

// ---- before a deadline ----

DeadlineFacts going(Duration left) {
  DeadlineFacts facts;
  facts.now = Time{1h};
  facts.deadline = facts.now + left;
  facts.state_bytes = 1'000'000'000;
  facts.bytes_per_second = 100e6;  // 12.5 s with the margin, and half a second
  facts.ready = Step{7};
  return facts;
}

TEST(Deadline, HasNothingToDoWhenTheNewestStepIsStored) {
  DeadlineFacts facts = going(1s);
  facts.stored = Step{7};
  EXPECT_EQ(decide_before_deadline(facts).action, DeadlineAction::kNothing);
  facts.ready.reset();
  EXPECT_EQ(decide_before_deadline(facts).action, DeadlineAction::kNothing);
}

TEST(Deadline, LeavesItToTheOthersMemoryWhileTheyLive) {
  DeadlineFacts facts = going(1min);
  facts.everyone = false;
  facts.nodes = 2;
  EXPECT_EQ(decide_before_deadline(facts).action, DeadlineAction::kMemory);
  facts.nodes = 1;
  EXPECT_EQ(decide_before_deadline(facts).action, DeadlineAction::kStoreNewest);
}

TEST(Deadline, StoresTheNewestWhenItFits) {
  EXPECT_EQ(decide_before_deadline(going(13001ms)).action, DeadlineAction::kStoreNewest);
  const auto tight = decide_before_deadline(going(12999ms));
  EXPECT_EQ(tight.action, DeadlineAction::kMemory);
  EXPECT_THAT(tight.reason, HasSubstr("13.0 s are left, a checkpoint takes 13.0 s at 100.0 MB/s"));
}

TEST(Deadline, TriesWithoutAMeasurement) {
  DeadlineFacts facts = going(1s);
  facts.bytes_per_second = 0;
  const auto decision = decide_before_deadline(facts);
  EXPECT_EQ(decision.action, DeadlineAction::kStoreNewest);
  EXPECT_THAT(decision.reason, HasSubstr("assumed"));
}

TEST(Deadline, KeepsAnUploadInHandOnlyWhereThatLosesNothing) {
  DeadlineFacts facts = going(30s);
  facts.uploading = Step{5};
  EXPECT_EQ(decide_before_deadline(facts).action, DeadlineAction::kKeepUpload)
      << "the newest fits after it";
  facts.deadline = facts.now + 20s;
  EXPECT_EQ(decide_before_deadline(facts).action, DeadlineAction::kStoreNewest)
      << "both do not fit: the newest";
  facts.deadline = facts.now + 8s;
  facts.uploaded_bytes = 1'000'000'000;
  EXPECT_EQ(decide_before_deadline(facts).action, DeadlineAction::kKeepUpload)
      << "only the one in hand fits";
  facts.deadline = facts.now + 1s;
  EXPECT_EQ(decide_before_deadline(facts).action, DeadlineAction::kMemory);
  facts.uploading = Step{7};
  EXPECT_EQ(decide_before_deadline(facts).action, DeadlineAction::kKeepUpload);
}

// Whatever the numbers: nothing is begun that does not fit by a measurement, nothing that was begun
// for the deadline is dropped for a newer step, and what is stored is never stored again.
TEST(Deadline, KeepsItsRulesForAllNumbers) {
  std::mt19937_64 random(2);
  int seen[4] = {};
  for (int round = 0; round < 100000; ++round) {
    DeadlineFacts facts = going(std::chrono::milliseconds(random() % 40000));
    facts.bytes_per_second = random() % 3 == 0 ? 0 : 20e6 * static_cast<double>(random() % 20);
    facts.everyone = random() % 2 == 0;
    facts.nodes = 1 + static_cast<int>(random() % 3);
    if (random() % 2 == 0) facts.stored = Step{static_cast<std::int64_t>(5 + random() % 4)};
    if (random() % 2 == 0) facts.uploading = Step{static_cast<std::int64_t>(5 + random() % 3)};
    facts.uploaded_bytes = static_cast<std::int64_t>(random() % 2'000'000'000);
    facts.uploading_for_this = random() % 2 == 0;
    const DeadlineDecision decision = decide_before_deadline(facts);
    ++seen[static_cast<int>(decision.action)];
    EXPECT_FALSE(decision.reason.empty());
    const bool stored = facts.stored && *facts.stored >= *facts.ready;
    EXPECT_EQ(decision.action == DeadlineAction::kNothing, stored);
    if (decision.action != DeadlineAction::kStoreNewest) continue;
    if (facts.bytes_per_second > 0) {
      EXPECT_LE(decision.needed, facts.deadline - facts.now);
    }
    EXPECT_TRUE(facts.everyone || facts.nodes == 1);
    EXPECT_FALSE(facts.uploading && facts.uploading_for_this);
    EXPECT_FALSE(facts.uploading && *facts.uploading >= *facts.ready);
  }
  for (const int count : seen) EXPECT_GT(count, 100);
}

// ---- how hard to work ----

TEST(Throttle, SleepsUntilTheShareIsKept) {
  EXPECT_EQ(pause_for(5ms, 5ms, 0.1), Duration(45ms));
  EXPECT_EQ(pause_for(5ms, 30ms, 0.1), Duration(20ms));
  EXPECT_EQ(pause_for(5ms, 60ms, 0.1), Duration(0));
  EXPECT_EQ(pause_for(5ms, 5ms, 0), Duration(0));
}

TEST(Throttle, HoldsAThreadThatWorksInPiecesAndLetsGoOfUrgentWork) {
  Throttle throttle(0.2);
  const auto work = [&](int pieces) {
    const Time begun = now();
    const Duration before = thread_processor_time();
    for (int i = 0; i < pieces; ++i) {
      const Duration piece = thread_processor_time();
      while (thread_processor_time() - piece < 4ms) continue;
      throttle.pause({});
    }
    return seconds(thread_processor_time() - before) / seconds(now() - begun);
  };
  throttle.pause({});
  EXPECT_LE(work(10), 0.25);
  const Duration slept = throttle.slept();
  EXPECT_GT(slept, Duration::zero());
  throttle.set_free(true);
  work(5);
  EXPECT_EQ(throttle.slept(), slept);
}

TEST(Throttle, StopsSleepingWhenItIsTold) {
  Throttle throttle(1e-9);
  throttle.pause({});
  const Duration piece = thread_processor_time();
  while (thread_processor_time() - piece < 1ms) continue;
  int asked = 0;
  throttle.pause([&] { return ++asked > 2; });
  EXPECT_EQ(asked, 3);
}

// ---- what is remembered ----

TEST(History, ComesBackAsItWas) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "service" / "host.json";
  EXPECT_EQ(read_service_history(file).error().code, Code::kNotFound);
  ServiceHistory history;
  history.losses = {90s, 3};
  history.arena_open = true;
  history.add({Step{7}, Attempt{2}, 1.5, 4});
  ASSERT_TRUE(write_service_history(file, history));
  const auto read = read_service_history(file);
  ASSERT_TRUE(read);
  EXPECT_EQ(to_json(*read), to_json(history));
  EXPECT_TRUE(read->knows(Step{7}, Attempt{2}));
  EXPECT_FALSE(read->knows(Step{7}, Attempt{1}));
}

TEST(History, ForgetsTheOldestCheckpoints) {
  ServiceHistory history;
  for (std::int64_t step = 1; step <= 1500; ++step) history.add({Step{step}, Attempt{1}, 1, 1});
  EXPECT_EQ(history.checkpoints.size(), kCheckpointsRemembered);
  EXPECT_FALSE(history.knows(Step{500}, Attempt{1}));
  EXPECT_TRUE(history.knows(Step{501}, Attempt{1}));
}

TEST(History, RefusesWhatIsDamaged) {
  ServiceHistory history;
  history.add({Step{7}, Attempt{2}, 1.5, 4});
  const std::string good = to_json(history);
  for (const char* bad : {"", "[]", "{}", R"({"version":2})"}) {
    EXPECT_EQ(parse_service_history(bad).error().code, Code::kCorrupt);
  }
  std::mt19937_64 random(3);
  for (int i = 0; i < 5000; ++i) {
    std::string bad = good;
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n)
      bad[random() % bad.size()] = static_cast<char>(random());
    (void)parse_service_history(bad);  // whatever it says, it comes back
  }
}

}  // namespace
}  // namespace surefoot
