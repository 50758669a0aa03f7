#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>

#include "checkpoint/arena.h"

namespace surefoot {

Result<FolderLock> FolderLock::take(const std::filesystem::path& folder, const std::string& name) {
  const std::filesystem::path path = folder / name;
  for (;;) {
    Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd)
      return error(Code::kRetry, "cannot open lock {}: {}", path.string(), errno_text(errno));
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK)
        return error(Code::kRetry, "cannot lock {}: {}", path.string(), errno_text(errno));
      char text[32] = {};
      [[maybe_unused]] const ssize_t got = ::pread(fd.get(), text, sizeof text - 1, 0);
      int pid = 0;
      std::from_chars(text, text + sizeof text - 1, pid);
      return error(Code::kStale, "{} is held by process {}", path.string(), pid);
    }
    // The folder may have been removed and made again between open and flock: then this locks a
    // file that nobody else sees.
    struct stat mine {};
    struct stat there {};
    if (::fstat(fd.get(), &mine) != 0 || ::stat(path.c_str(), &there) != 0 ||
        mine.st_ino != there.st_ino || mine.st_dev != there.st_dev) {
      continue;
    }
    const std::string pid = fmt::format("{}\n", ::getpid());
    if (::ftruncate(fd.get(), 0) != 0 ||
        ::pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
      // Only the name in messages is lost: the lock is what counts.
    }
    return FolderLock(std::move(fd));
  }
}

}  // namespace surefoot
