// The archive of Surefoot's programs and the libraries they need (`make bundle`), and where a
// machine keeps it.
//
// A gzipped tar of bin/, lib/ and bundle.txt. Machines keep it by its content, so an old one is
// never taken for a new one, and a half-written one for none: it is unpacked beside and renamed.
#pragma once

#include <filesystem>
#include <string>

#include "common/file.h"
#include "common/status.h"

namespace surefoot {

// In single quotes, for a shell.
[[nodiscard]] std::string shell_quoted(const std::string& text);

class Bundle {
 public:
  // Reads the whole file for its hash; kInvalid: it cannot be read.
  [[nodiscard]] static Result<Bundle> open(const std::filesystem::path& archive);
  // Of a machine, for its /bin/sh: "${XDG_CACHE_HOME:-$HOME/.cache}"/surefoot/<hash>.
  [[nodiscard]] std::string folder() const;
  // For /bin/sh: takes the archive from standard input. Repeatable, also at once with itself.
  [[nodiscard]] std::string unpack_command() const;
  // At the archive's begin; owned by this.
  [[nodiscard]] int file() const;

 private:
  Bundle(Fd file, std::string hash) : file_(std::move(file)), hash_(std::move(hash)) {}
  Fd file_;
  std::string hash_;
};

}  // namespace surefoot
