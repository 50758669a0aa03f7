// The training loop of one rank.
//
// A step: the leader of each node takes a slot; each rank runs its micro-batches while the reducer
// ships what is ready; the sums decide for all ranks alike (loss, norm, control word); each rank of
// a node updates its share of the elements from the read slot into the write slot; commit() makes
// the step READY, which is when it is finished. Data, gradients and updates depend on (job, step,
// micro-batch) only, so the bits depend on neither P nor the past.
//
// One thread. Returns when the job is done, drained or cannot go on.
#pragma once

#include "checkpoint/snapshot.h"
#include "collectives/communicator.h"
#include "collectives/reducer.h"
#include "worker/data.h"
#include "worker/evaluation.h"
#include "worker/fault_trigger.h"
#include "worker/model.h"
#include "worker/optimizer.h"
#include "worker/order.h"
#include "worker/schedule.h"
#include "worker/session.h"

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
  Status evaluate_unless_done();
  // False: the step was not finite and the state was rolled back.
  Result<bool> step(Step step, bool& drain);
  Status accumulate(Step step);
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
  Snapshotter snapshotter_;
  BatchBuffer batch_;
  std::vector<std::int64_t> indices_;
  std::vector<double> losses_;  // of the own micro-batches of the step in hand
  Evaluator evaluator_;
  std::optional<Step> rolled_back_;  // the step whose result was not finite once
  // Of the step in hand.
  std::array<double, kPhaseCount> phase_seconds_{};
  Phase phase_ = Phase::kStarting;
  Time phase_since_{};
};

}  // namespace surefoot
