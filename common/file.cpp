#include "common/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace surefoot {

void Fd::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::string errno_text(int number) {
  char buffer[128];
  return strerror_r(number, buffer, sizeof buffer);
}

Result<std::string> read_file(const std::filesystem::path& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    return error(errno == ENOENT ? Code::kNotFound : Code::kRetry, "cannot open {}: {}",
                 path.string(), errno_text(errno));
  }
  std::string content;
  char block[64 * 1024];
  for (;;) {
    const ssize_t got = ::read(fd.get(), block, sizeof block);
    if (got < 0) return error(Code::kRetry, "cannot read {}: {}", path.string(), errno_text(errno));
    if (got == 0) return content;
    content.append(block, static_cast<std::size_t>(got));
  }
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  const auto fail = [&](const char* what) {
    const int number = errno;
    return error(number == ENOSPC || number == EDQUOT ? Code::kNoSpace : Code::kRetry,
                 "cannot {} {}: {}", what, path.string(), errno_text(number));
  };
  const std::string temporary = fmt::format("{}.{}.tmp", path.string(), ::getpid());
  Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) return fail("create");
  for (std::string_view rest = content; !rest.empty();) {
    const ssize_t put = ::write(fd.get(), rest.data(), rest.size());
    if (put < 0) {
      Error failed = fail("write");
      ::unlink(temporary.c_str());
      return failed;
    }
    rest.remove_prefix(static_cast<std::size_t>(put));
  }
  if (::fsync(fd.get()) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) {
    Error failed = fail("write");
    ::unlink(temporary.c_str());
    return failed;
  }
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  Fd folder(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) return fail("sync the folder of");
  return {};
}

}  // namespace surefoot
