// Part files: byte ranges of a state in the store, readable by any safetensors reader.
//
// Part i of N holds the bytes of the chunks [c0, c1) of the state, c0 = C*i/N, c1 = C*(i+1)/N
// (whole numbers), as they lie in a slot: so writing and reading are one straight copy, and the
// chunk digests of the snapshot cover the payload byte by byte. Its header names these bytes as
// flat tensors, one for each section they touch ("exp_avg[1048576:2097152]", elements of the
// section); alignment gaps between and behind sections are U8 tensors
// ("gap[4100:8192]", bytes of the state), since a safetensors file may have no holes. A part
// describes its set completely (layout, step, training hash, ...), so whoever finds all N can
// publish. The layout of the bytes stands in docs/formats.md.
//
// An encrypted part (seal.h) has the same description, but its payload is sealed in pieces of 1
// MiB, and so are its chunk digests, since the digest of what is secret is not for everybody. To a
// safetensors reader the payload is one tensor of bytes, "sealed". Publishing a set needs no key.
//
// Everything here is pure. Parsing takes any bytes: it allocates no more than a small multiple of
// what it is given, and accepts only text that encoding would give again byte by byte, so a flipped
// bit anywhere in a header is found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/seal.h"
#include "common/digest.h"
#include "common/ids.h"
#include "common/status.h"

namespace surefoot {

inline constexpr int kMaxParts = 10000;
// Larger headers are refused unread. A header has 32 bytes a chunk and about 100 a tensor: enough
// for 4 TiB in one part.
inline constexpr std::int64_t kMaxHeaderBytes = 64 << 20;

// What is the same in all parts of a set and in its manifest.
struct CheckpointIdentity {
  std::string job_id;
  Step step;
  Attempt attempt;
  std::int64_t samples = 0;  // seen up to and including `step`
  StateLayout layout;
  Digest training_hash;
  std::vector<std::string>
      training_lines;  // TrainingIdentity::lines, so that a mismatch can be explained
  std::string numerics_id;
};

struct ChunkRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};
// The chunks of part `part` of `of`. Empty for some parts when there are more parts than chunks.
[[nodiscard]] ChunkRange part_chunks(std::int64_t chunks, int part, int of);

struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};
// The bytes of these chunks in a state of `state_bytes`; the last chunk is shorter.
[[nodiscard]] ByteRange chunk_bytes(ChunkRange chunks, std::int64_t state_bytes);
// What they take as the payload of a part. Chunks begin at borders of pieces.
[[nodiscard]] std::int64_t stored_payload_bytes(ChunkRange chunks, std::int64_t state_bytes,
                                                bool is_sealed);
static_assert(kChunkBytes % kSealPieceBytes == 0);
// What the sealed list of so many digests takes.
[[nodiscard]] inline std::size_t sealed_digest_bytes(std::size_t digests) {
  return digests * sizeof(Digest) + kSealExtraBytes;
}

// The chunk digests of an encrypted part as they lie in the store. They are bound to all that the
// header says, so whoever opens them knows that it is as it was written.
struct SealedDigests {
  std::string key_id;
  std::string bytes;
  friend bool operator==(const SealedDigests&, const SealedDigests&) = default;
};

struct PartHeader {
  CheckpointIdentity identity;
  int part = 0;
  int of = 1;
  ChunkRange chunks;                    // == part_chunks(identity.layout.chunks(), part, of)
  std::vector<Digest> chunk_digests;    // of the chunks in `chunks`; none while they are sealed
  std::optional<SealedDigests> sealed;  // of an encrypted part

  [[nodiscard]] std::int64_t payload_bytes() const;  // as stored
};

// Makes it the header of an encrypted part.
void seal_digests(PartHeader& header, const SealKey& key);
// Fills in chunk_digests. kCorrupt: something in this header is not as it was sealed with `key`.
Status open_digests(PartHeader& header, const SealKey& key);
// What piece `piece` (from 0) of a part's payload is sealed under: it fits nowhere else.
[[nodiscard]] SealContext piece_context(const CheckpointIdentity& identity, int part, int of,
                                        std::int64_t piece);

// The bytes before the payload: 8 bytes little-endian length, JSON, spaces up to a multiple of 4096
// in all (so the payload is aligned). Equal headers give equal bytes. Of an encrypted part only
// what is sealed gets into them.
[[nodiscard]] std::string encode_part_header(const PartHeader& header);
// `bytes`: the whole header, as long as part_header_bytes() says. kCorrupt says what is wrong.
[[nodiscard]] Result<PartHeader> parse_part_header(std::string_view bytes);
// From the first 8 bytes of an object of `object_bytes`: the bytes before the payload. kCorrupt: no
// such header fits.
[[nodiscard]] Result<std::int64_t> part_header_bytes(std::string_view first8,
                                                     std::int64_t object_bytes);

// Do both belong to the same set? kCorrupt names the first thing that differs.
Status same_set(const CheckpointIdentity& a, const CheckpointIdentity& b);

// Names of objects, relative to the job's folder in the store.
[[nodiscard]] std::string step_folder(Step step);    // "step-00000001200/"
[[nodiscard]] std::string manifest_name(Step step);  // "step-00000001200/manifest.json"
[[nodiscard]] std::string part_name(Step step, Attempt attempt, int part,
                                    int of);  // "step-00000001200/a003-part-00-of-02.safetensors"

struct ParsedName {
  Step step;
  bool manifest = false;
  Attempt attempt;  // of a part
  int part = 0;
  int of = 0;
};
// Nothing: not one of ours.
[[nodiscard]] std::optional<ParsedName> parse_name(std::string_view name);

}  // namespace surefoot
