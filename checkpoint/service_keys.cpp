#include "checkpoint/service_keys.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

#include "common/file.h"
#include "common/ids.h"

namespace surefoot {
namespace {

constexpr std::size_t kKeyCharacters = 40;
constexpr std::size_t kMaxTextBytes = 1024;

// Do not rename: these stand in files and are spoken between programs.
struct Field {
  std::string_view name;
  std::string ServiceKeys::*key;
};
constexpr std::array<Field, 4> kFields = {{{"server-public", &ServiceKeys::server_public},
                                           {"server-secret", &ServiceKeys::server_secret},
                                           {"client-public", &ServiceKeys::client_public},
                                           {"client-secret", &ServiceKeys::client_secret}}};

bool is_key(const std::string& text) {
  std::array<std::uint8_t, 32> bytes{};
  return text.size() == kKeyCharacters && ::zmq_z85_decode(bytes.data(), text.c_str()) != nullptr;
}

Result<std::pair<std::string, std::string>> make_pair() {
  std::array<char, kKeyCharacters + 1> public_key{};
  std::array<char, kKeyCharacters + 1> secret_key{};
  if (::zmq_curve_keypair(public_key.data(), secret_key.data()) != 0)
    return error(Code::kInvalid, "this libzmq is built without CURVE, which the service needs");
  return std::pair<std::string, std::string>{public_key.data(), secret_key.data()};
}

Error failed(const char* what, const std::filesystem::path& path) {
  const int number = errno;
  const Code code = number == ENOSPC || number == EDQUOT ? Code::kNoSpace : Code::kInvalid;
  return error(code, "cannot {} {}: {}", what, path.string(), errno_text(number));
}

Status write_new_file(const std::filesystem::path& path, std::string_view text) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return failed("make", path);
  // Whatever the umask is, and whatever an access list of the folder would add.
  if (::fchmod(fd.get(), 0600) != 0) return failed("make", path);
  while (!text.empty()) {
    const ssize_t put = ::write(fd.get(), text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return failed("write", path);
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  return ::fsync(fd.get()) == 0 ? Status() : Status(failed("write", path));
}

// Reads at most a block more than is allowed, so that what is too long is seen to be.
Result<std::string> read_text(int fd) {
  std::string text;
  std::array<char, kMaxTextBytes> block{};
  while (text.size() <= kMaxTextBytes && text.find("\n\n") == std::string::npos) {
    const ssize_t got = ::read(fd, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error(Code::kRetry, "the keys cannot be read: {}", errno_text(errno));
    if (got == 0) break;
    text.append(block.data(), static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace

ServiceKeys server_half(const ServiceKeys& keys) {
  return {keys.server_public, keys.server_secret, keys.client_public, {}};
}

ServiceKeys client_half(const ServiceKeys& keys) {
  return {keys.server_public, {}, keys.client_public, keys.client_secret};
}

std::string to_text(const ServiceKeys& keys) {
  std::string text;
  for (const Field& field : kFields) {
    if (!(keys.*field.key).empty()) text += fmt::format("{} {}\n", field.name, keys.*field.key);
  }
  return text;
}

Result<ServiceKeys> parse_service_keys(std::string_view text) {
  const Error wrong = error(Code::kInvalid, "these are not the keys of a job's services");
  if (text.size() > kMaxTextBytes) return wrong;
  ServiceKeys keys;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty()) break;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) return wrong;
    std::string key(line.substr(space + 1));
    bool known = false;
    for (const Field& field : kFields) {
      if (field.name != line.substr(0, space)) continue;
      if (!is_key(key) || !(keys.*field.key).empty()) return wrong;
      keys.*field.key = std::move(key);
      known = true;
      break;
    }
    if (!known) return wrong;
  }
  const bool some = !keys.server_secret.empty() || !keys.client_secret.empty();
  if (keys.server_public.empty() || keys.client_public.empty() || !some) return wrong;
  return keys;
}

Result<ServiceKeys> read_service_keys(const std::filesystem::path& file) {
  // What is no file is not waited for.
  const Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) return error(Code::kNotFound, "there is no {}", file.string());
  if (!fd) return failed("read", file);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return failed("read", file);
  if ((info.st_mode & 077) != 0 || !S_ISREG(info.st_mode)) {
    return error(Code::kInvalid,
                 "{} may be read by others: remove it (new keys are made at the next start)",
                 file.string());
  }
  SUREFOOT_ASSIGN(const std::string text, read_text(fd.get()));
  auto keys = parse_service_keys(text);
  if (!keys) return error(keys.error().code, "{}: {}", file.string(), keys.error().message);
  return keys;
}

Result<ServiceKeys> make_service_keys(const std::filesystem::path& file) {
  auto standing = read_service_keys(file);
  if (standing || standing.error().code != Code::kNotFound) return standing;
  SUREFOOT_ASSIGN(auto server, make_pair());
  SUREFOOT_ASSIGN(auto client, make_pair());
  const std::filesystem::path temporary = file.string() + "." + make_job_id() + ".tmp";
  Status made = write_new_file(temporary,
                               to_text({server.first, server.second, client.first, client.second}));
  // link(2) never replaces: whoever comes second finds the first one's keys, whole.
  if (made && ::link(temporary.c_str(), file.c_str()) != 0 && errno != EEXIST)
    made = failed("make", file);
  ::unlink(temporary.c_str());
  SUREFOOT_TRY(std::move(made));
  return read_service_keys(file);
}

}  // namespace surefoot
