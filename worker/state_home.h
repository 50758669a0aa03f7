// Where the training state lives, and how a step's update of it becomes READY in the arena.
//
//   on the processor   the state is the newest READY slot; a step's slot is written beside it by
//   all
//                      ranks of the node, each its share, and is the state of the next step.
//                      Nothing is copied; commit() returns when the step is READY.
//   on a device        each rank has the whole state in the device's memory and updates all of it
//   in
//                      place; a thread copies this rank's chunks into a slot while the next step
//                      computes. commit() returns at once; the step is READY, and so finished, when
//                      settle() has returned. Only one snapshot is ever under way.
//
// Called by the rank's thread in the order start_from, then per step begin, (compute,) settle,
// update, commit or abandon; settle again before anything is told of the step. Blocks until the
// given deadlines. kRestart and kStale as in snapshot.h, kNoSpace: the device's memory. Destroyed
// while a snapshot is under way it leaves the thread to itself, with arena and device: the process
// is to leave then.
#pragma once

#include <memory>

#include "checkpoint/snapshot.h"
#include "collectives/reducer.h"
#include "worker/device.h"
#include "worker/optimizer.h"
#include "worker/session.h"

namespace surefoot {

struct StateParts {  // all outlive the home
  const Session& session;
  const StateLayout& layout;
  const Optimizer& optimizer;
  const config::Optimizer& options;
  std::int64_t buffer_elements = 0;
  // Writes the buffers that are not floating point, as the last micro-batch left them, into a
  // state.
  std::function<void(std::span<std::byte>)> store_other_buffers;
};

struct StepUpdate {
  const Reducer& reducer;  // finished: its sum, and this rank's share of it
  StepScalars scalars;
  std::int64_t micro_batches = 1;
};

class StateHome {
 public:
  virtual ~StateHome() = default;

  // Goes on from this slot, READY and verified.
  virtual Status start_from(int slot, Time deadline) = 0;
  virtual Status begin(Step step, Time deadline) = 0;
  // The state that the next step computes with: host or device memory. Unchanged until update().
  [[nodiscard]] virtual std::span<const std::byte> bytes() const = 0;
  // Every committed step is READY.
  virtual Status settle(Time deadline) = 0;
  // The slot of the newest settled step.
  [[nodiscard]] virtual int slot() const = 0;
  virtual void update(const StepUpdate& update) = 0;
  virtual Status commit(std::int64_t samples, bool checkpoint, const StepRecord& record,
                        Time deadline) = 0;
  // The step that was begun is not applied.
  virtual void abandon() = 0;
};

[[nodiscard]] std::unique_ptr<StateHome> make_arena_state(StateParts parts);
// Blocks for the registration of the arena's pages with the device: seconds for a large one.
[[nodiscard]] Result<std::unique_ptr<StateHome>> make_device_state(StateParts parts, Device& device,
                                                                   Time deadline);

}  // namespace surefoot
