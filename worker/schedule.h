// The learning rate of a step.
//
// Steps 1..warmup rise linearly: lr * step / warmup. After that `constant` stays at lr; `cosine`
// falls along half a cosine from lr at step `warmup` to min_lr at `max_steps`, and stays there.
//
// Pure double arithmetic on every rank alike. cos() is the C library's: its bits belong to the
// build and the machine's libm, and the result is one scalar that all elements share.
#pragma once

#include <cstdint>

#include "common/ids.h"
#include "configs/job.pb.h"

namespace surefoot {

struct Schedule {
  double lr = 0;
  double min_lr = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t max_steps = 1;
  bool cosine = false;

  [[nodiscard]] static Schedule of(const config::Train& train);
  // `step` >= 1.
  [[nodiscard]] double learning_rate(Step step) const;
};

}  // namespace surefoot
