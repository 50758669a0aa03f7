// The manifest: the object whose appearance makes a set of parts a checkpoint.
//
// Canonical JSON: no time, host or writer in it, so every publisher of a set writes the same bytes.
// Its last field is an XXH3-128 digest of all bytes before it. It names each part with its size and
// the digest of its header, and has the digest of each chunk of the state: every byte of a
// checkpoint is covered. The layout of the bytes stands in docs/formats.md.
//
// Of an encrypted checkpoint it has the sealed digests just as they stand in the parts' headers, so
// making and parsing it needs no key.
//
// Pure. parse_manifest takes any bytes and accepts only what encode_manifest would give again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/part.h"
#include "common/digest.h"
#include "common/status.h"

namespace surefoot {

inline constexpr int kManifestVersion = 1;                    // on disk
inline constexpr int kSealedManifestVersion = 2;              // on disk: of an encrypted checkpoint
inline constexpr std::int64_t kMaxManifestBytes = 256 << 20;  // larger ones are refused unread

struct PartEntry {
  std::string name;        // as part_name() gives
  std::int64_t bytes = 0;  // of the whole object
  ChunkRange chunks;
  Digest header_digest;        // of the bytes before the payload
  std::string sealed_digests;  // of an encrypted part: as in its header
};

struct Manifest {
  CheckpointIdentity identity;
  std::string key_id;                 // empty: not encrypted
  std::vector<Digest> chunk_digests;  // of the whole state; none while they are sealed
  Digest state_digest;                // == surefoot::state_digest(chunk_digests)
  std::vector<PartEntry> parts;       // all parts of the set, in order

  [[nodiscard]] bool is_encrypted() const { return !key_id.empty(); }
};

// What is in the store under a part's name: its size and header.
struct StoredPart {
  std::int64_t bytes = 0;
  std::string header;  // the bytes before the payload
};
// Makes the manifest of a complete set from its parts, in order. kCorrupt: they are not one set, or
// one is damaged; the message names the part.
[[nodiscard]] Result<Manifest> make_manifest(const std::vector<StoredPart>& parts);

// Opens the digests of an encrypted checkpoint; of another it does nothing. kInvalid: not with
// these keys. kCorrupt: something in it is not as it was written by who has the key.
Status open_manifest(Manifest& manifest, const Keys& keys);
// The header of part `part`. Of an encrypted checkpoint: of one that has been opened.
[[nodiscard]] PartHeader header_of(const Manifest& manifest, int part);

[[nodiscard]] std::string encode_manifest(const Manifest& manifest);
// kCorrupt says what is wrong. kInvalid: another format version, made by a newer build.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text);

}  // namespace surefoot
