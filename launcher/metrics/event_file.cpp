#include "launcher/metrics/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "common/process.h"

namespace surefoot {
namespace {

// Castagnoli's polynomial, reflected. zlib's crc32 is another one.
constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kTable = make_table();

std::uint32_t masked(std::uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <class Word>
std::string little_endian(Word word) {
  std::string bytes(sizeof word, '\0');
  for (std::size_t i = 0; i < sizeof word; ++i) bytes[i] = static_cast<char>(word >> (8 * i));
  return bytes;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const char byte : bytes)
    crc = kTable[(crc ^ static_cast<std::uint8_t>(byte)) & 0xff] ^ (crc >> 8);
  return crc ^ 0xffffffffu;
}

std::string frame_record(std::string_view payload) {
  const std::string length = little_endian(static_cast<std::uint64_t>(payload.size()));
  return length + little_endian(masked(crc32c(length))) + std::string(payload) +
         little_endian(masked(crc32c(payload)));
}

Result<EventFile> EventFile::create(const std::filesystem::path& folder, double wall_seconds) {
  for (int n = 0; n < 1000; ++n) {
    std::filesystem::path path =
        folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}",
                             static_cast<std::int64_t>(wall_seconds), host_name(), ::getpid(), n);
    Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
    if (!fd && errno == EEXIST) continue;
    if (!fd) return error(Code::kRetry, "cannot create {}: {}", path.string(), errno_text(errno));
    EventFile file(std::move(fd), std::move(path));
    tensorboard::Event version;
    version.set_wall_time(wall_seconds);
    version.set_file_version("brain.Event:2");
    SUREFOOT_TRY(file.append(frame_record(version.SerializeAsString())));
    return file;
  }
  return error(Code::kRetry,
               "cannot create an event file in {}: a thousand of this second and process are there",
               folder.string());
}

Status EventFile::append(const std::string& framed) {
  for (std::string_view rest = framed; !rest.empty();) {
    const ssize_t put = ::write(fd_.get(), rest.data(), rest.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      return error(errno == ENOSPC || errno == EDQUOT ? Code::kNoSpace : Code::kRetry,
                   "cannot write {}: {}", path_.string(), errno_text(errno));
    }
    rest.remove_prefix(static_cast<std::size_t>(put));
  }
  return {};
}

}  // namespace surefoot
