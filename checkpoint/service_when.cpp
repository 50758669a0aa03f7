// When a service writes to its store: the interval, what is saved before a deadline, and what it
// remembers for both.
#include <algorithm>
#include <thread>
#include <utility>

#include "checkpoint/service_internal.h"
#include "common/log.h"

namespace surefoot {
namespace {

constexpr Duration kSaveHistory = std::chrono::minutes(1);
constexpr Duration kLastSave = std::chrono::seconds(2);
// A supervisor that sees the notices of several machines says meanwhile that all of them go.
constexpr Duration kWordOfOthers = std::chrono::seconds(5);

}  // namespace

// ---- the interval ----

void ServiceImpl::read_step_times() {
  if (!arena_) return;
  for (const StepRecord& record : arena_->read(meter_from_)) {
    const Time finished{std::chrono::nanoseconds(record.finished_ns)};
    if (record.kind == StepRecord::kTrain) {
      last_step_ = std::max(last_step_, std::min(finished, now()));
      meter_.step_finished(record.attempt, record.step, finished);
    } else {
      meter_.pause();
    }
  }
}

void ServiceImpl::decide_about_interval() {
  read_step_times();
  IntervalFacts facts;
  facts.ceiling = std::chrono::milliseconds(settings_.job.checkpoint().interval());
  facts.cost = meter_.cost();
  facts.storing = storing_;
  facts.history = history_.losses;
  const bool first = interval_.reason.empty();
  IntervalDecision next = decide_interval(facts);
  if (first || is_news(interval_told_, next)) {
    spdlog::info("checkpoints: {}", next.reason);
    interval_told_ = next;
  }
  interval_ = std::move(next);
}

void ServiceImpl::decide_about_checkpoint() {
  if (!arena_ || departure_) return;
  CheckpointFacts facts;
  facts.now = now();
  facts.interval = interval_.interval;
  facts.store_seen = store_seen_;
  facts.busy = (arena_->requests().load() & kUploadBusy) != 0;
  facts.newest = newest_checkpoint_;
  facts.not_before = store_not_before_;
  if (decide_checkpoint(facts).ask) arena_->requests().fetch_or(kRequestCheckpoint);
}

// ---- before a deadline ----

void ServiceImpl::notice(const Peer& peer, const service::Notice& notice) {
  const double left = notice.deadline_seconds();
  if (!(left >= 0 && left < 1e6))
    return reply(peer, error(Code::kInvalid, "a notice has a deadline in seconds"));
  // A supervisor's word about a notice that has come here already: still the same one.
  const bool known = departure_ && notice.source().empty() && notice.id().empty();
  depart(from_seconds(left), notice.everyone(), known ? departure_->source : notice.source(),
         known ? departure_->id : notice.id());
  done(peer);
}

// By value, as they may be those of the departure before.
void ServiceImpl::depart(Duration left, bool everyone, std::string source, std::string id) {
  spdlog::warn("this machine goes in {:.1f} s{}: draining", seconds(left),
               everyone ? "" : ", others stay");
  Departure departure;
  departure.source = std::move(source);
  departure.id = std::move(id);
  departure.deadline = now() + left;
  departure.everyone = everyone;
  departure_ = std::move(departure);
  // The last step is stored when the workers are gone, unless others hold it.
  flush_wanted_ = everyone || memory_.hello().node_count() <= 1;
  drain_asked_ = true;
  if (arena_) arena_->requests().fetch_or(kRequestDrain);
  decide_about_departure();
}

// Watchers know of this machine alone: whether all go, the supervisor says with a message. A later
// gang is not drained by a notice that was there before it.
void ServiceImpl::look_at_notices() {
  if (!settings_.notices) return;
  notices_ = settings_.notices(is_safe_to_go());
  if (notices_.checkpoint && arena_) arena_->requests().fetch_or(kRequestCheckpoint);
  if (notices_.leave) return obey(*notices_.leave);
  const auto called_off = std::exchange(obeyed_, std::nullopt);
  if (!called_off || !departure_ || departure_->source != called_off->source ||
      departure_->id != called_off->id)
    return;
  spdlog::info("this machine stays: the notice was called off");
  departure_.reset();
  flush_wanted_ = false;
  throttle_.set_free(urgent_ > 0);
}

void ServiceImpl::obey(const MachineNotices::Leave& leave) {
  const bool known = obeyed_ && obeyed_->source == leave.source && obeyed_->id == leave.id;
  if (known && leave.deadline >= obeyed_->deadline) return;
  obeyed_ = leave;
  const Time at = now();
  Time deadline = std::max(leave.deadline, at);
  if (departure_ && departure_->deadline > at) deadline = std::min(deadline, departure_->deadline);
  const bool everyone = memory_.hello().node_count() <= 1 || (departure_ && departure_->everyone);
  depart(deadline - at, everyone, leave.source, leave.id);
}

// Nobody works here any more, and what is in this memory is in the store, or in that of others.
bool ServiceImpl::is_safe_to_go() const {
  if (!departure_ || now() < gang_expected_until_ || workers_alive()) return false;
  if (!arena_) return true;
  if (departure_->about != departure_facts().ready) return false;
  if (departure_->action == DeadlineAction::kNothing) return true;
  return departure_->action == DeadlineAction::kMemory && !departure_->everyone &&
         memory_.hello().node_count() > 1 && now() - departure_->since >= kWordOfOthers;
}

DeadlineFacts ServiceImpl::departure_facts() const {
  DeadlineFacts facts;
  facts.now = now();
  facts.deadline = departure_->deadline;
  facts.everyone = departure_->everyone;
  facts.nodes = std::max(1, memory_.hello().node_count());
  facts.state_bytes = arena_->spec().state_bytes;
  facts.bytes_per_second = stored_rate_;
  if (const auto newest = arena_->newest_ready()) {
    const SlotInfo slot = arena_->slot(*newest);
    facts.ready = slot.step;
    if (shares(slot)) facts.state_bytes /= slot.of;
  }
  facts.stored = verified_;
  facts.uploading = flushing_ ? flushing_ : in_hand_;
  facts.uploaded_bytes = uploading_bytes_.load(std::memory_order_relaxed);
  facts.uploading_for_this = flushing_.has_value();
  return facts;
}

// Each look: what was decided may have been done, or a newer step may be READY.
void ServiceImpl::decide_about_departure() {
  if (!departure_ || !arena_) return;
  const DeadlineFacts facts = departure_facts();
  const DeadlineDecision decision = decide_before_deadline(facts);
  const bool news = departure_->action != decision.action || departure_->about != facts.ready;
  departure_->action = decision.action;
  departure_->about = facts.ready;
  if (news) {
    spdlog::info("before the deadline: {}", decision.reason);
    departure_->decision = decision.reason;
  }
  if (decision.action == DeadlineAction::kNothing && facts.ready &&
      departure_->safe != facts.ready) {
    departure_->safe = facts.ready;
    departure_->safe_before = facts.deadline - facts.now;
    spdlog::info("step {} is safe in the store, {:.1f} s before the deadline", *facts.ready,
                 seconds(departure_->safe_before));
  }
  if (decision.action == DeadlineAction::kKeepUpload) throttle_.set_free(true);
  if (decision.action != DeadlineAction::kStoreNewest || facts.now < flush_not_before_) return;
  // Whatever else is in hand there, unless somebody waits for it.
  if (urgent_ == 0) store_thread_.interrupt();
  flush([this](const Status& flushed) { flush_ended(flushed); });
}

void ServiceImpl::flush_ended(const Status& flushed) {
  flush_failures_ = flushed ? 0 : flush_failures_ + 1;
  flush_not_before_ = now() + pause_before_try(flush_failures_ + 1);
  if (flush_failures_ == 1) spdlog::warn("{}", flushed.error().message);
}

// It would not be done in time: whoever is here after the deadline has been spared, and stores it.
bool ServiceImpl::keeps_to_memory() const {
  return departure_ && departure_->action == DeadlineAction::kMemory &&
         now() < departure_->deadline;
}

void ServiceImpl::add_notice(service::StatusReply& reply) const {
  for (const std::string& warning : notices_.warnings) reply.add_warnings(warning);
  if (!departure_ && !notices_.leave) return;
  service::NoticeStatus& notice = *reply.mutable_notice();
  if (!departure_) {
    notice.set_source(notices_.leave->source);
    notice.set_id(notices_.leave->id);
    notice.set_seconds_left(seconds(notices_.leave->deadline - now()));
    notice.set_decision("the workers that are here came after it");
    notice.set_safe_step(-1);
    return;
  }
  notice.set_source(departure_->source);
  notice.set_id(departure_->id);
  notice.set_seconds_left(seconds(departure_->deadline - now()));
  notice.set_everyone(departure_->everyone);
  notice.set_decision(departure_->decision);
  notice.set_safe_step(departure_->safe ? departure_->safe->value : -1);
  notice.set_safe_before_seconds(departure_->safe ? seconds(departure_->safe_before) : 0);
}

// ---- what is remembered ----

void ServiceImpl::open_history() {
  if (settings_.history_file.empty()) return;
  auto history = read_service_history(settings_.history_file);
  if (history) {
    history_ = std::move(*history);
  } else if (history.error().code != Code::kNotFound) {
    spdlog::warn("what was known of losses is forgotten: {}", history.error().message);
  }
}

// On the store thread, as a disk may take long to sync.
void ServiceImpl::save_history() {
  history_saved_ = now();
  if (settings_.history_file.empty()) return;
  store_thread_.start([this, history = history_]() -> WorkThread::Outcome {
    const Status saved = write_service_history(settings_.history_file, history);
    return [this, saved] {
      if (!saved && !std::exchange(complained_of_history_, true))
        spdlog::warn("losses and checkpoints are not remembered: {}", saved.error().message);
    };
  });
}

// At the end. What the store thread has in hand ends at its next chunk; it may be the same file.
void ServiceImpl::close_history() {
  if (settings_.history_file.empty()) return;
  if (removing_) history_.arena_open = false;
  store_thread_.interrupt();
  const Time deadline = now() + kLastSave;
  for (; !store_thread_.idle() && now() < deadline; (void)store_thread_.take())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (store_thread_.idle()) (void)write_service_history(settings_.history_file, history_);
}

// Between two looks.
void ServiceImpl::watch(bool at_work) {
  const Time at = now();
  if (at_work && watched_until_ != Time{}) history_.losses.watched += at - watched_until_;
  watched_until_ = at_work ? at : Time{};
  if (at_work && at - history_saved_ >= kSaveHistory) save_history();
}

// The new gang's arena was made, since there was none, or is the one that was there.
void ServiceImpl::note_arena(bool made) {
  loss_may_follow_ = made && history_.arena_open;
  if (std::exchange(history_.arena_open, true)) return;
  save_history();
}

// Somebody had to go back to the store, and the memory was not given up on purpose.
void ServiceImpl::note_restored_from_store() {
  if (!std::exchange(loss_may_follow_, false)) return;
  ++history_.losses.losses;
  spdlog::info(
      "all memory of the job was lost (seen: {}), by what is known that happens every {:.1f} h",
      history_.losses.losses, seconds(mean_time_between_losses(history_.losses)) / 3600);
  save_history();
}

}  // namespace surefoot
