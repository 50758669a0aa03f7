// The mapped arena. Making and opening the file: arena_file.cpp.
#include "checkpoint/arena.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "checkpoint/arena_internal.h"

namespace surefoot {

using namespace arena_format;

namespace {

std::int64_t nanoseconds(Time time) {
  return time.time_since_epoch().count();
}

// Wait on a word shared between processes: no FUTEX_PRIVATE_FLAG. FUTEX_WAIT_BITSET takes an
// absolute monotonic time.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, Time deadline) {
  const std::int64_t ns = std::max<std::int64_t>(nanoseconds(deadline), 0);
  const timespec until{ns / 1'000'000'000, ns % 1'000'000'000};
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_BITSET, seen, &until,
            nullptr, FUTEX_BITSET_MATCH_ANY);
}
void futex_wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE,
            std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

template <class Predicate>
bool await(std::atomic<std::uint32_t>& changes, Time deadline, const Predicate& predicate) {
  for (;;) {
    const std::uint32_t seen = changes.load(std::memory_order_acquire);
    if (predicate()) return true;
    if (now() >= deadline) return false;
    futex_wait(changes, seen, deadline);
  }
}

void raise_to(std::atomic<std::int64_t>& word, std::int64_t value) {
  std::int64_t last = word.load();
  while (last < value && !word.compare_exchange_weak(last, value)) continue;
}

SlotState state_of(std::uint64_t word) {
  const std::uint64_t state = word & kStateMask;
  return state == kPreparing ? SlotState::kWriting : static_cast<SlotState>(state);
}

Digest body_digest(const SlotBody& body) {
  return digest(std::as_bytes(std::span(&body, 1)));
}

void store_process(ProcessId& to, const ProcessId& from) {
  static_assert(sizeof(ProcessId) == 24);
  store_words(&to, &from, sizeof from);
}
ProcessId load_process(const ProcessId& from) {
  ProcessId process;
  load_words(&process, &from, sizeof process);
  return process;
}

}  // namespace

MappedArena::~MappedArena() {
  if (base_ != nullptr) ::munmap(base_, static_cast<std::size_t>(places_.file_bytes));
}

bool MappedArena::unlinked() const {
  struct stat mine {};
  struct stat there {};
  if (::fstat(fd_.get(), &mine) != 0 || ::stat(path_.c_str(), &there) != 0) return true;
  return mine.st_ino != there.st_ino || mine.st_dev != there.st_dev;
}

void MappedArena::raise() const {
  control().changes.fetch_add(1, std::memory_order_acq_rel);
  futex_wake_all(control().changes);
}

// --- slots ---

std::pair<std::uint64_t, SlotInfo> MappedArena::look(int index) const {
  const SlotHeader& slot = header(index);
  SlotInfo info;
  std::uint64_t word = slot.word.load(std::memory_order_acquire);
  for (;;) {
    info = SlotInfo();
    info.state = state_of(word);
    if (info.state == SlotState::kFree) return {word, info};
    SlotBody body;
    Digest body_says;
    load_words(&body, &slot.body, sizeof body);
    load_words(&body_says, &slot.digest, sizeof body_says);
    // Taken or published while it was read: read again. Pins may change, they are not in the body.
    const std::uint64_t again = slot.word.load(std::memory_order_acquire);
    const bool same =
        (word & (kGenerationMask | kStateMask)) == (again & (kGenerationMask | kStateMask));
    word = again;
    if (!same) continue;
    info.attempt = Attempt{body.attempt};
    info.step = Step{body.step};
    if (info.state == SlotState::kWriting) return {word, info};
    info.corrupt = (word & kSpare) != 0 || body.generation != (word & kGenerationMask) ||
                   body.index != index || body.layout_digest != spec_.layout_digest ||
                   body_digest(body) != body_says;
    if (info.corrupt) {
      info = SlotInfo();
      info.corrupt = true;
      return {word, info};
    }
    info.pinned = (word & kPinned) != 0;
    info.checkpoint = (word & kCheckpoint) != 0;
    info.samples = body.samples;
    const bool has_place =
        body.of > 0 && body.of <= kMaxNodes && body.part >= 0 && body.part < body.of;
    info.part = has_place ? static_cast<std::int32_t>(body.part) : 0;
    info.of = has_place ? static_cast<std::int32_t>(body.of) : 1;
    info.digest = body.state;
    return {word, info};
  }
}

