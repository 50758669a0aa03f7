#include "launcher/nodes/bundle.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <vector>

#include "common/digest.h"

namespace surefoot {

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

Result<Bundle> Bundle::open(const std::filesystem::path& archive) {
  Fd file(::open(archive.c_str(), O_RDONLY | O_CLOEXEC));
  Digester digester;
  std::vector<std::byte> block(1 << 20);
  ssize_t got = file ? 1 : -1;
  while (got > 0) {
    got = ::read(file.get(), block.data(), block.size());
    if (got > 0) digester.update(std::span(block).first(static_cast<std::size_t>(got)));
  }
  if (got < 0 || ::lseek(file.get(), 0, SEEK_SET) != 0)
    return error(Code::kInvalid, "cannot read resources.bundle {}: {}", archive.string(),
                 errno_text(errno));
  return Bundle(std::move(file), digester.finish().hex());
}

std::string Bundle::folder() const {
  return "\"${XDG_CACHE_HOME:-$HOME/.cache}\"/surefoot/" + hash_;
}

std::string Bundle::unpack_command() const {
  // Machines that share a home may do this at once, and with the same process number.
  return fmt::format(
      "to={}; mkdir -p \"${{to%/*}}\" && new=$(mktemp -d \"$to.XXXXXX\") || exit; "
      "tar -xzf - -C \"$new\" && {{ mv -T \"$new\" \"$to\" 2>/dev/null || test -d \"$to\"; }}; "
      "code=$?; rm -rf \"$new\"; "
      "exit $code",
      folder());
}

int Bundle::file() const {
  return file_.get();
}

}  // namespace surefoot
