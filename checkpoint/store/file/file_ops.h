// The port between FileStore and the operating system: the few file operations it needs, so that
// tests can make the Nth of them fail.
//
// Results are those of the system calls: >= 0, or -errno. Any thread. Each call blocks as long as
// the disk does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace surefoot {

struct FolderEntry {
  std::string name;
  bool folder = false;
  std::int64_t bytes = 0;
  Duration age{};  // since last modified
};

class FileOps {
 public:
  enum class Open {
    kCreate,  // new file for writing, mode 0666 less the umask; must not exist
    kRead,    // for reading past the page cache
    kFolder,  // to sync it
  };
  virtual ~FileOps() = default;
  virtual std::int64_t open(const std::string& path, Open how) = 0;          // file descriptor
  virtual std::int64_t write(int fd, std::span<const std::byte> bytes) = 0;  // may be short
  virtual std::int64_t read(int fd, std::int64_t offset,
                            std::span<std::byte> into) = 0;  // may be short; 0 at the end
  virtual std::int64_t sync(int fd) = 0;                     // fsync
  virtual void close(int fd) = 0;
  virtual std::int64_t link(const std::string& from,
                            const std::string& to) = 0;           // -EEXIST when `to` is there
  virtual std::int64_t remove(const std::string& path) = 0;       // file, or empty folder
  virtual std::int64_t make_folder(const std::string& path) = 0;  // -EEXIST when it is there
  virtual std::int64_t list(const std::string& path, std::vector<FolderEntry>& into) = 0;
};

// What a failed operation means for the caller: `what` it was ("cannot write"), on which path, and
// what the user can do.
[[nodiscard]] Error file_error(std::int64_t outcome, std::string_view what,
                               const std::string& path);

class PosixFileOps : public FileOps {
 public:
  std::int64_t open(const std::string& path, Open how) override;
  std::int64_t write(int fd, std::span<const std::byte> bytes) override;
  std::int64_t read(int fd, std::int64_t offset, std::span<std::byte> into) override;
  std::int64_t sync(int fd) override;
  void close(int fd) override;
  std::int64_t link(const std::string& from, const std::string& to) override;
  std::int64_t remove(const std::string& path) override;
  std::int64_t make_folder(const std::string& path) override;
  std::int64_t list(const std::string& path, std::vector<FolderEntry>& into) override;
};

}  // namespace surefoot
