// What a service does for a gang: hello, restore. Its launch and end: service_launch.cpp.
#include <algorithm>
#include <array>

#include "checkpoint/service_internal.h"
#include "common/file.h"
#include "common/log.h"
#include "configs/fault.h"

namespace surefoot {
namespace {

constexpr Duration kRestorePatience = std::chrono::hours(2);
constexpr Duration kEndPatience = std::chrono::seconds(10);
constexpr Duration kGangPatience =
    std::chrono::seconds(60);  // from hello to the first worker's line

std::vector<std::string> lines_of(const service::Hello& hello) {
  return {hello.training_lines().begin(), hello.training_lines().end()};
}

// Step 0: none that is worth anything.
Step newest_in(const Arena& arena) {
  const auto newest = arena.newest_ready();
  return newest ? arena.slot(*newest).step : Step{0};
}

HelloFacts::Memory facts_of(const Arena* arena, bool damaged, const service::Memory& memory) {
  HelloFacts::Memory facts;
  facts.there = arena != nullptr || damaged;
  facts.damaged = damaged;
  facts.training_lines = lines_of(memory.hello());
  facts.last_attempt = Attempt{memory.hello().attempt()};
  if (arena == nullptr) return facts;
  facts.layout = arena->spec().layout_digest;
  facts.training_hash = arena->spec().training_hash;
  facts.last_attempt = std::max(facts.last_attempt, Attempt{arena->last_attempt()});
  facts.newest = newest_in(*arena);
  facts.holds_work = facts.newest > Step{0};
  return facts;
}

Result<HelloFacts::Gang> facts_of(const service::Hello& hello, const StateLayout& layout) {
  const auto hash = Digest::from_hex(hello.training_hash());
  const bool sane = hash && hello.attempt() >= 0 && hello.attempt() <= kMaxAttempt &&
                    hello.local_size() > 0 && hello.local_size() <= kMaxLocalRanks &&
                    hello.node_count() > 0 && hello.node_index() >= 0 &&
                    hello.node_index() < hello.node_count() && layout.bytes > 0;
  if (!sane) return error(Code::kInvalid, "the hello makes no sense");
  return HelloFacts::Gang{Attempt{hello.attempt()}, layout.digest(), *hash, lines_of(hello),
                          hello.accept_changes()};
}

// A step that is known to have been finished, from what lies in memory.
Step furthest_in(const Arena& arena) {
  Step furthest{0};
  for (int slot = 0; slot < kSlots; ++slot) {
    const SlotInfo info = arena.slot(slot);
    if (info.state == SlotState::kReady) furthest = std::max(furthest, info.step);
  }
  std::uint64_t from = 0;
  for (const StepRecord& record : arena.read(from)) {
    if (record.kind == StepRecord::kTrain) furthest = std::max(furthest, Step{record.step});
  }
  return furthest;
}

service::Candidate to_message(const Candidate& candidate) {
  service::Candidate message;
  message.set_source(candidate.source == Candidate::Source::kArena ? service::Candidate::ARENA
                                                                   : service::Candidate::STORE);
  message.set_step(candidate.step.value);
  message.set_attempt(candidate.attempt.value);
  message.set_digest(candidate.digest.hex());
  message.set_node(candidate.node);
  return message;
}

// The file was removed while it was mapped, so nobody can open it any more: the newest good step
// moves into a new one.
Result<std::shared_ptr<Arena>> remake(Arena& old, const std::filesystem::path& folder) {
  SUREFOOT_ASSIGN(std::shared_ptr<Arena> fresh, Arena::create(folder, old.spec()));
  fresh->close_to_earlier(Attempt{old.last_attempt()});
  for (int fault = 0; fault < kMaxFaults; ++fault) {
    if (old.fault_fired(fault)) fresh->mark_fault(fault);
  }
  for (;;) {
    const auto newest = old.newest_ready();
    if (!newest) return fresh;
    const SlotInfo info = old.slot(*newest);
    SUREFOOT_ASSIGN(const int slot, fresh->take(info.attempt, info.step));
    const auto from = old.bytes(*newest);
    const auto to = fresh->bytes(slot);
    const auto table = fresh->chunk_digests(slot);
    for (std::size_t chunk = 0; chunk < table.size(); ++chunk) {
      const std::size_t at = chunk * kChunkBytes;
      const std::size_t bytes = std::min<std::size_t>(kChunkBytes, from.size() - at);
      table[chunk] = copy_and_digest(from.subspan(at, bytes), to.subspan(at, bytes));
    }
    if (state_digest(table) == info.digest) {
      SUREFOOT_TRY(fresh->publish(slot, info.attempt, info.step, info.samples, info.checkpoint));
      return fresh;
    }
    spdlog::warn("step {} in the removed memory fails its digest", info.step);
    fresh->discard(slot);
    old.discard(*newest);
  }
}

}  // namespace

void ServiceImpl::open_arena() {
  auto arena = Arena::open(settings_.arena_folder);
  if (arena) {
    use(std::move(*arena));
  } else if (arena.error().code == Code::kCorrupt) {
    arena_damaged_ = true;
    spdlog::error("{}", arena.error().message);
  }
  auto kept = read_file(settings_.arena_folder / "memory");
  service::Memory memory;
  if (!kept || !memory.ParseFromString(*kept)) return;
  memory_ = std::move(memory);
  auto layout = StateLayout::from_json(memory_.hello().layout());
  if (layout && arena_ && layout->digest() == arena_->spec().layout_digest)
    layout_ = std::move(*layout);
}

void ServiceImpl::use(std::shared_ptr<Arena> arena) {
  if (arena_ == arena) return;
  arena_ = std::move(arena);
  arena_damaged_ = arena_unlinked_ = false;
  uploads_.clear();
  held_.clear();
  records_from_ = meter_from_ = 0;
  meter_.pause();
  arena_->set_service(self_process());
  arena_->end_below(launches_.ended_below());
}

bool ServiceImpl::workers_alive() const {
  if (!arena_) return false;
  for (int rank = 0; rank < kMaxLocalRanks; ++rank) {
    const ProcessId process = registered_process(arena_->line(rank));
    if (process.pid > 1 && process.pid != ::getpid() && is_alive(process)) return true;
  }
  return false;
}

bool ServiceImpl::gang_is_past_restore() const {
  const std::int64_t running = arena_->gang().attempt;
  for (int rank = 0; rank < kMaxLocalRanks; ++rank) {
    const RankLine& line = arena_->line(rank);
    const bool past = line.attempt.load() == running && line.phase.load() > Phase::kRestoring;
    if (past && is_alive(registered_process(line))) return true;
  }
  return false;
}

// ---- hello ----

void ServiceImpl::hello(const Peer& peer, const service::Hello& hello) {
  // Before anything is learnt from it: the number would make all later attempts stale.
  if (hello.attempt() < 0 || hello.attempt() > kMaxAttempt)
    return reply(peer, error(Code::kInvalid, "there is no attempt {}", hello.attempt()));
  const std::int64_t last =
      std::max(memory_.hello().attempt(), arena_ ? arena_->last_attempt() : 0);
  if (hello.attempt() != 0 && hello.attempt() < last) {
    return refuse(peer, "stale",
                  fmt::format("attempt {} is older than attempt {}, which has run on this node",
                              hello.attempt(), last));
  }
  const Attempt ended = launches_.ended_below();
  if (hello.attempt() != 0 && hello.attempt() < ended.value)
    return refuse(peer, "stale", fmt::format("attempt {} was ended on this node", hello.attempt()));
  if (hello.encryption() != settings_.job.checkpoint().encryption().SerializeAsString()) {
    ended_ = "checkpoint.encryption has changed in the job file; the snapshots stay";
    return reply(peer, error(Code::kRestart,
                             "the checkpoint service was started with another "
                             "checkpoint.encryption; it ends now: start again"));
  }
  // The gang that asked for a restore is gone when another one comes.
  if (hello.attempt() == 0 || hello.attempt() > last) gang_thread_.interrupt();
  const Time came = now();
  newest_hello_ = std::max(newest_hello_, Attempt{hello.attempt()});
  gang_expected_until_ = came + kGangPatience;
  gang_thread_.start([this, peer, hello, came, ended, arena = arena_, memory = memory_,
                      damaged = arena_damaged_]() -> WorkThread::Outcome {
    Welcome result = welcome(hello, ended, arena, memory, damaged);
    return [this, peer, hello, came, result = std::move(result)]() mutable {
      welcomed(peer, hello, came, std::move(result));
    };
  });
}

// On the gang thread: touches nothing of this object but gang_store_, gang_thread_ and settings_.
ServiceImpl::Welcome ServiceImpl::welcome(const service::Hello& hello, Attempt ended,
                                          std::shared_ptr<Arena> arena, service::Memory memory,
                                          bool damaged) {
  Welcome result;
  const auto work = [&]() -> Status {
    auto layout = StateLayout::from_json(hello.layout());
    if (!layout) return error(Code::kInvalid, "{}", layout.error().message);
    result.layout = std::move(*layout);
    SUREFOOT_ASSIGN(const HelloFacts::Gang gang, facts_of(hello, result.layout));
    HelloFacts facts{gang, facts_of(arena.get(), damaged, memory), {}};
    facts.memory.last_attempt = std::max(facts.memory.last_attempt, Attempt{ended.value - 1});
    SUREFOOT_TRY(look_for(facts, Step{std::max(hello.known_step(), memory.known_step())}, result));
    SUREFOOT_ASSIGN(const HelloDecision decision, decide_hello(facts));
    for (const std::string& change : decision.changed_keys)
      spdlog::warn("changed training key accepted: {}", change);
    SUREFOOT_TRY(make_ready(decision, gang, hello, memory, arena, result));
    remember(decision, hello, damaged, memory, result);
    return {};
  };
  result.status = work();
  return result;
}

// What the store has. Without it a job can go on from memory, but never start: nobody knows how far
// it has been.
Status ServiceImpl::look_for(HelloFacts& facts, Step known, Welcome& result) {
  Control control;
  control.deadline = now() + store_patience(facts.memory.newest, known);
  control.stop = [this] { return gang_thread_.stopping(); };
  auto view = gang_store_.look(control);
  Status usable = view ? Status() : Status(view.error());
  if (view) {
    facts.stored = view->newest;
    result.store = std::move(*view);
    for (const std::string& line : result.store->refused)
      spdlog::warn("a checkpoint cannot be used: {}", line);
    if (!facts.memory.holds_work) usable = gang_store_.claim(control);
  }
  if (usable) return {};
  const bool full = usable.error().code == Code::kNoSpace;
  if (!facts.memory.holds_work && !full) return usable;
  result.warning = usable.error().message;
  return {};
}

// Earlier writers ended, the arena there, the gang's place in it set.
Status ServiceImpl::make_ready(const HelloDecision& decision, const HelloFacts::Gang& gang,
                               const service::Hello& hello, const service::Memory& memory,
                               std::shared_ptr<Arena> arena, Welcome& result) {
  bool remade = result.made = decision.arena == ArenaAction::kMake;
  if (arena) {
    arena->close_to_earlier(decision.attempt);
    SUREFOOT_TRY(end_earlier_writers(*arena, decision.attempt, now() + kEndPatience));
  }
  if (decision.arena == ArenaAction::kMake) {
    spdlog::info("making the arena ({} of state, three times): {}", result.layout.bytes,
                 decision.reason);
    const Attempt last{arena ? arena->last_attempt() : 0};
    ArenaSpec spec{settings_.job_id, gang.layout, gang.training_hash, result.layout.bytes};
    SUREFOOT_ASSIGN(arena, Arena::create(settings_.arena_folder, spec));
    arena->close_to_earlier(std::max(last, decision.attempt));
  } else if (arena->unlinked()) {
    SUREFOOT_ASSIGN(arena, remake(*arena, settings_.arena_folder));
    remade = true;
  }
  if (decision.arena == ArenaAction::kUseWithNewHash) arena->set_training_hash(gang.training_hash);
  // The same gang again (a repeated hello, a rollback): its workers keep their lines. `memory` is
  // written after set_gang, so it never speaks of a gang that was not set.
  const service::Hello& before = memory.hello();
  const bool same = !remade && before.attempt() == decision.attempt.value &&
                    before.local_size() == hello.local_size() &&
                    before.node_index() == hello.node_index() &&
                    before.node_count() == hello.node_count();
  const Arena::Gang wanted{decision.attempt.value, hello.local_size(), hello.node_index(),
                           hello.node_count()};
  if (!same) arena->set_gang(wanted);
  result.arena = std::move(arena);
  return {};
}

void ServiceImpl::remember(const HelloDecision& decision, const service::Hello& hello, bool damaged,
                           const service::Memory& memory, Welcome& result) {
  Step known = std::max(Step{memory.known_step()}, furthest_in(*result.arena));
  if (result.store) known = std::max(known, result.store->known);
  // A damaged arena says nothing, but that somebody has worked here.
  if (damaged) known = std::max(known, Step{1});
  result.memory.set_known_step(known.value);
  *result.memory.mutable_hello() = hello;
  result.memory.mutable_hello()->set_attempt(decision.attempt.value);
  const Status kept =
      write_file_atomically(settings_.arena_folder / "memory", result.memory.SerializeAsString());
  if (!kept) result.warning += (result.warning.empty() ? "" : "; ") + kept.error().message;

  service::HelloReply& reply = result.reply;
  reply.set_attempt(decision.attempt.value);
  reply.set_arena_folder(settings_.arena_folder.string());
  reply.set_known_step(known.value);
  std::array<SlotInfo, kSlots> slots;
  for (int slot = 0; slot < kSlots; ++slot) {
    slots[static_cast<std::size_t>(slot)] = result.arena->slot(slot);
    if (slots[static_cast<std::size_t>(slot)].corrupt)
      spdlog::warn("slot {} of the arena cannot be used: its header fails its digest", slot);
  }
  for (const Candidate& candidate : arena_candidates(slots, hello.node_index()))
    *reply.add_candidates() = to_message(candidate);
  if (!result.store) return;
  for (const StoreView::Entry& entry : result.store->whole) {
    if (entry.layout != result.arena->spec().layout_digest) continue;
    *reply.add_candidates() =
        to_message({Candidate::Source::kStore, entry.step, entry.attempt, entry.state, 0});
  }
}

// A gang that comes after a drain was not meant by it. What was said while its hello was in hand
// is.
void ServiceImpl::forget_requests_before(Time hello, Attempt attempt) {
  if (departure_ && departure_->since < hello) departure_.reset();
  if (!departure_) signals_seen_ = 0;
  drain_asked_ = departure_ || drain_asked_at_ >= hello || drain_asked_for_ == attempt;
  flush_wanted_ = departure_ && (departure_->everyone || memory_.hello().node_count() <= 1);
  throttle_.set_free(urgent_ > 0 || departure_);
}

void ServiceImpl::welcomed(const Peer& peer, const service::Hello& hello, Time came,
                           Welcome welcome) {
  if (!welcome.status) {
    const Error& failed = welcome.status.error();
    spdlog::error("hello of attempt {}: {}", hello.attempt(), failed.message);
    gang_expected_until_ = {};
    // Writers were closed out, or even ended, before it failed: what is known of attempts stays.
    return reply(peer, failed);
  }
  // The same gang: what it was asked still stands.
  const bool again = hello.again() || memory_.hello().attempt() == welcome.reply.attempt();
  use(std::move(welcome.arena));
  memory_ = std::move(welcome.memory);
  layout_ = std::move(welcome.layout);
  waiting_for_ = welcome.warning;
  if (!welcome.warning.empty())
    spdlog::warn("training goes on without the store for now: {}", welcome.warning);
  if (hello.has_supervised()) supervised_ = hello.supervised();
  const Attempt attempt{welcome.reply.attempt()};
  newest_hello_ = std::max(newest_hello_, attempt);
  if (!again) forget_requests_before(came, attempt);
  // The arena forgot it with the gang before.
  if (drain_asked_) arena_->requests().fetch_or(kRequestDrain);
  note_arena(welcome.made);
  last_supervisor_ = last_visit_ = now();
  gang_expected_until_ = now() + kGangPatience;
  finished_.reset();
  if (!store_seen_ && welcome.store) {
    store_seen_ = true;
    note_view(*welcome.store);
  }
  if (attempt < launches_.ended_below()) {
    gang_expected_until_ = {};
    return refuse(peer, "stale", fmt::format("attempt {} was ended on this node", attempt));
  }
  // Bits of the new gang, before it can look at them.
  look_at_slots();
  decide_about_checkpoint();
  spdlog::info("attempt {}: {} workers here, node {} of {}, {} copies to start from", attempt,
               hello.local_size(), hello.node_index(), hello.node_count(),
               welcome.reply.candidates_size());
  service::Reply message;
  *message.mutable_hello() = std::move(welcome.reply);
  reply(peer, message);
}

// ---- restore ----

void ServiceImpl::restore(const Peer& peer, const service::Restore& request) {
  if (!arena_) return reply(peer, error(Code::kInvalid, "restore before hello"));
  const service::Candidate& asked = request.candidate();
  Candidate candidate;
  candidate.source = asked.source() == service::Candidate::ARENA ? Candidate::Source::kArena
                                                                 : Candidate::Source::kStore;
  candidate.step = Step{asked.step()};
  candidate.attempt = Attempt{asked.attempt()};
  candidate.digest = Digest::from_hex(asked.digest()).value_or(Digest{});
  const int of = std::max(1, request.of());
  if (request.part() < 0 || request.part() >= of || of > kMaxParts)
    return reply(peer, error(Code::kInvalid, "there is no part {} of {}", request.part(), of));
  if (request.refused()) {
    distrust(candidate.step);
    return done(peer);
  }
  const std::int64_t running = arena_->gang().attempt;
  if (request.attempt() != 0 && request.attempt() != running)
    return refuse(peer, "stale", fmt::format("attempt {} runs on this node", running));
  // A slot that is being written for a step would be taken for the copy.
  if (gang_is_past_restore())
    return refuse(peer, "stale", fmt::format("attempt {} is past its restore", running));
  gang_thread_.start([this, peer, request, candidate, of, arena = arena_]() -> WorkThread::Outcome {
    const Time begun = now();
    auto filled = bring(candidate, request.part(), of, *arena);
    const double took = seconds(now() - begun);
    return [this, peer, request, candidate, filled = std::move(filled), took] {
      restored(peer, request, candidate, filled, took);
    };
  });
}

void ServiceImpl::restored(const Peer& peer, const service::Restore& request,
                           const Candidate& candidate, const Result<StoreSide::Filled>& filled,
                           double took) {
  const bool from_store = candidate.source == Candidate::Source::kStore;
  if (!filled) {
    const Error& failed = filled.error();
    // That a node does not have what another one has is no news.
    if (from_store) spdlog::warn("restore of step {}: {}", candidate.step, failed.message);
    if (from_store && failed.code == Code::kCorrupt) distrust(candidate.step);
    return reply(peer, failed);
  }
  if (from_store) note_restored_from_store();
  const std::string what =
      from_store && request.of() > 1
          ? fmt::format("part {} of {} of step {}", request.part(), request.of(), candidate.step)
          : fmt::format("step {}", candidate.step);
  spdlog::info("restored {} of attempt {} from {} in {:.3f} s, state digest {}", what,
               candidate.attempt, from_store ? "the store" : "memory", took,
               candidate.digest.hex());
  service::Reply message;
  message.mutable_restore()->set_slot(filled->slot);
  message.mutable_restore()->set_step(candidate.step.value);
  message.mutable_restore()->set_samples(filled->samples);
  reply(peer, message);
}

// On the gang thread.
Result<StoreSide::Filled> ServiceImpl::bring(const Candidate& candidate, int part, int of,
                                             Arena& arena) {
  // Of equal states the one in memory will do, wherever it was to come from.
  for (int slot = 0; slot < kSlots; ++slot) {
    const SlotInfo info = arena.slot(slot);
    const bool same = info.state == SlotState::kReady && info.step == candidate.step &&
                      info.attempt == candidate.attempt && info.digest == candidate.digest;
    if (!same) continue;
    const Status good = arena.verify(slot);
    if (good) return StoreSide::Filled{slot, info.samples};
    if (good.error().code != Code::kCorrupt) return good.error();
    spdlog::warn("{}", good.error().message);
    arena.discard(slot);
    if (candidate.source == Candidate::Source::kArena) return good.error();
  }
  if (candidate.source == Candidate::Source::kArena) {
    return error(Code::kCorrupt, "the memory of this node has no such copy of step {} any more",
                 candidate.step);
  }
  Control control;
  control.deadline = now() + kRestorePatience;
  control.stop = [this] { return gang_thread_.stopping(); };
  return gang_store_.fill(candidate, part, of, arena, control);
}

}  // namespace surefoot
