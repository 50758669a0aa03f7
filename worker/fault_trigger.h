// Fires the faults that are injected on purpose (configs/fault.h), at the exact phase of the exact
// step they name.
//
// Every rank holds one; the rank a fault names fires it, rank 0 fires those that name no rank. A
// fault is marked in the arena before it fires, so that it fires once in the life of the job,
// however often the step is done again.
#pragma once

#include <vector>

#include "checkpoint/arena.h"
#include "configs/fault.h"

namespace surefoot {

class FaultTrigger {
 public:
  // `supervisor`: pid from SUREFOOT_SUPERVISOR, 0 without one.
  FaultTrigger(Arena& arena, std::vector<InjectedFault> faults, int rank, int world_size,
               pid_t supervisor);
  // Called when this rank enters `phase` of `step`. May not return.
  void enter(Step step, Phase phase);

 private:
  void fire(const InjectedFault& fault);

  Arena& arena_;
  std::vector<InjectedFault> faults_;
  int rank_;
  int world_size_;
  pid_t supervisor_;
};

}  // namespace surefoot
