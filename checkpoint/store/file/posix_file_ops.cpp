#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>

#include "checkpoint/store/file/file_ops.h"
#include "common/file.h"

namespace surefoot {
namespace {

std::int64_t outcome(std::int64_t returned) {
  return returned >= 0 ? returned : -std::int64_t{errno};
}

template <class Call>
std::int64_t retry_interrupted(const Call& call) {
  for (;;) {
    const std::int64_t result = outcome(call());
    if (result != -EINTR) return result;
  }
}

}  // namespace

Error file_error(std::int64_t outcome, std::string_view what, const std::string& path) {
  const int number = static_cast<int>(-outcome);
  const auto say = [&](Code code, std::string_view hint) {
    return error(code, "{} {}: {}{}", what, path, errno_text(number), hint);
  };
  switch (number) {
    case ENOSPC:
    case EDQUOT:
      return say(Code::kNoSpace, "; free space there or choose another folder");
    case EROFS:
      return say(Code::kInvalid, "; choose a folder that can be written");
    case EACCES:
    case EPERM:
      return say(Code::kInvalid, "; check the owner and mode of the folder");
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return say(Code::kInvalid, "; choose another folder");
    case ENOENT:
      return say(Code::kNotFound, "");
    default:
      return say(Code::kRetry, "");
  }
}

std::int64_t PosixFileOps::open(const std::string& path, Open how) {
  int flags = O_CLOEXEC;
  switch (how) {
    case Open::kCreate:
      flags |= O_WRONLY | O_CREAT | O_EXCL;
      break;
    case Open::kRead:
      flags |= O_RDONLY;
      break;
    case Open::kFolder:
      flags |= O_RDONLY | O_DIRECTORY;
      break;
  }
  const std::int64_t fd = retry_interrupted([&] { return ::open(path.c_str(), flags, 0666); });
  if (fd >= 0 && how == Open::kRead) {
    // Objects were synced before they got their names, so their pages are clean and this drops them
    // all: what is read comes from the disk.
    (void)::posix_fadvise(static_cast<int>(fd), 0, 0, POSIX_FADV_DONTNEED);
    (void)::posix_fadvise(static_cast<int>(fd), 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  return fd;
}

std::int64_t PosixFileOps::write(int fd, std::span<const std::byte> bytes) {
  const std::int64_t count =
      retry_interrupted([&] { return ::write(fd, bytes.data(), bytes.size()); });
  // The disk starts on these bytes while the caller digests the next ones; sync() then has little
  // left to wait for. A hint only: where it is not known, sync() does all the work.
  const off_t end = count > 0 ? ::lseek(fd, 0, SEEK_CUR) : -1;
  if (end >= count) (void)::sync_file_range(fd, end - count, count, SYNC_FILE_RANGE_WRITE);
  return count;
}

std::int64_t PosixFileOps::read(int fd, std::int64_t offset, std::span<std::byte> into) {
  const std::int64_t count =
      retry_interrupted([&] { return ::pread(fd, into.data(), into.size(), offset); });
  // The disk goes on with the next piece while the caller digests this one.
  if (count > 0) (void)::posix_fadvise(fd, offset + count, count, POSIX_FADV_WILLNEED);
  return count;
}

std::int64_t PosixFileOps::sync(int fd) {
  // Not repeated on EINTR or anything else: a failed fsync may have dropped the pages, so a second
  // one that succeeds would mean nothing.
  return outcome(::fsync(fd));
}

void PosixFileOps::close(int fd) {
  (void)::close(fd);
}

std::int64_t PosixFileOps::link(const std::string& from, const std::string& to) {
  return outcome(::link(from.c_str(), to.c_str()));
}

std::int64_t PosixFileOps::remove(const std::string& path) {
  return outcome(::remove(path.c_str()));
}

std::int64_t PosixFileOps::make_folder(const std::string& path) {
  return outcome(::mkdir(path.c_str(), 0777));
}

std::int64_t PosixFileOps::list(const std::string& path, std::vector<FolderEntry>& into) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), ::closedir);
  if (!folder) return -std::int64_t{errno};
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(folder.get());
    if (entry == nullptr) return -std::int64_t{errno};
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat about {};
    if (::fstatat(::dirfd(folder.get()), name.c_str(), &about, 0) != 0) {
      if (errno == ENOENT) continue;  // removed since, or a dangling link
      return -std::int64_t{errno};
    }
    const auto age = std::chrono::seconds(now.tv_sec - about.st_mtim.tv_sec) +
                     std::chrono::nanoseconds(now.tv_nsec - about.st_mtim.tv_nsec);
    into.push_back(
        {name, S_ISDIR(about.st_mode), about.st_size, std::max<Duration>(age, Duration::zero())});
  }
}

}  // namespace surefoot
