#include "checkpoint/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "common/file.h"

namespace surefoot {
namespace {

constexpr const char* kHowToMake = "make one with: (umask 077; head -c 32 /dev/urandom > FILE)";

// Up to bytes.size(), or -1.
ssize_t read_up_to(int fd, std::span<std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::read(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return static_cast<ssize_t>(done);
}

}  // namespace

Result<SealKey> read_key_file(const std::filesystem::path& file) {
  // Not blocking: a FIFO would wait for its writer.
  const Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd)
    return error(Code::kInvalid, "cannot read the key file {}: {}; {}", file.string(),
                 errno_text(errno), kHowToMake);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return error(Code::kInvalid, "the key file {} is no regular file", file.string());
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return error(Code::kInvalid, "the key file {} is open to others (mode {:04o}): chmod 600 {}",
                 file.string(), info.st_mode & 07777, file.string());
  std::array<std::byte, kKeyBytes + 1> bytes{};
  const ssize_t count = read_up_to(fd.get(), bytes);
  if (count < 0)
    return error(Code::kInvalid, "cannot read the key file {}: {}", file.string(),
                 errno_text(errno));
  Result<SealKey> key =
      count == static_cast<ssize_t>(kKeyBytes)
          ? Result<SealKey>(SealKey(std::span(bytes).first<kKeyBytes>()))
          : Result<SealKey>(error(
                Code::kInvalid, "the key file {} does not hold {} bytes but {}; {}", file.string(),
                kKeyBytes, count > static_cast<ssize_t>(kKeyBytes) ? "more" : "fewer", kHowToMake));
  wipe(bytes);
  return key;
}

Result<Keys> read_keys(const config::Checkpoint& checkpoint) {
  const config::Encryption& encryption = checkpoint.encryption();
  if (encryption.key_file().empty()) return Keys();
  SUREFOOT_ASSIGN(SealKey current, read_key_file(encryption.key_file()));
  std::vector<SealKey> old;
  for (const std::string& file : encryption.old_key_files()) {
    SUREFOOT_ASSIGN(SealKey key, read_key_file(file));
    old.push_back(std::move(key));
  }
  return Keys(std::make_shared<const KeyRing>(std::move(current), std::move(old)));
}

}  // namespace surefoot
