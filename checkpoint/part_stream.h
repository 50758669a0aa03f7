// The way of a state's bytes to the store and back, chunk by chunk: digested on the way, sealed and
// opened piece by piece where there is a key. Internal to checkpoint_store.cpp.
//
// One thread. Memory: a chunk (4 MiB) and the same sealed, never a buffer of the size of the state.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint_store.h"

namespace surefoot {

// A part in pieces: header, then chunk by chunk, each digested once more on its way out, and sealed
// piece by piece where there is a key.
class PartSource {
 public:
  PartSource(const PartHeader& header, std::string_view encoded, std::span<const std::byte> state,
             const SealKey* key, const Control& control)
      : header_(header),
        encoded_(encoded),
        chunk_(header.chunks.begin),
        state_(state),
        key_(key),
        sealed_(key != nullptr ? kSealPieceBytes + kSealExtraBytes : 0),
        control_(control) {}

  // As ByteSource: valid until the next call, empty at the end. kCorrupt: the memory has changed.
  [[nodiscard]] Result<std::span<const std::byte>> next();

 private:
  Status take_chunk();

  const PartHeader& header_;
  std::string_view encoded_;
  std::int64_t chunk_;
  std::int64_t piece_ = 0;
  std::int64_t last_ = 0;
  std::span<const std::byte> state_;
  std::span<const std::byte> left_;  // of the chunk in hand
  const SealKey* key_;
  std::vector<std::byte> sealed_;
  const Control& control_;
};

// Reads a state back and checks every byte of it.
class StateReader {
 public:
  // `manifest` is open. Reads what lies in `chunks`. `into`: the whole state, or empty: the bytes
  // are dropped.
  StateReader(Store& store, const Manifest& manifest, const SealKey* key, ChunkRange chunks,
              std::span<std::byte> into, const Control& control)
      : store_(store),
        manifest_(manifest),
        key_(key),
        chunks_(chunks),
        into_(into),
        control_(control),
        dropped_(into.empty() ? largest_chunk() : 0),
        sealed_(key != nullptr ? sealed_bytes(largest_chunk()) : 0) {}

  // kCorrupt, kNotFound: names part and chunk; this copy must not be used.
  Status read_part(int part);

 private:
  [[nodiscard]] std::int64_t largest_chunk() const {
    return std::min(kChunkBytes, manifest_.identity.layout.bytes);
  }

  Status check_header(int part, std::int64_t header_bytes);

  // Opens the pieces of one chunk straight into their place. `number`: of the chunk in its part.
  Status read_sealed(int part, std::int64_t at, std::int64_t number, std::span<std::byte> bytes);

  Store& store_;
  const Manifest& manifest_;
  const SealKey* key_;
  ChunkRange chunks_;
  std::span<std::byte> into_;
  const Control& control_;
  std::vector<std::byte> dropped_;
  std::vector<std::byte> sealed_;
};

}  // namespace surefoot