SlotInfo MappedArena::slot(int index) const {
  return look(index).second;
}

std::span<std::byte> MappedArena::bytes(int index) {
  SUREFOOT_CHECK(index >= 0 && index < kSlots);
  return {base_ + places_.slots_at + index * places_.slot_bytes,
          static_cast<std::size_t>(spec_.state_bytes)};
}

std::span<Digest> MappedArena::chunk_digests(int index) {
  SUREFOOT_CHECK(index >= 0 && index < kSlots);
  return {at<Digest>(kTablesAt + index * places_.table_bytes),
          static_cast<std::size_t>(places_.chunks)};
}

std::optional<int> MappedArena::newest_ready() const {
  std::optional<int> newest;
  SlotInfo best;
  for (int index = 0; index < kSlots; ++index) {
    const SlotInfo info = slot(index);
    if (info.state != SlotState::kReady) continue;
    if (newest && std::pair(info.step, info.attempt) <= std::pair(best.step, best.attempt))
      continue;
    newest = index;
    best = info;
  }
  return newest;
}

std::optional<int> choose_slot(std::span<const SlotInfo, kSlots> slots, int keep) {
  const auto later = [](const SlotInfo& a, const SlotInfo& b) {
    return std::pair(a.step, a.attempt) > std::pair(b.step, b.attempt);
  };
  int newest = -1;
  for (int i = 0; i < kSlots; ++i) {
    if (slots[i].state != SlotState::kReady) continue;
    if (newest < 0 || later(slots[i], slots[newest])) newest = i;
  }
  std::optional<int> chosen;
  for (int i = 0; i < kSlots; ++i) {
    if (i == newest || i == keep || slots[i].pinned) continue;
    const auto rank = [&](int index) { return static_cast<int>(slots[index].state); };
    const bool better = !chosen || rank(i) < rank(*chosen) ||
                        (rank(i) == rank(*chosen) && later(slots[*chosen], slots[i]));
    if (better) chosen = i;
  }
  return chosen;
}

Result<int> MappedArena::take(Attempt attempt, Step step, int keep) {
  for (;;) {
    std::array<SlotInfo, kSlots> infos;
    std::array<std::uint64_t, kSlots> words{};
    for (int i = 0; i < kSlots; ++i) std::tie(words[i], infos[i]) = look(i);
    const auto chosen = choose_slot(infos, keep);
    if (!chosen) {
      return error(
          Code::kRetry,
          "no snapshot slot is free for step {}: two are kept for checkpoints being written", step);
    }
    SlotHeader& slot = header(*chosen);
    const std::uint64_t generation = (words[*chosen] & kGenerationMask) + kGeneration;
    // Nobody finds a slot that is only half reset: it is PREPARING until its header is right.
    if (!slot.word.compare_exchange_strong(words[*chosen], generation | kPreparing)) continue;
    SlotBody body{};
    body.generation = generation;
    body.index = *chosen;
    body.attempt = attempt.value;
    body.step = step.value;
    const Digest none;
    store_words(&slot.digest, &none, sizeof none);
    store_words(&slot.body, &body, sizeof body);
    for (Barrier& barrier : slot.barriers) {
      for (auto& word : barrier.ranks) word.store(0, std::memory_order_relaxed);
      barrier.count.store(0, std::memory_order_release);
    }
    slot.word.store(generation | static_cast<std::uint64_t>(SlotState::kWriting));
    raise();
    return *chosen;
  }
}

void MappedArena::prepare_record(int index, const StepRecord& record) {
  SlotBody& body = header(index).body;
  const std::int64_t yes = 1;
  store_words(&body.record, &record, sizeof record);
  store_words(&body.has_record, &yes, sizeof yes);
}

