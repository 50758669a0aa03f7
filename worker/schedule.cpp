#include "worker/schedule.h"

#include <cmath>
#include <numbers>

namespace surefoot {

Schedule Schedule::of(const config::Train& train) {
  Schedule schedule;
  schedule.lr = train.optimizer().lr();
  schedule.min_lr = train.schedule().min_lr();
  schedule.warmup_steps = train.schedule().warmup_steps();
  schedule.max_steps = train.max_steps();
  schedule.cosine = train.schedule().kind() == config::Schedule::cosine;
  return schedule;
}

double Schedule::learning_rate(Step step) const {
  const std::int64_t k = step.value;
  if (k < warmup_steps) return lr * (static_cast<double>(k) / static_cast<double>(warmup_steps));
  if (!cosine) return lr;
  if (k >= max_steps) return min_lr;
  const double done =
      static_cast<double>(k - warmup_steps) / static_cast<double>(max_steps - warmup_steps);
  return min_lr + (lr - min_lr) * (0.5 * (1.0 + std::cos(std::numbers::pi * done)));
}

}  // namespace surefoot
