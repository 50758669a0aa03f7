#include "checkpoint/part_stream.h"

#include <algorithm>
#include <utility>

#include "checkpoint/store_reading.h"

namespace surefoot {
namespace {

void report(const Control& control, std::int64_t bytes) {
  if (control.progress) control.progress(bytes);
}

}  // namespace

Result<std::span<const std::byte>> PartSource::next() {
  if (!encoded_.empty()) {
    SUREFOOT_TRY(go_on(control_));
    const std::string_view piece = encoded_.substr(0, kMaxPieceBytes);
    encoded_.remove_prefix(piece.size());
    return as_bytes(piece);
  }
  report(control_, std::exchange(last_, 0));
  if (left_.empty()) {
    SUREFOOT_TRY(go_on(control_));
    if (chunk_ == header_.chunks.end) return std::span<const std::byte>();
    SUREFOOT_TRY(take_chunk());
  }
  const auto plain = left_.first(std::min<std::size_t>(
      left_.size(), key_ != nullptr ? kSealPieceBytes : std::int64_t{kMaxPieceBytes}));
  left_ = left_.subspan(plain.size());
  last_ = static_cast<std::int64_t>(plain.size());
  if (key_ == nullptr) return plain;
  const auto sealed = std::span(sealed_).first(plain.size() + kSealExtraBytes);
  key_->seal(piece_context(header_.identity, header_.part, header_.of, piece_++), plain, sealed);
  return std::span<const std::byte>(sealed);
}

Status PartSource::take_chunk() {
  const ByteRange range =
      chunk_bytes({chunk_, chunk_ + 1}, static_cast<std::int64_t>(state_.size()));
  left_ = state_.subspan(range.begin, range.size());
  if (digest(left_) != header_.chunk_digests[chunk_ - header_.chunks.begin])
    return error(Code::kCorrupt,
                 "chunk {} of the snapshot does not match its digest: the memory has changed",
                 chunk_);
  ++chunk_;
  return {};
}

Status StateReader::read_part(int part) {
  const PartEntry& entry = manifest_.parts[static_cast<std::size_t>(part)];
  // A part without chunks is looked at by everybody: its header counts too.
  const bool elsewhere = entry.chunks.end <= chunks_.begin || chunks_.end <= entry.chunks.begin;
  if (entry.chunks.size() > 0 && elsewhere) return {};
  const std::int64_t state_bytes = manifest_.identity.layout.bytes;
  const std::int64_t header_bytes =
      entry.bytes - stored_payload_bytes(entry.chunks, state_bytes, manifest_.is_encrypted());
  SUREFOOT_TRY(check_header(part, header_bytes));
  std::int64_t at = header_bytes;
  for (std::int64_t chunk = entry.chunks.begin; chunk < entry.chunks.end; ++chunk) {
    SUREFOOT_TRY(go_on(control_));
    const ByteRange range = chunk_bytes({chunk, chunk + 1}, state_bytes);
    const std::int64_t here =
        std::exchange(at, at + (key_ == nullptr ? range.size() : sealed_bytes(range.size())));
    if (chunk < chunks_.begin || chunk >= chunks_.end) continue;
    const auto bytes = into_.empty() ? std::span(dropped_).first(range.size())
                                     : into_.subspan(range.begin, range.size());
    if (key_ == nullptr) {
      SUREFOOT_TRY(store_.read(entry.name, here, bytes, control_.by()));
    } else {
      SUREFOOT_TRY(read_sealed(part, here, chunk - entry.chunks.begin, bytes));
    }
    if (digest(bytes) != manifest_.chunk_digests[chunk])
      return error(Code::kCorrupt, "chunk {} in part {} does not match its digest", chunk,
                   entry.name);
    report(control_, range.size());
  }
  return {};
}

Status StateReader::check_header(int part, std::int64_t header_bytes) {
  const PartEntry& entry = manifest_.parts[static_cast<std::size_t>(part)];
  std::string header(static_cast<std::size_t>(header_bytes), '\0');
  SUREFOOT_TRY(
      store_.read(entry.name, 0, std::as_writable_bytes(std::span(header)), control_.by()));
  if (digest(header) != entry.header_digest)
    return error(Code::kCorrupt, "the header of part {} does not match its digest in the manifest",
                 entry.name);
  // Anybody can make that digest anew; what was opened with the key is known to be as written.
  if (key_ != nullptr && header != encode_part_header(header_of(manifest_, part)))
    return error(Code::kCorrupt, "the header of part {} is not what the manifest says", entry.name);
  return {};
}

Status StateReader::read_sealed(int part, std::int64_t at, std::int64_t number,
                                std::span<std::byte> bytes) {
  const PartEntry& entry = manifest_.parts[static_cast<std::size_t>(part)];
  auto sealed = std::span(sealed_).first(sealed_bytes(static_cast<std::int64_t>(bytes.size())));
  SUREFOOT_TRY(store_.read(entry.name, at, sealed, control_.by()));
  const int of = static_cast<int>(manifest_.parts.size());
  for (std::int64_t piece = number * (kChunkBytes / kSealPieceBytes); !bytes.empty(); ++piece) {
    const auto plain = bytes.first(std::min<std::size_t>(bytes.size(), kSealPieceBytes));
    const auto from = sealed.first(plain.size() + kSealExtraBytes);
    if (!key_->open(piece_context(manifest_.identity, part, of, piece), from, plain))
      return error(Code::kCorrupt, "piece {} of part {} is not what was written there", piece,
                   entry.name);
    bytes = bytes.subspan(plain.size());
    sealed = sealed.subspan(from.size());
  }
  return {};
}

}  // namespace surefoot
