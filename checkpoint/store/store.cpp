#include "checkpoint/store.h"

namespace surefoot {

Status put_if_absent(Store& store, const std::string& name, std::string_view content,
                     Time deadline) {
  std::size_t done = 0;
  const ByteSource source = [&]() -> Result<std::span<const std::byte>> {
    const std::string_view piece = content.substr(done, kMaxPieceBytes);
    done += piece.size();
    return as_bytes(piece);
  };
  return store.put_if_absent(name, static_cast<std::int64_t>(content.size()), source, deadline);
}

Result<std::string> read_object(Store& store, const std::string& name, std::int64_t limit,
                                Time deadline) {
  SUREFOOT_ASSIGN(const auto objects, store.list(name, deadline));
  if (objects.empty() || objects.front().name != name)
    return error(Code::kNotFound, "{}/{} is not there", store.url(), name);
  const std::int64_t bytes = objects.front().bytes;
  if (bytes > limit)
    return error(Code::kCorrupt, "{}/{} has {} bytes, {} at most are expected", store.url(), name,
                 bytes, limit);
  std::string content(static_cast<std::size_t>(bytes), '\0');
  for (std::int64_t at = 0; at < bytes;) {
    const std::int64_t piece = std::min<std::int64_t>(bytes - at, kMaxPieceBytes);
    SUREFOOT_TRY(store.read(name, at, std::as_writable_bytes(std::span(content).subspan(at, piece)),
                            deadline));
    at += piece;
  }
  return content;
}

}  // namespace surefoot
