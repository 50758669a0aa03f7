// The bytes of an arena file. docs/formats-arena.md says the same in prose. Internal to
// checkpoint/arena*.
//
// In shared memory between programs of one build and their successors: do not renumber, raise
// kArenaVersion instead. Little-endian, 64-bit.
//
// Two kinds of bytes: those under a digest (the static header, a READY slot's header, its digest
// table and state), and words that change at any moment (everything else). The second kind is never
// used as an index or a size unchecked.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "checkpoint/arena.h"
#include "configs/fault.h"

namespace surefoot::arena_format {

inline constexpr std::array<char, 8> kMagic = {'S', 'F', 'A', 'R', 'E', 'N', 'A', '\n'};
inline constexpr std::uint32_t kArenaVersion = 2;
inline constexpr std::int64_t kPage = 4096;

// Written once; `digest` covers the whole page but itself.
struct StaticHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t slots;
  std::array<char, 64> job_id;  // ends with a zero byte
  Digest layout_digest;
  Digest training_hash;
  std::int64_t state_bytes;
  std::int64_t file_bytes;
  std::array<std::uint8_t, kPage - 144> zero;
  Digest digest;
};
static_assert(sizeof(StaticHeader) == kPage && std::is_trivially_copyable_v<StaticHeader>);

// Everything that changes and is not of one slot.
struct Control {
  std::atomic<std::uint32_t> changes;  // futex: raised by whatever somebody may wait for
  std::atomic<std::uint32_t> unused;
  std::atomic<std::uint64_t> requests;
  std::atomic<std::int64_t> gang_attempt;  // stored last
  std::atomic<std::int32_t> local_size;
  std::atomic<std::int32_t> node_index;
  std::atomic<std::int32_t> node_count;
  std::atomic<std::int32_t> unused2;
  std::atomic<std::int64_t> last_attempt;
  ProcessId service;
  std::atomic<std::int64_t> service_heartbeat_ns;
  std::atomic<std::uint64_t> records;  // sequence number of the next record
  std::array<std::atomic<std::uint64_t>, kMaxFaults / 64> faults;
  std::atomic<std::int64_t> ended_below;  // attempts that may not register
};
static_assert(sizeof(Control) <= kPage);

// Slot word: bits 0-1 state, 2 pinned, 3 checkpoint, 8-63 generation, raised by each take().
enum Word : std::uint64_t {
  kStateMask = 3,
  kPreparing = 3,  // taken, its header is not reset yet: counts as WRITING that nobody may find
  kPinned = 4,
  kCheckpoint = 8,
  kSpare = 0xF0,
  kGeneration = 0x100,
};
inline constexpr std::uint64_t kGenerationMask = ~std::uint64_t{0xFF};

// What a READY slot says of itself; under `SlotHeader::digest`.
struct SlotBody {
  std::uint64_t generation;
  std::int64_t index;
  std::int64_t attempt;
  std::int64_t step;
  std::int64_t samples;
  Digest state;
  Digest training_hash;
  Digest layout_digest;
  std::int64_t part;  // of this node in the attempt's sets, and how many there are
  std::int64_t of;
  std::int64_t has_record;
  StepRecord record;
  std::array<std::uint8_t, 3720> zero;
};

struct Barrier {
  std::atomic<std::uint32_t> count;
  std::atomic<std::uint32_t> unused;
  std::array<std::atomic<std::uint64_t>, kMaxLocalRanks / 64> ranks;
};

struct SlotHeader {
  std::atomic<std::uint64_t> word;
  std::array<Barrier, 2> barriers;
  SlotBody body;
  Digest digest;  // of body; zero unless READY
};
static_assert(sizeof(SlotBody) % 8 == 0 && sizeof(SlotHeader) == kPage);

struct RecordCell {
  std::atomic<std::uint64_t> sequence;  // of the record in it + 1; 0: being written
  StepRecord record;
};

constexpr std::int64_t pages(std::int64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

// Offsets in the file.
inline constexpr std::int64_t kHeaderAt = 0;
inline constexpr std::int64_t kHeaderCopyAt = kPage;
inline constexpr std::int64_t kControlAt = 2 * kPage;
inline constexpr std::int64_t kSlotHeadersAt = 3 * kPage;
inline constexpr std::int64_t kLinesAt = kSlotHeadersAt + kSlots * kPage;
inline constexpr std::int64_t kRecordsAt = kLinesAt + pages(kMaxLocalRanks * sizeof(RankLine));
inline constexpr std::int64_t kTablesAt = kRecordsAt + pages(kRecords * sizeof(RecordCell));

inline constexpr std::int64_t kMaxNodes = 10000;  // as many parts as a set may have

// Largest state: keeps every sum below far from overflow.
inline constexpr std::int64_t kMaxStateBytes = std::int64_t{1} << 46;

struct Places {
  std::int64_t chunks;
  std::int64_t table_bytes;  // of one slot's table, whole pages
  std::int64_t slots_at;
  std::int64_t slot_bytes;  // distance of two slots
  std::int64_t file_bytes;
};
constexpr Places places(std::int64_t state_bytes) {
  Places p{};
  p.chunks = (state_bytes + kChunkBytes - 1) / kChunkBytes;
  p.table_bytes = pages(p.chunks * static_cast<std::int64_t>(sizeof(Digest)));
  p.slots_at = kTablesAt + kSlots * p.table_bytes;
  p.slot_bytes = pages(state_bytes);
  p.file_bytes = p.slots_at + kSlots * p.slot_bytes;
  return p;
}

// Copies between private memory and words that another process may be changing: each word is whole,
// the sum may be torn, which the digest or the sequence number around it shows. Acquire and release
// on each word keep them between the reads or writes of that number; on x86 they cost nothing, and
// the thread sanitizer understands them (it does not understand fences).
inline void load_words(void* to, const void* from, std::size_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  auto* in = static_cast<std::uint64_t*>(const_cast<void*>(from));
  for (std::size_t i = 0; i < bytes / 8; ++i) {
    const std::uint64_t word =
        std::atomic_ref<std::uint64_t>(in[i]).load(std::memory_order_acquire);
    std::memcpy(out + i * 8, &word, 8);
  }
}
inline void store_words(void* to, const void* from, std::size_t bytes) {
  const auto* in = static_cast<const std::byte*>(from);
  auto* out = static_cast<std::uint64_t*>(to);
  for (std::size_t i = 0; i < bytes / 8; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, in + i * 8, 8);
    std::atomic_ref<std::uint64_t>(out[i]).store(word, std::memory_order_release);
  }
}

}  // namespace surefoot::arena_format
