// The training loop of one rank.
//
// A step: each rank runs its micro-batches while the reducer ships what is ready; the sums decide
// for all ranks alike (loss, norm, control word); the update makes the next state, and commit()
// brings it into the arena (state_home.h). When it is READY there, the step is finished: on the
// processor at once, on a device while the next step computes. Data, gradients and updates depend
// on (job, step, micro-batch) only, so the bits depend on neither P nor the past.
//
// One thread. Returns when the job is done, drained or cannot go on.
#pragma once

#include "collectives/communicator.h"
#include "collectives/reducer.h"
#include "worker/data.h"
#include "worker/device.h"
#include "worker/evaluation.h"
#include "worker/fault_trigger.h"
#include "worker/model.h"
#include "worker/optimizer.h"
#include "worker/order.h"
#include "worker/schedule.h"
#include "worker/session.h"
#include "worker/state_home.h"

namespace surefoot {

enum class Outcome {
  kDone,     // max_steps is READY, evaluated, stored and exported
  kDrained,  // left after a finished step, as asked
};

class Trainer {
 public:
  struct Parts {  // all outlive the trainer
    Communicator& communicator;
    const JoinRequest& request;
    Session& session;
    Model& model;
    const Dataset& dataset;
    FaultTrigger& faults;
    Device* device = nullptr;  // null: the processor
    DeviceStream* device_stream = nullptr;
    // Called by local rank 0 before each step when the service has shown no heartbeat for a while.
    // Without a supervisor it starts a new one.
    std::function<void()> service_missing;
  };
  explicit Trainer(Parts parts);

  // Errors: kRestart (a peer is missing; named), kInvalid (not finite, buffers differ, ...).
  [[nodiscard]] Result<Outcome> run();

 private:
  struct Decision {  // what the sums of a step say, the same on all ranks
    double loss = 0;
    double norm = 0;
    bool checkpoint = false;
    bool drain = false;
  };

  Status start();
  Status write_step_zero();
  Status open_state();
  Status evaluate_unless_done();
  // False: the step was not finite and the state was rolled back.
  Result<bool> step(Step step, bool& drain);
  Status accumulate(Step step);
  Status settle(Step step);
  Result<Decision> reduce(Step step);
  void update(Step step, const Decision& decision);
  Status handle_not_finite(Step step, const Decision& decision);
  Status evaluate(Step step);
  Status finish();
  Status store_and_export();
  Status tell_finish(bool elsewhere);

  void enter(Step step, Phase phase);
  void note_busy_time();
  [[nodiscard]] bool leads() const { return parts_.session.place.local_rank == 0; }
  [[nodiscard]] Time step_deadline() const;
  [[nodiscard]] StepRecord record_of(Step step, const Decision& decision) const;

  Parts parts_;
  const config::Train& train_;
  std::int64_t micro_batches_;  // M
  SampleOrder order_;
  Schedule schedule_;
  Optimizer optimizer_;
  std::unique_ptr<Reducer> reducer_;  // from start() on: all ranks make it together
  std::unique_ptr<StateHome> state_;  // from start() on
  BatchBuffer batch_;
  std::vector<std::int64_t> indices_;
  Evaluator evaluator_;
  std::optional<Step> rolled_back_;  // the step whose result was not finite once
  // Of the step in hand.
  std::vector<double> losses_;  // of the own micro-batches
  std::array<double, kPhaseCount> phase_seconds_{};
  Phase phase_ = Phase::kStarting;
  Time phase_since_{};
};

}  // namespace surefoot