std::optional<StepRecord> MappedArena::prepared_record(int index) const {
  const SlotInfo info = slot(index);
  SlotBody body;
  load_words(&body, &header(index).body, sizeof body);
  if (info.state == SlotState::kFree || body.has_record != 1 || body.step != info.step.value)
    return std::nullopt;
  return body.record;
}

Status MappedArena::publish(int index, Attempt attempt, Step step, std::int64_t samples, bool pin) {
  SlotHeader& slot = header(index);
  std::uint64_t word = slot.word.load(std::memory_order_acquire);
  SlotBody body;
  load_words(&body, &slot.body, sizeof body);
  if ((word & kStateMask) != static_cast<std::uint64_t>(SlotState::kWriting) ||
      body.generation != (word & kGenerationMask) || body.attempt != attempt.value ||
      body.step != step.value) {
    return error(Code::kStale, "slot {} is not being written for step {} of attempt {}", index,
                 step, attempt);
  }
  body.samples = samples;
  body.state = state_digest(chunk_digests(index));
  body.training_hash = spec_.training_hash;
  body.layout_digest = spec_.layout_digest;
  body.part = control().node_index.load();
  body.of = control().node_count.load();
  if (body.has_record == 1 && body.record.finished_ns == 0)
    body.record.finished_ns = nanoseconds(now());
  body.zero = {};
  const Digest own = body_digest(body);
  store_words(&slot.body, &body, sizeof body);
  store_words(&slot.digest, &own, sizeof own);
  if (pin) {
    // Left to the service, whose eye is slower than a short step, the next step would become a
    // checkpoint too.
    control().requests.fetch_or(kUploadBusy);
    control().requests.fetch_and(~std::uint64_t{kRequestCheckpoint});
  }
  const std::uint64_t ready = (word & kGenerationMask) |
                              static_cast<std::uint64_t>(SlotState::kReady) |
                              (pin ? kPinned | kCheckpoint : 0);
  if (!slot.word.compare_exchange_strong(word, ready))
    return error(Code::kStale, "slot {} was taken by somebody newer", index);
  raise();
  return {};
}

void MappedArena::discard(int index) {
  SlotHeader& slot = header(index);
  std::uint64_t word = slot.word.load(std::memory_order_acquire);
  // PREPARING first, so that nobody takes it while its header is cleared.
  do {
    if ((word & kStateMask) == static_cast<std::uint64_t>(SlotState::kFree)) return;
  } while (!slot.word.compare_exchange_weak(word, (word & kGenerationMask) | kPreparing));
  const Digest none;
  store_words(&slot.digest, &none, sizeof none);
  slot.word.store(word & kGenerationMask);
  raise();
}

void MappedArena::unpin(int index) {
  header(index).word.fetch_and(~std::uint64_t{kPinned | kCheckpoint});
  raise();
}

bool MappedArena::pin(int index) {
  auto [word, info] = look(index);
  if (info.state != SlotState::kReady) return false;
  SlotHeader& slot = header(index);
  while (!slot.word.compare_exchange_weak(word, word | kPinned)) {
    if (state_of(word) != SlotState::kReady) return false;
  }
  return true;
}

Status MappedArena::verify(int index) const {
  const auto [word, info] = look(index);
  if (info.corrupt)
    return error(Code::kCorrupt, "slot {} of the arena: its header fails its digest", index);
  if (info.state != SlotState::kReady)
    return error(Code::kNotFound, "slot {} of the arena is not ready", index);
  auto& self = const_cast<MappedArena&>(*this);
  const std::span<const Digest> table = self.chunk_digests(index);
  const std::span<const std::byte> state = self.bytes(index);
  std::string fault;
  if (state_digest(table) != info.digest)
    fault = "the table of chunk digests fails the state digest";
  for (std::size_t chunk = 0; fault.empty() && chunk < table.size(); ++chunk) {
    const std::size_t from = chunk * kChunkBytes;
    const auto piece = state.subspan(from, std::min<std::size_t>(kChunkBytes, state.size() - from));
    if (digest(piece) != table[chunk])
      fault = fmt::format("bytes {} to {} fail their digest", from, from + piece.size());
  }
  const std::uint64_t again = header(index).word.load(std::memory_order_acquire);
  if ((again & (kGenerationMask | kStateMask)) != (word & (kGenerationMask | kStateMask)))
    return error(Code::kRetry, "slot {} of the arena was taken while it was read", index);
  if (!fault.empty()) {
    return error(Code::kCorrupt, "slot {} of the arena (step {}, attempt {}): {}", index, info.step,
                 info.attempt, fault);
  }
  return {};
}

