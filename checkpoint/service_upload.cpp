// What a service does with its store: checkpoints, and its own end.
#include <algorithm>

#include "checkpoint/service_internal.h"
#include "common/log.h"

namespace surefoot {
namespace {

constexpr Duration kLookPatience = std::chrono::minutes(2);
constexpr Duration kStorePatience = std::chrono::minutes(20);  // without any progress
// While other nodes are still writing: at first, then longer and longer.
constexpr Duration kPublishPause = std::chrono::milliseconds(200);
constexpr int kLongestPublishPause = 5;                          // doublings of it
constexpr Duration kPublishPatience = std::chrono::minutes(10);  // as Rule (delete) for such sets
// An unsupervised gang that is gone without the job being done: mpirun may be run again at once.
constexpr Duration kGraceAfterGang = std::chrono::seconds(5);
constexpr Duration kGraceAfterQuestion = std::chrono::seconds(5);

bool is_slot(const SlotInfo& info, Attempt attempt, Step step) {
  return info.state == SlotState::kReady && info.attempt == attempt && info.step == step;
}

}  // namespace

// For work on the store thread: between two chunks it is held to its share of a processor.
Control ServiceImpl::store_control() {
  Control control;
  control.patience = kStorePatience;
  control.stop = [this] { return store_thread_.stopping(); };
  control.progress = [this](std::int64_t bytes) {
    uploading_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    throttle_.pause([this] { return store_thread_.stopping(); });
  };
  return control;
}

Control ServiceImpl::look_control() {
  Control control = store_control();
  control.deadline = now() + kLookPatience;
  return control;
}

void ServiceImpl::begin_urgent() {
  ++urgent_;
  throttle_.set_free(true);
}

void ServiceImpl::end_urgent() {
  --urgent_;
  throttle_.set_free(urgent_ > 0 || departure_);
}

// What the store has, at the start of a life; sets left half published are settled.
void ServiceImpl::look_at_store() {
  const int part = memory_.hello().node_index();
  const int of = std::max(1, memory_.hello().node_count());
  store_thread_.start([this, part, of]() -> WorkThread::Outcome {
    const Control control = look_control();
    auto view = upload_store_.look(control);
    if (view) {
      for (const std::string& line : upload_store_.settle_left_overs(part, of, control))
        spdlog::info("{}", line);
      view = upload_store_.look(control);
    }
    return [this, view = std::move(view)] {
      if (!view) {
        spdlog::warn("cannot look at the store: {}", view.error().message);
        waiting_for_ = view.error().message;
      }
      // Known or not, the first upload will tell; waiting for it would mean no checkpoint at all.
      store_seen_ = true;
      if (view) note_view(*view);
    };
  });
}

// The newest whole one is what the next is timed by; durable is what was once read back.
void ServiceImpl::note_view(const StoreView& view) {
  if (view.whole.empty()) return;
  const Time made = now() - view.whole.front().age;
  newest_checkpoint_ = std::max(newest_checkpoint_.value_or(made), made);
  for (const StoreView::Entry& entry : view.whole) {
    if (history_.knows(entry.step, entry.attempt)) return set_durable(entry.step, entry.age);
  }
}

void ServiceImpl::set_durable(Step step, Duration age) {
  if (durable_ && *durable_ >= step) return;
  durable_ = step;
  durable_at_ = now() - age;
  newest_checkpoint_ = std::max(newest_checkpoint_.value_or(durable_at_), durable_at_);
}

std::optional<CheckpointIdentity> ServiceImpl::identity_of(const SlotInfo& slot) const {
  if (!layout_) return std::nullopt;
  CheckpointIdentity identity;
  identity.job_id = settings_.job_id;
  identity.step = slot.step;
  identity.attempt = slot.attempt;
  identity.samples = slot.samples;
  identity.layout = *layout_;
  identity.training_hash = Digest::from_hex(memory_.hello().training_hash()).value_or(Digest{});
  identity.training_lines = {memory_.hello().training_lines().begin(),
                             memory_.hello().training_lines().end()};
  identity.numerics_id = memory_.hello().numerics_id();
  return identity;
}

// A checkpoint that did not load counts no more, or nothing up to its step would be stored again.
void ServiceImpl::distrust(Step step) {
  if (verified_ && *verified_ <= step) verified_.reset();
  if (!durable_ || *durable_ > step) return;
  durable_.reset();
  newest_checkpoint_.reset();
  store_thread_.start([this, step]() -> WorkThread::Outcome {
    upload_store_.distrust(step);
    auto view = upload_store_.look(look_control());
    if (view) std::erase_if(view->whole, [&](const auto& entry) { return entry.step >= step; });
    return [this, view = std::move(view)] {
      if (view) note_view(*view);
    };
  });
}

// ---- checkpoints ----

// Of an earlier gang: who has not written its part of that set by now may be gone for good. It is
// tried once more and then given up, or it would keep the new gang from its checkpoints.
bool ServiceImpl::is_left_behind(const Upload& upload) const {
  return upload.attempt.value < arena_->gang().attempt;
}

// Every pinned slot is to be written; the newest first, as it makes the others needless.
void ServiceImpl::look_at_slots() {
  if (!arena_) return;
  std::optional<int> next;
  bool busy = in_hand_.has_value();
  for (int slot = 0; slot < kSlots; ++slot) {
    const SlotInfo info = arena_->slot(slot);
    const auto known = uploads_.find(slot);
    const bool pinned = info.state == SlotState::kReady && info.pinned;
    busy = busy || pinned;
    if (known != uploads_.end() &&
        (!pinned || !is_slot(info, known->second.attempt, known->second.step)))
      uploads_.erase(known);
    if (!pinned || held_.contains(slot)) continue;
    auto [entry, fresh] = uploads_.try_emplace(slot, Upload{info.attempt, info.step, now(), {}, 0});
    if (fresh) newest_checkpoint_ = entry->second.since;
    const Upload& upload = entry->second;
    const bool last_look =
        upload.waits > 0 && is_left_behind(upload) && upload.tried_in <= upload.attempt;
    if (now() < upload.next && !last_look) continue;
    if (!next || info.step > uploads_.at(*next).step) next = slot;
  }
  // The bits follow from the slots, whoever has set them in an earlier life.
  if (busy) {
    arena_->requests().fetch_or(kUploadBusy);
  } else {
    arena_->requests().fetch_and(~std::uint64_t{kUploadBusy});
  }
  if (next && !in_hand_ && store_thread_.idle()) start_upload(*next);
}

void ServiceImpl::start_upload(int slot) {
  const SlotInfo info = arena_->slot(slot);
  const auto identity = identity_of(info);
  if (!identity) return;  // a layout comes with the next hello
  in_hand_ = info.step;
  uploading_bytes_ = 0;
  if (uploads_.at(slot).begun == Time{}) {
    uploads_.at(slot).begun = now();
    uploads_.at(slot).slept = throttle_.slept();
  }
  uploads_.at(slot).tried_in = Attempt{arena_->gang().attempt};
  const Upload upload = uploads_.at(slot);
  const UploadTask task{arena_, slot, *identity, info.part, info.of, upload.part_stored};
  store_thread_.start([this, task, upload]() -> WorkThread::Outcome {
    const Duration before = thread_processor_time();
    UploadResult result = upload_store_.upload(task, store_control());
    const Duration used = thread_processor_time() - before;
    return [this, arena = task.arena, slot = task.slot, upload, used, result = std::move(result)] {
      in_hand_.reset();
      if (arena != arena_) return;
      if (const auto known = uploads_.find(slot); known != uploads_.end())
        known->second.processor_time += used;
      uploaded(slot, upload, result);
    };
  });
}

// After a try that failed its time says more of the pauses than of the store.
void ServiceImpl::note_cost(const Upload& upload) {
  if (upload.failures > 0 || upload.begun == Time{}) return;
  const Time ended = now();
  storing_ = ended - upload.begun;
  const double busy = seconds(*storing_ - (throttle_.slept() - upload.slept));
  const double bytes =
      static_cast<double>(arena_->spec().state_bytes) / std::max(1, memory_.hello().node_count());
  if (busy > 0) stored_rate_ = bytes / busy;
  meter_.upload_ended(upload.begun, ended, upload.processor_time);
}

// `made`: when the step was to become a checkpoint; `begun`: its first byte was written.
void ServiceImpl::note_stored(const SlotInfo& slot, const UploadResult& result, Time made,
                              Time begun) {
  for (const std::string& note : result.notes) spdlog::info("{}", note);
  if (result.bytes_per_second > 0) upload_rate_ = result.bytes_per_second;
  if (result.part_stored) stored_part_ = std::max(stored_part_.value_or(slot.step), slot.step);
  if (result.outcome != UploadOutcome::kDurable) return;
  store_failures_ = 0;
  waiting_for_.clear();
  set_durable(slot.step, now() - made);
  verified_ = std::max(verified_.value_or(slot.step), slot.step);
  history_.add({slot.step, slot.attempt, seconds(now() - begun), memory_.hello().local_size()});
  save_history();
  spdlog::info(
      "checkpoint of step {} attempt {} is in the store, verified: state digest {}, {:.1f} MB/s",
      slot.step, slot.attempt, slot.digest.hex(), upload_rate_ / 1e6);
}

void ServiceImpl::uploaded(int slot, const Upload& upload, const UploadResult& result) {
  const SlotInfo info = arena_->slot(slot);
  const auto known = uploads_.find(slot);
  if (known == uploads_.end() || !is_slot(info, upload.attempt, upload.step)) return;
  if (result.outcome == UploadOutcome::kDurable) note_cost(known->second);
  note_stored(info, result, upload.since, upload.begun);
  if (result.outcome == UploadOutcome::kDurable || result.outcome == UploadOutcome::kNeedless) {
    uploads_.erase(known);
    return held_.release(*arena_, slot);
  }
  const bool waited = (upload.waits > 0 && now() - upload.waiting_since > kPublishPatience) ||
                      (is_left_behind(upload) && upload.tried_in > upload.attempt);
  if (result.outcome == UploadOutcome::kGivenUp ||
      (result.outcome == UploadOutcome::kWaiting && waited)) {
    spdlog::warn("the checkpoint of step {} is given up: {}", upload.step, result.reason);
    uploads_.erase(known);
    newest_checkpoint_ = durable_ ? std::optional(durable_at_) : std::nullopt;
    store_not_before_ = now() + pause_before_try(2);
    return held_.release(*arena_, slot);
  }
  try_again_later(slot, known->second, result);
}

void ServiceImpl::try_again_later(int slot, Upload& upload, const UploadResult& result) {
  const bool waiting = result.outcome == UploadOutcome::kWaiting;
  // After a failure it is not known what the store still has.
  upload.part_stored = waiting && result.part_stored;
  if (waiting) {
    waiting_for_ = result.reason;
    upload.next = now() + kPublishPause * (1 << std::min(upload.waits, kLongestPublishPause));
    if (upload.waits++ == 0) upload.waiting_since = now();
    return;
  }
  if (waiting_for_ != result.reason)
    spdlog::warn("the checkpoint of step {} is not stored, training goes on: {}", upload.step,
                 result.reason);
  waiting_for_ = result.reason;
  upload.failures = ++store_failures_;
  upload.next = now() + pause_before_try(store_failures_ + 1);
  take_newer_instead(slot, upload);
}

// While the store is away training has gone on: what is written when it comes back should be the
// newest. With several nodes the step was agreed on by all and cannot be changed by one.
void ServiceImpl::take_newer_instead(int slot, const Upload& upload) {
  if (memory_.hello().node_count() > 1) return;
  const auto newest = arena_->newest_ready();
  if (!newest || *newest == slot || arena_->slot(*newest).step <= upload.step) return;
  if (held_.contains(*newest) || !arena_->pin(*newest)) return;
  const SlotInfo info = arena_->slot(*newest);
  uploads_[*newest] = {info.attempt, info.step, now(), upload.next, upload.failures};
  uploads_.erase(slot);
  held_.release(*arena_, slot);
}

// ---- the service's own end ----

void ServiceImpl::shutdown(const Peer& peer, const service::Shutdown& request) {
  if (request.attempt() != 0 && request.attempt() < newest_attempt().value)
    return refuse(peer, "stale", fmt::format("attempt {} has come after it", newest_attempt()));
  const bool remove = request.remove();
  const bool end = remove || !request.flush();
  const auto leave = [this, peer, remove, end](const Status& flushed) {
    if (!flushed) return reply(peer, flushed.error());
    if (remove && (workers_alive() || launches_.anything_runs()))
      return reply(peer, error(Code::kRetry, "workers are at work: end them first"));
    done(peer);
    if (!end) return;
    removing_ = remove;
    ended_ = remove ? "told to end and to free the snapshots" : "told to end";
  };
  if (request.flush()) return flush(leave);
  leave({});
}

LifeFacts ServiceImpl::life_facts() const {
  LifeFacts facts;
  facts.now = now();
  facts.gang_expected = facts.now < gang_expected_until_;
  facts.supervised = supervised_;
  facts.finished = finished_.has_value();
  facts.unflushed = !newest_is_stored();
  facts.flush_wanted =
      !keeps_to_memory() &&
      (flush_wanted_ || (!supervised_ && facts.now - last_visit_ > kGraceAfterGang));
  facts.drain_asked = drain_asked_;
  facts.last_visit = last_visit_;
  facts.last_supervisor = last_supervisor_;
  facts.last_step = last_step_;
  facts.lease = std::chrono::milliseconds(settings_.job.recovery().lease());
  if (arena_ && !departure_ && memory_.hello().node_count() > 1) {
    facts.flush_turn =
        flush_turn(memory_.hello().node_index(), arena_->spec().state_bytes, stored_rate_);
  }
  facts.flush_not_before = flush_not_before_;
  facts.arena_ttl = std::chrono::milliseconds(settings_.job.checkpoint().arena_ttl());
  facts.supervisor_timeout =
      std::chrono::milliseconds(settings_.job.recovery().supervisor_timeout());
  return facts;
}

void ServiceImpl::decide_about_life() {
  const bool at_work = workers_alive();
  watch(at_work);
  if (at_work) {
    last_visit_ = now();
    gang_expected_until_ = {};
  }
  LifeFacts facts = life_facts();
  facts.workers = at_work;
  facts.launched = launches_.anything_runs();
  if (facts.launched) last_visit_ = facts.now;
  const LifeDecision decision = decide_life(facts);
  if (!endings_.empty()) return;
  // What is in hand may be the very thing that hangs.
  const bool idle = gang_thread_.idle() && store_thread_.idle();
  if (!idle && decision.action != LifeAction::kEndGang) return;
  switch (decision.action) {
    case LifeAction::kGoOn:
      return;
    case LifeAction::kEndGang:
      spdlog::warn("ending the gang here: {}", decision.reason);
      return begin_ending(newest_attempt().next(), std::nullopt);
    case LifeAction::kAskDrain:
      spdlog::warn("asking the workers to leave: {}", decision.reason);
      drain_asked_ = flush_wanted_ = true;
      if (arena_) arena_->requests().fetch_or(kRequestDrain);
      return;
    case LifeAction::kFlush:
      return flush([this](const Status& flushed) { flush_ended(flushed); });
    case LifeAction::kFree:
      // Who has just asked whether there is a service may be about to use it.
      if (facts.now - last_question_ < kGraceAfterQuestion) return;
      // A damaged arena cannot be flushed; its folder still tells that the job has been further.
      removing_ = !arena_damaged_;
      ended_ = decision.reason;
      return;
  }
}

}  // namespace surefoot
