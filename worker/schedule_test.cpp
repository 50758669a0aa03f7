#include "worker/schedule.h"

#include <gtest/gtest.h>

namespace surefoot {
namespace {

TEST(Schedule, RisesLinearlyToThePeakAtTheEndOfTheWarmUp) {
  const Schedule schedule{.lr = 0.8, .warmup_steps = 4, .max_steps = 100};
  EXPECT_DOUBLE_EQ(schedule.learning_rate(Step{1}), 0.2);
  EXPECT_DOUBLE_EQ(schedule.learning_rate(Step{2}), 0.4);
  EXPECT_EQ(schedule.learning_rate(Step{4}), 0.8);
  EXPECT_EQ(schedule.learning_rate(Step{5}), 0.8);
  EXPECT_EQ(schedule.learning_rate(Step{1000}), 0.8);
}

TEST(Schedule, CosineFallsFromThePeakToMinLrAtMaxSteps) {
  const Schedule schedule{
      .lr = 1.0, .min_lr = 0.1, .warmup_steps = 10, .max_steps = 110, .cosine = true};
  EXPECT_EQ(schedule.learning_rate(Step{10}), 1.0);
  EXPECT_NEAR(schedule.learning_rate(Step{60}), 0.55, 1e-12);
  EXPECT_EQ(schedule.learning_rate(Step{110}), 0.1);
  EXPECT_EQ(schedule.learning_rate(Step{111}), 0.1);
  for (std::int64_t k = 10; k < 110; ++k)
    EXPECT_GT(schedule.learning_rate(Step{k}), schedule.learning_rate(Step{k + 1}));
}

TEST(Schedule, AWarmUpLongerThanTheJobNeverReachesThePeak) {
  const Schedule schedule{
      .lr = 1.0, .min_lr = 0, .warmup_steps = 20, .max_steps = 10, .cosine = true};
  EXPECT_DOUBLE_EQ(schedule.learning_rate(Step{10}), 0.5);
}

TEST(Schedule, IsReadFromTheJob) {
  config::Train train;
  train.set_max_steps(50);
  train.mutable_optimizer()->set_lr(0.3);
  train.mutable_schedule()->set_kind(config::Schedule::cosine);
  train.mutable_schedule()->set_warmup_steps(3);
  train.mutable_schedule()->set_min_lr(0.01);
  const Schedule schedule = Schedule::of(train);
  EXPECT_EQ(schedule.learning_rate(Step{3}), 0.3);
  EXPECT_EQ(schedule.learning_rate(Step{50}), 0.01);
}

}  // namespace
}  // namespace surefoot
