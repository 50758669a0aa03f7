// Small helpers for whole files. What must be atomic or survive a crash of the machine says so.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/status.h"

namespace surefoot {

[[nodiscard]] Result<std::string> read_file(
    const std::filesystem::path& path);  // kNotFound when there is none

// Temporary name in the same folder, fsync, rename, fsync of the folder: readers see the old
// content or the new, whole.
Status write_file_atomically(const std::filesystem::path& path, std::string_view content);

// Owns a file descriptor.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }
  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_;
};

// The text of an errno value, with its name: "No space left on device".
[[nodiscard]] std::string errno_text(int number);

}  // namespace surefoot
