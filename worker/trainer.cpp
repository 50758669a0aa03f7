#include "worker/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "checkpoint/service_core.h"
#include "collectives/collectives.h"
#include "collectives/device_reducer.h"
#include "collectives/reduction_tree.h"
#include "common/log.h"
#include "worker/crash_report.h"

namespace surefoot {
namespace {

// A service writes its heartbeat several times a second; so long without one means that it is gone.
constexpr Duration kServiceSilence = std::chrono::seconds(3);
// The last checkpoint is written and read back while this is waited for.
constexpr Duration kFinishPatience = std::chrono::hours(1);

// Each bucket costs a GPU a few kernels and NCCL a group of messages, some ten microseconds each.
constexpr std::int64_t kLeastGpuBucket = 32 << 20;

ReducerOptions reducer_options(const Trainer::Parts& parts, std::int64_t micro_batches) {
  ReducerOptions options;
  options.gradient_elements = parts.model.gradient_elements();
  options.buffer_elements = parts.model.buffer_elements();
  options.micro_batches = static_cast<int>(micro_batches);
  std::int64_t bucket_bytes = parts.request.job->train().bucket_size();
  if (parts.device != nullptr && parts.device->facts().is_cuda)
    bucket_bytes = std::max(bucket_bytes, kLeastGpuBucket);
  options.bucket_elements = bucket_bytes / static_cast<std::int64_t>(sizeof(float));
  options.places = parts.session.places;
  if (parts.request.job->train().communicate_in() == config::Gradients::bf16)
    options.communicate_in = NumberFormat::kBf16;
  return options;
}

Result<std::unique_ptr<Reducer>> make_reducer(const Trainer::Parts& parts,
                                              std::int64_t micro_batches, Time deadline) {
  const ReducerOptions options = reducer_options(parts, micro_batches);
  const bool fast = parts.request.job->train().reduction() == config::Train::fast;
  if (parts.device != nullptr) {
    return (fast ? make_fast_device_reducer : make_device_reducer)(
        parts.communicator, *parts.device_stream, options, deadline);
  }
  if (fast) return make_fast_reducer(parts.communicator, options);
  return connect_tree_reducer(parts.communicator, options, deadline);
}

std::uint64_t first_word(const Digest& digest) {
  std::uint64_t word = 0;
  std::memcpy(&word, digest.bytes.data(), sizeof word);
  return word;
}

}  // namespace

Trainer::Trainer(Parts parts)
    : parts_(parts),
      train_(parts.request.job->train()),
      micro_batches_(train_.global_batch_size() / train_.micro_batch_size()),
      order_(static_cast<std::uint64_t>(train_.seed()), parts.dataset.size(Split::kTrain)),
      schedule_(Schedule::of(train_)),
      optimizer_(train_.optimizer(), parts.model.decayed()),
      batch_(parts.dataset, train_.micro_batch_size()),
      indices_(static_cast<std::size_t>(train_.micro_batch_size())),
      evaluator_(parts.dataset, train_.micro_batch_size(), train_.eval_batches()) {
  parts_.model.on_gradient_ready([this](ElementRange elements) { reducer_->ready(elements); });
}

// A supervisor sees a hang first and takes traces of all ranks: they must be there still.
Time Trainer::step_deadline() const {
  constexpr auto kForTraces = std::chrono::seconds(10);
  const auto limit = std::chrono::milliseconds(parts_.request.job->recovery().hang_timeout());
  return now() + limit + (parts_.request.supervised ? kForTraces : std::chrono::seconds(0));
}

void Trainer::enter(Step step, Phase phase) {
  const Time at = now();
  if (phase_since_ != Time{})
    phase_seconds_[static_cast<std::size_t>(phase_)] += seconds(at - phase_since_);
  phase_ = phase;
  phase_since_ = at;
  set_phase(parts_.session.arena->line(parts_.session.place.local_rank), phase, step);
  parts_.faults.enter(step, phase);
}

Result<Outcome> Trainer::run() {
  SUREFOOT_TRY(start());
  const Step last{train_.max_steps()};
  while (parts_.session.step < last) {
    bool drain = false;
    SUREFOOT_ASSIGN(const bool applied, step(parts_.session.step.next(), drain));
    if (drain) {
      SUREFOOT_TRY(state_->settle(step_deadline()));
      return Outcome::kDrained;
    }
    if (applied) SUREFOOT_TRY(evaluate_unless_done());
  }
  SUREFOOT_TRY(finish());
  return Outcome::kDone;
}

Status Trainer::start() {
  SUREFOOT_ASSIGN(reducer_, make_reducer(parts_, micro_batches_, step_deadline()));
  if (parts_.session.slot < 0) SUREFOOT_TRY(write_step_zero());
  SUREFOOT_TRY(agree(parts_.communicator, open_state(), step_deadline(), "the training state"));
  if (train_.reduction() != config::Train::fast &&
      parts_.request.job->model().kind() == config::Model::torchscript) {
    micro_batch_samples(order_, Step{1}, micro_batches_, 0, indices_);
    SUREFOOT_TRY(batch_.fill(parts_.dataset, Split::kTrain, indices_));
    SUREFOOT_TRY(agree(parts_.communicator,
                       check_repeatable(parts_.model, batch_, parts_.device, step_deadline()),
                       step_deadline(), "the check of the module"));
  }
  // The attempt before may have died between a finished step and its evaluation.
  if (parts_.session.step.value > 0) SUREFOOT_TRY(evaluate_unless_done());
  return {};
}

Status Trainer::open_state() {
  StateParts parts{parts_.session,
                   parts_.model.layout(),
                   optimizer_,
                   train_.optimizer(),
                   parts_.model.buffer_elements(),
                   [this](std::span<std::byte> state) { parts_.model.store_other_buffers(state); }};
  if (parts_.device == nullptr) {
    state_ = make_arena_state(std::move(parts));
  } else {
    SUREFOOT_ASSIGN(state_, make_device_state(std::move(parts), *parts_.device, step_deadline()));
  }
  SUREFOOT_TRY(state_->start_from(parts_.session.slot, step_deadline()));
  parts_.model.bind_state(state_->bytes());
  return {};
}

// Step 0 goes into the arena the same way as every other step.
Status Trainer::write_step_zero() {
  const Place& place = parts_.session.place;
  Snapshotter snapshotter(*parts_.session.arena, parts_.session.attempt, place.local_rank,
                          place.local_size);
  SUREFOOT_TRY(snapshotter.begin(Step{0}, step_deadline()));
  if (leads()) SUREFOOT_TRY(parts_.model.write_initial_state(snapshotter.write_bytes()));
  StepRecord record;
  record.attempt = parts_.session.attempt.value;
  SUREFOOT_TRY(snapshotter.commit(0, false, record, step_deadline()));
  parts_.session.slot = snapshotter.read_slot();
  return {};
}

Result<bool> Trainer::step(Step step, bool& drain) {
  phase_seconds_.fill(0);
  enter(step, Phase::kData);
  if (leads() && now() - parts_.session.arena->last_service_heartbeat() > kServiceSilence)
    parts_.service_missing();
  SUREFOOT_TRY(state_->begin(step, step_deadline()));
  SUREFOOT_TRY(accumulate(step));
  SUREFOOT_TRY(settle(step));
  enter(step, Phase::kReduction);
  SUREFOOT_ASSIGN(const Decision decision, reduce(step));
  if (!std::isfinite(decision.loss) || !std::isfinite(decision.norm)) {
    state_->abandon();
    SUREFOOT_TRY(handle_not_finite(step, decision));
    return false;
  }
  enter(step, Phase::kUpdate);
  update(step, decision);
  enter(step, Phase::kSnapshot);
  note_busy_time();
  const std::int64_t samples = step.value * train_.global_batch_size();
  SUREFOOT_TRY(
      state_->commit(samples, decision.checkpoint, record_of(step, decision), step_deadline()));
  parts_.session.step = step;
  parts_.session.samples = samples;
  parts_.model.bind_state(state_->bytes());
  drain = decision.drain && step.value < train_.max_steps();
  return true;
}

// Where one rank is slower than the others they wait for it: of its own work alone that can be
// seen.
void Trainer::note_busy_time() {
  const auto spent = [this](Phase phase) {
    return phase_seconds_[static_cast<std::size_t>(phase)];
  };
  const double busy = spent(Phase::kForwardBackward) + spent(Phase::kUpdate);
  parts_.session.arena->line(parts_.session.place.local_rank)
      .busy_ns.store(static_cast<std::int64_t>(busy * 1e9), std::memory_order_relaxed);
}

Status Trainer::accumulate(Step step) {
  reducer_->begin_step();
  const TreeNode mine = micro_batches_of(parts_.communicator.rank(), parts_.communicator.size(),
                                         static_cast<int>(micro_batches_));
  const std::int64_t buffers = parts_.model.buffer_elements();
  for (int m = mine.begin; m < mine.end; ++m) {
    if (m > mine.begin) enter(step, Phase::kData);
    micro_batch_samples(order_, step, micro_batches_, m, indices_);
    SUREFOOT_TRY(batch_.fill(parts_.dataset, Split::kTrain, indices_));
    enter(step, Phase::kForwardBackward);
    const std::span<float> vector = reducer_->begin_micro_batch();
    parts_.model.bind_gradients(
        vector.first(static_cast<std::size_t>(parts_.model.gradient_elements())));
    SUREFOOT_TRY(parts_.model.micro_batch(
        batch_, generator_seed(static_cast<std::uint64_t>(train_.seed()), step, m)));
    // Also without buffers to reduce: it checks those that must come out equal.
    std::span<float> changes;
    if (buffers > 0) {
      changes = vector.subspan(static_cast<std::size_t>(reducer_->buffer_begin()),
                               static_cast<std::size_t>(buffers));
    }
    SUREFOOT_TRY(parts_.model.take_buffer_changes(changes));
    reducer_->end_micro_batch();
  }
  // A device has only been told so far.
  if (parts_.device != nullptr)
    SUREFOOT_TRY(parts_.device->wait(step_deadline(), "forward and backward"));
  SUREFOOT_ASSIGN(losses_, parts_.model.take_losses());
  return {};
}

// On a device the snapshot of the step before was on its way meanwhile. It has to be READY before
// its digest is compared, and before anything overwrites what it copies.
Status Trainer::settle(Step step) {
  if (parts_.device == nullptr) return {};
  enter(step, Phase::kSnapshot);
  return state_->settle(step_deadline());
}

Result<Trainer::Decision> Trainer::reduce(Step step) {
  ControlWord word;
  word.bits = parts_.session.arena->requests().load(std::memory_order_relaxed);
  if (drain_signalled()) word.bits |= kRequestDrain;
  // The state the step started from is compared too: a node whose copy is not that of rank 0 must
  // not go on.
  SUREFOOT_ASSIGN(const Digest other_buffers, parts_.model.other_buffers_digest());
  word.must_match = {first_word(other_buffers),
                     first_word(parts_.session.arena->slot(state_->slot()).digest)};
  SUREFOOT_ASSIGN(const ReducedStep reduced, reducer_->finish(word, losses_, step_deadline()));
  if (!reduced.mismatched[0].empty()) {
    return error(Code::kInvalid,
                 "rank {}: buffers that are not floating point differ from those of rank 0: {}",
                 fmt::join(reduced.mismatched[0], ", "),
                 fmt::join(parts_.model.other_buffers(), " "));
  }
  if (!reduced.mismatched[1].empty()) {
    return error(Code::kRestart, "rank {}: the state before step {} differs from that of rank 0",
                 fmt::join(reduced.mismatched[1], ", "), step);
  }
  Decision decision;
  decision.loss = reduced.loss_sum / static_cast<double>(micro_batches_);
  decision.norm = gradient_norm(reduced.square_sum, micro_batches_);
  decision.drain = (reduced.control & kRequestDrain) != 0;
  // Who leaves on request leaves a checkpoint behind, unless a node still writes the last one.
  const bool wanted = (reduced.control & (kRequestCheckpoint | kRequestDrain)) != 0;
  decision.checkpoint = wanted && (reduced.control & kUploadBusy) == 0;
  return decision;
}

void Trainer::update(Step step, const Decision& decision) {
  StepScalars scalars;
  scalars.step = step;
  scalars.learning_rate = schedule_.learning_rate(step);
  scalars.gradient_scale = gradient_scale(decision.norm, train_.grad_clip(), micro_batches_);
  state_->update({*reducer_, scalars, micro_batches_});
}

// A step that is not finite is never applied. The run is reproducible, so the same again is not
// chance.
Status Trainer::handle_not_finite(Step step, const Decision& decision) {
  const std::string what = fmt::format("step {} is not finite (loss {}, gradient norm {})", step,
                                       decision.loss, decision.norm);
  if (train_.on_nan() != config::Train::rollback) {
    return error(Code::kInvalid,
                 "{}; it was not applied. Lower the learning rate, or set train.on_nan: rollback",
                 what);
  }
  if (rolled_back_)
    return error(Code::kInvalid, "{}, again after a rollback: it is reproducible", what);
  rolled_back_ = step;
  if (parts_.communicator.rank() == 0)
    spdlog::warn("{}: rolling back to an older checkpoint", what);
  SUREFOOT_TRY(
      roll_back(parts_.communicator, parts_.request, parts_.session, step, step_deadline()));
  SUREFOOT_TRY(state_->start_from(parts_.session.slot, step_deadline()));
  parts_.model.bind_state(state_->bytes());
  return {};
}

StepRecord Trainer::record_of(Step step, const Decision& decision) const {
  StepRecord record;
  record.attempt = parts_.session.attempt.value;
  record.step = step.value;
  record.samples = step.value * train_.global_batch_size();
  record.loss = decision.loss;
  record.learning_rate = schedule_.learning_rate(step);
  record.gradient_norm = decision.norm;
  record.checkpoint = decision.checkpoint ? 1 : 0;
  std::copy(phase_seconds_.begin(), phase_seconds_.end(), record.phase_seconds);
  return record;
}

Status Trainer::evaluate_unless_done() {
  const Step step = parts_.session.step;
  const bool due = (train_.eval_every() > 0 && step.value % train_.eval_every() == 0) ||
                   step.value == train_.max_steps();
  if (!due || !evaluator_.has_data()) return {};
  SUREFOOT_TRY(state_->settle(step_deadline()));
  bool known = false;
  if (parts_.communicator.rank() == 0) {
    std::uint64_t from = 0;
    for (const StepRecord& record : parts_.session.arena->read(from)) {
      known = known || (record.kind == StepRecord::kEvaluation && record.step == step.value);
    }
  }
  SUREFOOT_ASSIGN(const std::string answer, broadcast(parts_.communicator, known ? "known" : "", 0,
                                                      step_deadline(), "whether to evaluate"));
  return answer.empty() ? evaluate(step) : Status();
}

Status Trainer::evaluate(Step step) {
  enter(step, Phase::kEvaluation);
  SUREFOOT_ASSIGN(const Evaluation result,
                  evaluator_.evaluate(parts_.model, parts_.communicator, step_deadline(),
                                      [&] { enter(step, Phase::kEvaluation); }));
  if (parts_.communicator.rank() != 0) return {};
  StepRecord record;
  record.kind = StepRecord::kEvaluation;
  record.attempt = parts_.session.attempt.value;
  record.step = step.value;
  record.samples = result.samples;
  record.loss = result.loss;
  record.accuracy = result.accuracy;
  record.finished_ns = now().time_since_epoch().count();
  parts_.session.arena->push(record);
  return {};
}

Status Trainer::finish() {
  enter(parts_.session.step, Phase::kFinishing);
  SUREFOOT_TRY(state_->settle(step_deadline()));
  // One node stores and exports; then the services of the others hear that they are free to go.
  const bool first = parts_.communicator.rank() == 0;
  SUREFOOT_TRY(agree(parts_.communicator, first ? store_and_export() : Status(),
                     now() + kFinishPatience, "the last checkpoint"));
  return agree(parts_.communicator, leads() && !first ? tell_finish(true) : Status(),
               step_deadline(), "the services' end");
}

// A store that is away may come back. With a supervisor that is its matter: the steps are done, and
// nothing of them is in this process.
Status Trainer::store_and_export() {
  const Time limit = now() + kFinishPatience;
  for (int number = 1;; ++number) {
    const Status told = tell_finish(false);
    if (told || told.error().code != Code::kRetry) return told;
    spdlog::warn("{}", told.error().message);
    if (parts_.request.supervised) return {};
    const Time again = now() + pause_before_try(number + 1);
    if (again > limit) return told;
    std::this_thread::sleep_until(again);
  }
}

Status Trainer::tell_finish(bool elsewhere) {
  ServiceClient client(parts_.session.arena_path, parts_.request.job_id);
  service::Request request;
  request.mutable_finish()->set_step(parts_.session.step.value);
  request.mutable_finish()->set_elsewhere(elsewhere);
  request.mutable_finish()->set_attempt(parts_.session.attempt.value);
  SUREFOOT_ASSIGN(const auto reply, client.call(std::move(request), now() + kFinishPatience));
  if (elsewhere) return {};
  spdlog::info("done: weights_sha256 {} state_sha256 {} in {}", reply.finish().weights_sha256(),
               reply.finish().state_sha256(), reply.finish().folder());
  return {};
}

}  // namespace surefoot
