// TensorBoard's event files: Event messages in TFRecord framing, appended.
//
//   record = u64 length, u32 masked_crc(length), `length` bytes of a serialized Event, u32
//   masked_crc(bytes)      all little-endian masked_crc(x) = rotate_right(crc32c(x), 15) +
//   0xa282ead8        (tensorflow/core/lib/hash/crc32c.h)
//
// A reader stops at a record that is cut short, so a crash costs the tail of one file, never what
// stands before it. Each writer makes a file of its own; TensorBoard reads all files of a folder in
// the order of their names, which start with the time.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/file.h"
#include "common/status.h"
#include "launcher/metrics/event.pb.h"

namespace surefoot {

[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);
// One framed record.
[[nodiscard]] std::string frame_record(std::string_view payload);

class EventFile {
 public:
  // Makes `<folder>/events.out.tfevents.<unix seconds>.<host>.<pid>.<n>` with its version record.
  [[nodiscard]] static Result<EventFile> create(const std::filesystem::path& folder,
                                                double wall_seconds);
  // Appends whole records with one write. kNoSpace, kRetry: the file may end in a record cut short.
  Status append(const std::string& framed);

 private:
  explicit EventFile(Fd fd, std::filesystem::path path)
      : fd_(std::move(fd)), path_(std::move(path)) {}
  Fd fd_;
  std::filesystem::path path_;
};

}  // namespace surefoot