// --- lines, requests, faults, records ---

RankLine& MappedArena::line(int local_rank) {
  SUREFOOT_CHECK(local_rank >= 0 && local_rank < kMaxLocalRanks);
  return at<RankLine>(kLinesAt)[local_rank];
}
const RankLine& MappedArena::line(int local_rank) const {
  return const_cast<MappedArena&>(*this).line(local_rank);
}

bool MappedArena::mark_fault(int index) {
  SUREFOOT_CHECK(index >= 0 && index < kMaxFaults);
  const std::uint64_t bit = std::uint64_t{1} << (index % 64);
  return (control().faults[index / 64].fetch_or(bit) & bit) == 0;
}
bool MappedArena::fault_fired(int index) const {
  SUREFOOT_CHECK(index >= 0 && index < kMaxFaults);
  return (control().faults[index / 64].load() >> (index % 64) & 1) != 0;
}

void MappedArena::push(const StepRecord& record) {
  const std::uint64_t sequence = control().records.load(std::memory_order_acquire);
  RecordCell& cell = at<RecordCell>(kRecordsAt)[sequence % kRecords];
  cell.sequence.store(0, std::memory_order_release);
  store_words(&cell.record, &record, sizeof record);
  cell.sequence.store(sequence + 1, std::memory_order_release);
  control().records.store(sequence + 1, std::memory_order_release);
}

std::vector<StepRecord> MappedArena::read(std::uint64_t& from) const {
  const std::uint64_t end = control().records.load(std::memory_order_acquire);
  if (from > end) from = 0;
  if (end - from > kRecords) from = end - kRecords;
  std::vector<StepRecord> records;
  records.reserve(end - from);
  for (; from != end; ++from) {
    const RecordCell& cell = at<RecordCell>(kRecordsAt)[from % kRecords];
    if (cell.sequence.load(std::memory_order_acquire) != from + 1) continue;
    StepRecord record;
    load_words(&record, &cell.record, sizeof record);
    // Overwritten meanwhile: it is older than what the ring still holds.
    if (cell.sequence.load(std::memory_order_acquire) == from + 1) records.push_back(record);
  }
  return records;
}

// --- gang and service ---

void MappedArena::close_to_earlier(Attempt attempt) {
  control().gang_attempt.store(attempt.value);
  raise_to(control().last_attempt, attempt.value);
}
void MappedArena::end_below(Attempt attempt) {
  raise_to(control().ended_below, attempt.value);
}
bool MappedArena::has_ended(Attempt attempt) const {
  return attempt.value < control().ended_below.load();
}

void MappedArena::push_unreported() {
  // Oldest first, so that the ring stays in the order of steps.
  std::vector<StepRecord> missing;
  std::uint64_t from = 0;
  const std::vector<StepRecord> pushed = read(from);
  for (int index = 0; index < kSlots; ++index) {
    const auto record = slot(index).state == SlotState::kReady ? prepared_record(index)
                                                               : std::optional<StepRecord>();
    if (!record) continue;
    const bool known = std::any_of(pushed.begin(), pushed.end(), [&](const StepRecord& other) {
      return other.kind == record->kind && other.step == record->step &&
             other.attempt == record->attempt;
    });
    if (!known) missing.push_back(*record);
  }
  std::sort(missing.begin(), missing.end(),
            [](const StepRecord& a, const StepRecord& b) { return a.step < b.step; });
  for (const StepRecord& record : missing) push(record);
}

