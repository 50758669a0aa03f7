// The last step of a service's memory goes to the store: flush, and the end of the job with its
// export.
#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

#include "checkpoint/service_internal.h"
#include "common/log.h"

namespace surefoot {
namespace {

constexpr int kFinishTries = 4;
// Arbitrary: nodes that drain together are at the same step within less.
constexpr Duration kSharesPatience = std::chrono::seconds(5);
constexpr Duration kSharesPause = std::chrono::milliseconds(200);

// kRestart: the slot's bytes are no good, so that the last steps have to be made again.
Error bad_copy(const Error& why) {
  return error(why.code == Code::kCorrupt ? Code::kRestart : why.code, "{}", why.message);
}

}  // namespace

// ---- flush ----

// When all nodes go at once each writes its share of the step that they have drained to. Else, and
// when the others' shares do not come, this node writes the whole: what is left of a gang may be
// this node only.
bool ServiceImpl::shares(const SlotInfo& slot) const {
  if (!departure_ || !departure_->everyone || slot.of <= 1) return false;
  if (slot.attempt.value != arena_->gang().attempt) return false;
  return departure_->shared != slot.step || now() < departure_->alone_from;
}

// The others should need about as long as this node.
void ServiceImpl::note_missing_shares(Step step, Duration took) {
  if (!departure_) return;
  if (departure_->shared != step) {
    departure_->shared = step;
    departure_->alone_from = now() + std::max(took, kSharesPatience);
  }
  flush_failures_ = 0;
  flush_not_before_ = now() + kSharesPause;
}

bool ServiceImpl::newest_is_stored() const {
  const auto newest = arena_ ? arena_->newest_ready() : std::nullopt;
  return !newest || (verified_ && *verified_ >= arena_->slot(*newest).step);
}

void ServiceImpl::flush(const std::function<void(const Status&)>& then) {
  if (newest_is_stored()) return then({});
  const int slot = *arena_->newest_ready();
  if (!layout_) return then(error(Code::kInvalid, "the layout of the snapshots is not known"));
  if (!held_.hold(*arena_, slot))
    return then(error(Code::kRetry, "the newest snapshot is being replaced"));
  const SlotInfo info = arena_->slot(slot);
  flushing_ = info.step;
  uploading_bytes_ = 0;
  begin_urgent();
  spdlog::info("writing step {} to the store", info.step);
  UploadTask task{arena_, slot, *identity_of(info), 0, 1};
  task.look_first = memory_.hello().node_count() > 1;
  if (shares(info)) {
    task.part = info.part;
    task.of = info.of;
    task.part_stored = departure_->shared == info.step;
  }
  store_thread_.start([this, task, info, made = now(), then]() -> WorkThread::Outcome {
    const Time begun = now();
    UploadResult result = upload_store_.upload(task, store_control());
    Status copy;
    if (result.outcome == UploadOutcome::kGivenUp) copy = task.arena->verify(task.slot);
    return [this, task, info, made, begun, then, copy, result = std::move(result)] {
      flushing_.reset();
      end_urgent();
      note_stored(info, result, made, begun);
      after_flush(task, result, copy, then);
      if (result.outcome == UploadOutcome::kWaiting) note_missing_shares(info.step, now() - begun);
    };
  });
}

void ServiceImpl::after_flush(const UploadTask& task, const UploadResult& result,
                              const Status& copy, const std::function<void(const Status&)>& then) {
  const Step step = task.identity.step;
  const bool stored =
      result.outcome == UploadOutcome::kDurable || result.outcome == UploadOutcome::kNeedless;
  const bool is_bad = !copy && copy.error().code == Code::kCorrupt;
  let_go(task, stored, is_bad);
  if (stored) return then({});
  if (result.outcome == UploadOutcome::kGivenUp) {
    spdlog::warn("step {} cannot be stored: {}", step, result.reason);
  } else {
    waiting_for_ = result.reason;
  }
  if (is_bad) return flush(then);  // the next older one, then
  then(error(Code::kRetry, "step {} is not stored: {}", step, result.reason));
}

// What flush or finish held. Of an arena that is not in use any more nothing is to be kept.
void ServiceImpl::let_go(const UploadTask& task, bool stored, bool is_bad) {
  if (task.arena != arena_) return;
  if (is_bad) return held_.discard(*arena_, task.slot);
  if (stored) held_.release(*arena_, task.slot);
  held_.let_go(*arena_, task.slot, task.identity.attempt, task.identity.step);
}

// ---- finish ----

void ServiceImpl::finish(const Peer& peer, const service::Finish& request) {
  const Attempt newest = newest_attempt();
  if (request.attempt() != 0 && request.attempt() < newest.value)
    return refuse(peer, "stale", fmt::format("attempt {} has come after it", newest));
  const Step step{request.step()};
  if (request.elsewhere()) {
    finished_ = {step, Digest{}, {}};
    gang_expected_until_ = {};
    return done(peer);
  }
  std::optional<int> found;
  for (int slot = 0; arena_ && slot < kSlots; ++slot) {
    const SlotInfo info = arena_->slot(slot);
    if (info.state != SlotState::kReady || info.step != step) continue;
    if (!found || info.attempt > arena_->slot(*found).attempt) found = slot;
  }
  if (!found) return finish_from_store(peer, step);
  std::error_code ignored;
  const bool known = finished_ && finished_->step == step &&
                     finished_->digest == arena_->slot(*found).digest &&
                     std::filesystem::exists(settings_.final_folder / "model.safetensors", ignored);
  if (!known) return finish_from_slot(peer, *found, arena_->slot(*found));
  service::Reply message;
  *message.mutable_finish() = finished_->reply;
  reply(peer, message);
}

// On the store thread.
Result<Exported> ServiceImpl::store_and_export(const UploadTask& task, UploadResult& stored) {
  for (int number = 1;; ++number) {
    stored = upload_store_.upload(task, store_control());
    if (stored.outcome == UploadOutcome::kDurable || stored.outcome == UploadOutcome::kNeedless)
      break;
    if (const Status good = task.arena->verify(task.slot); !good) return bad_copy(good.error());
    if (number == kFinishTries || store_thread_.stopping())
      return error(Code::kRetry, "step {} is not stored: {}", task.identity.step, stored.reason);
    // What stands under this step's name and is no good would be in the way for ever.
    if (stored.outcome == UploadOutcome::kGivenUp)
      (void)upload_store_.remove_part(task, store_control());
    const Time again = now() + pause_before_try(number + 1);
    while (now() < again && !store_thread_.stopping())
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  auto outcome = export_model(task.identity.layout, task.arena->bytes(task.slot), settings_.job,
                              settings_.final_folder);
  if (!outcome) return outcome;
  // The bytes that were exported were good while they were read.
  if (const Status good = task.arena->verify(task.slot); !good) return bad_copy(good.error());
  return outcome;
}

void ServiceImpl::finish_from_slot(const Peer& peer, int slot, const SlotInfo& info) {
  const auto identity = identity_of(info);
  if (!identity || !held_.hold(*arena_, slot))
    return reply(peer, error(Code::kInvalid, "finish before hello"));
  begin_urgent();
  const UploadTask task{arena_, slot, *identity, 0, 1};
  store_thread_.start([this, peer, task, info, made = now()]() -> WorkThread::Outcome {
    const Time begun = now();
    UploadResult stored;
    auto outcome = store_and_export(task, stored);
    return [this, peer, task, info, made, begun, stored = std::move(stored),
            outcome = std::move(outcome)] {
      end_urgent();
      note_stored(info, stored, made, begun);
      let_go(task, outcome.has_value(), !outcome && outcome.error().code == Code::kRestart);
      exported(peer, info.step, info.digest, outcome);
    };
  });
}

// A job whose memory is gone, but whose last step is in the store.
void ServiceImpl::finish_from_store(const Peer& peer, Step step) {
  store_thread_.start([this, peer, step]() -> WorkThread::Outcome {
    auto outcome =
        upload_store_.export_step(step, settings_.job, settings_.final_folder, store_control());
    return [this, peer, step, outcome = std::move(outcome)] {
      exported(peer, step, Digest{}, outcome);
    };
  });
}

void ServiceImpl::exported(const Peer& peer, Step step, const Digest& digest,
                           const Result<Exported>& outcome) {
  if (!outcome) {
    spdlog::error("the job's end: {}", outcome.error().message);
    return reply(peer, outcome.error());
  }
  service::Reply message;
  message.mutable_finish()->set_weights_sha256(outcome->weights_sha256);
  message.mutable_finish()->set_state_sha256(outcome->state_sha256);
  message.mutable_finish()->set_folder(outcome->folder.string());
  finished_ = {step, digest, message.finish()};
  gang_expected_until_ = {};  // nobody has to come any more
  spdlog::info("exported step {} to {}: weights_sha256 {}", step, outcome->folder.string(),
               outcome->weights_sha256);
  reply(peer, message);
}

}  // namespace surefoot
