// How the ranks of one node make a step's state together, directly in the arena.
//
//   begin     leader (local rank 0): takes a slot for (attempt, step); others: wait until it is
//   taken (caller)  all: write their shares into write_bytes(), reading read_bytes() commit    all:
//   arrive, wait until all have written
//             all: digest the chunks c with c mod L == local rank, arrive again
//             whoever arrives last: publishes the slot, pushes the leader's record
//             the others: wait until it is READY
//
// Then the slot is what the next step reads. Nothing is copied. A rank that dies anywhere leaves
// the slot WRITING, and it is never used.
//
// One object per rank, one thread. Waits until the given deadline at the longest; kRestart names
// the local ranks that have not arrived, kStale: a newer attempt has begun on this node.
#pragma once

#include "checkpoint/arena.h"

namespace surefoot {

class Snapshotter {
 public:
  Snapshotter(Arena& arena, Attempt attempt, int local_rank, int local_size);

  // Chooses the slot to read from: READY, by restore. Must be called before the first begin().
  void start_from(int slot);
  // Step 0, or a node without any copy: nothing to read, begin(Step) comes first.

  // Takes (leader) or finds the slot for `step`.
  Status begin(Step step, Time deadline);
  [[nodiscard]] std::span<const std::byte> read_bytes() const;  // the state before the step
  [[nodiscard]] int read_slot() const { return read_; }         // where it lies; -1: none
  [[nodiscard]] std::span<std::byte>
  write_bytes();  // the state after it; all bytes must be written, gaps excepted (they are zero)
  // My share is written. Digests, publishes (whoever comes last), waits until READY; after it
  // read_bytes() is the new state. `record` of the leader is pushed by whoever publishes, after
  // READY: only finished steps are ever reported.
  Status commit(std::int64_t samples, bool checkpoint, const StepRecord& record, Time deadline);
  // Gives up the slot that begin() took: the step is not applied.
  void abandon();

 private:
  Arena& arena_;
  Attempt attempt_;
  int local_rank_;
  int local_size_;
  Step step_;
  int read_ = -1;
  int write_ = -1;
};

}  // namespace surefoot