void MappedArena::set_gang(const Gang& gang) {
  close_to_earlier(Attempt{gang.attempt});
  push_unreported();
  control().requests.store(0);
  const RankLine empty{};
  for (int rank = 0; rank < kMaxLocalRanks; ++rank) store_words(&line(rank), &empty, sizeof empty);
  control().local_size.store(gang.local_size);
  control().node_index.store(gang.node_index);
  control().node_count.store(gang.node_count);
  raise();
}

Arena::Gang MappedArena::gang() const {
  Gang gang;
  gang.attempt = control().gang_attempt.load();
  gang.local_size = std::clamp(control().local_size.load(), 0, kMaxLocalRanks);
  gang.node_index = control().node_index.load();
  gang.node_count = control().node_count.load();
  return gang;
}
std::int64_t MappedArena::last_attempt() const {
  return control().last_attempt.load();
}

void MappedArena::set_service(const ProcessId& service) {
  store_process(control().service, service);
  service_heartbeat();
}
ProcessId MappedArena::service() const {
  return load_process(control().service);
}
void MappedArena::service_heartbeat() {
  control().service_heartbeat_ns.store(nanoseconds(now()), std::memory_order_release);
}
Time MappedArena::last_service_heartbeat() const {
  return Time(Duration(control().service_heartbeat_ns.load(std::memory_order_acquire)));
}

// --- barriers ---

Barrier& MappedArena::barrier(int index, int number) const {
  SUREFOOT_CHECK(number == 0 || number == 1);
  return header(index).barriers[static_cast<std::size_t>(number)];
}

std::uint32_t MappedArena::arrive(int index, int number, int local_rank) {
  SUREFOOT_CHECK(local_rank >= 0 && local_rank < kMaxLocalRanks);
  Barrier& here = barrier(index, number);
  const std::uint64_t bit = std::uint64_t{1} << (local_rank % 64);
  const bool first = (here.ranks[local_rank / 64].fetch_or(bit) & bit) == 0;
  const std::uint32_t count =
      first ? here.count.fetch_add(1, std::memory_order_acq_rel) + 1 : here.count.load();
  raise();
  return count;
}
std::uint32_t MappedArena::arrived(int index, int number) const {
  return barrier(index, number).count.load(std::memory_order_acquire);
}
bool MappedArena::has_arrived(int index, int number, int local_rank) const {
  SUREFOOT_CHECK(local_rank >= 0 && local_rank < kMaxLocalRanks);
  return (barrier(index, number).ranks[local_rank / 64].load() >> (local_rank % 64) & 1) != 0;
}
bool MappedArena::await_arrivals(int index, int number, std::uint32_t count, Time deadline) {
  return await(control().changes, deadline, [&] { return arrived(index, number) >= count; });
}

std::optional<int> MappedArena::await_taken(Attempt attempt, Step step, Time deadline) {
  std::optional<int> found;
  await(control().changes, deadline, [&] {
    for (int index = 0; index < kSlots && !found; ++index) {
      const auto [word, info] = look(index);
      const bool preparing = (word & kStateMask) == kPreparing;
      if (info.state != SlotState::kFree && !preparing && info.attempt == attempt &&
          info.step == step) {
        found = index;
      }
    }
    return found.has_value();
  });
  return found;
}

bool MappedArena::await_ready(int index, Attempt attempt, Step step, Time deadline) {
  return await(control().changes, deadline, [&] {
    const SlotInfo info = slot(index);
    return info.state == SlotState::kReady && info.attempt == attempt && info.step == step;
  });
}

Result<int> MappedArena::await_take(Attempt attempt, Step step, int keep, Time deadline) {
  Result<int> taken = take(attempt, step, keep);
  await(control().changes, deadline, [&] {
    if (!taken) taken = take(attempt, step, keep);
    return taken.has_value();
  });
  return taken;
}

}  // namespace surefoot
