#include "checkpoint/store_reading.h"

#include <algorithm>

namespace surefoot {

Time Control::by(std::int64_t bytes) const {
  constexpr std::int64_t kSlowest = 1'000'000;  // bytes a second; arbitrary, far below any store
  if (patience == Duration::max()) return deadline;
  return std::min(deadline, now() + patience + std::chrono::seconds(bytes / kSlowest));
}

Status go_on(const Control& control) {
  if (control.stop && control.stop()) return error(Code::kRetry, "stopped on request");
  if (now() >= control.deadline) return error(Code::kRetry, "deadline passed");
  return {};
}

Result<std::string> read_header(Store& store, const ObjectInfo& object, Time deadline) {
  std::string first8(8, '\0');
  SUREFOOT_TRY(store.read(object.name, 0, std::as_writable_bytes(std::span(first8)), deadline));
  SUREFOOT_ASSIGN(const std::int64_t bytes, part_header_bytes(first8, object.bytes));
  std::string header(static_cast<std::size_t>(bytes), '\0');
  SUREFOOT_TRY(store.read(object.name, 0, std::as_writable_bytes(std::span(header)), deadline));
  return header;
}

Result<Manifest> read_any_manifest(Store& store, Step step, Time deadline) {
  const std::string name = manifest_name(step);
  SUREFOOT_ASSIGN(const std::string text, read_object(store, name, kMaxManifestBytes, deadline));
  auto manifest = parse_manifest(text);
  if (!manifest)
    return error(manifest.error().code, "{}/{}: {}", store.url(), name, manifest.error().message);
  if (manifest->identity.step != step)
    return error(Code::kCorrupt, "{}/{} is of step {}", store.url(), name, manifest->identity.step);
  return manifest;
}

}  // namespace surefoot
