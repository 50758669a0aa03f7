#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/file.h"
#include "configs/job.h"
#include "configs/schema.h"

namespace surefoot {
namespace {

using namespace configs;

constexpr std::int64_t kWholeBytes =
    1LL << 30;  // larger files are sampled: reading them would hold up every start
constexpr std::int64_t kBlockBytes = 64LL << 10;  // one sampled block
constexpr std::int64_t kBlocks =
    1024;  // sampled, the first and the last block of the file among them

Status digest_range(const Fd& fd, const std::string& path, std::int64_t offset, std::int64_t bytes,
                    Digester& digester) {
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min<std::int64_t>(bytes, 1 << 20)));
  while (bytes > 0) {
    const auto wanted = static_cast<std::size_t>(
        std::min<std::int64_t>(bytes, static_cast<std::int64_t>(buffer.size())));
    const ssize_t got = ::pread(fd.get(), buffer.data(), wanted, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error(Code::kInvalid, "cannot read {}: {}", path, errno_text(errno));
    if (got == 0) return error(Code::kInvalid, "{} was cut short while it was read", path);
    digester.update(std::span(buffer).first(static_cast<std::size_t>(got)));
    offset += got;
    bytes -= got;
  }
  return {};
}

Result<std::string> fingerprint(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return error(Code::kInvalid, "cannot open {}: {}", path, errno_text(errno));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return error(Code::kInvalid, "{} is no regular file", path);
  const std::int64_t size = status.st_size;
  Digester digester;
  if (size <= kWholeBytes) {
    SUREFOOT_TRY(digest_range(fd, path, 0, size, digester));
  } else {
    for (std::int64_t i = 0; i < kBlocks; ++i) {
      // (size - block) * i can pass 2^63 only for files beyond 8 PiB.
      SUREFOOT_TRY(digest_range(fd, path,
                                (size - kBlockBytes) / (kBlocks - 1) * i +
                                    (size - kBlockBytes) % (kBlocks - 1) * i / (kBlocks - 1),
                                kBlockBytes, digester));
    }
  }
  return fmt::format("{} bytes, xxh3 {}", size, digester.finish().hex());
}

std::string value_text(const Message& message, const FieldDescriptor& field) {
  if (!field.is_repeated()) return scalar_text(message, field);
  std::string out;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i)
    out += (i > 0 ? ", " : "") + scalar_text(message, field, i);
  return "[" + out + "]";
}

// What a training key's value comes to in this job; empty: it decides nothing.
std::string effective_value(const config::Job& job, const std::string& key, std::string value) {
  const bool is_constant = job.train().schedule().kind() == config::Schedule::constant;
  if (key == "train.max_steps" && is_constant) return "";
  // A job that was begun before there was this key goes on.
  if (key == "train.communicate_in" && job.train().communicate_in() == config::Gradients::fp32)
    return "";
  // With a held-out file of its own all of `path` is trained on.
  if (key == "data.holdout" && !job.data().eval_path().empty()) return "0";
  return value;
}

Status collect(const config::Job& job, const Message& message, const std::string& path,
               std::vector<std::string>& lines) {
  const std::string kind = chosen_kind(message);
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const std::string key = join_key(path, field.name());
    if (!applies(field, kind)) continue;
    if (is_section(field)) {
      SUREFOOT_TRY(collect(job, message.GetReflection()->GetMessage(message, &field), key, lines));
      continue;
    }
    if (key_of(field).kind() != config::TRAINING) continue;
    std::string value = effective_value(job, key, value_text(message, field));
    if (value.empty()) continue;
    if (key_of(field).unit() == config::PATH) {
      SUREFOOT_ASSIGN(value,
                      fingerprint(key == "model.from" ? starting_weights_file(value) : value));
    }
    lines.push_back(fmt::format("{}: {}", key, value));
  }
  return {};
}

struct Line {
  std::string_view key;
  std::string_view value;
};
Line split(std::string_view line) {
  const std::size_t colon = line.find(": ");
  if (colon == std::string_view::npos) return {line, ""};
  return {line.substr(0, colon), line.substr(colon + 2)};
}
const std::string* line_of(const std::vector<std::string>& lines, std::string_view key) {
  const auto found = std::find_if(lines.begin(), lines.end(),
                                  [&](const std::string& line) { return split(line).key == key; });
  return found == lines.end() ? nullptr : &*found;
}

}  // namespace

std::string starting_weights_file(const std::string& from) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(from, ignored)) return from;
  return (std::filesystem::path(from) / "model.safetensors").string();
}

Result<TrainingIdentity> training_identity(const config::Job& job) {
  TrainingIdentity identity;
  SUREFOOT_TRY(collect(job, job, "", identity.lines));
  Digester digester;
  for (const std::string& line : identity.lines) {
    digester.update(line);
    digester.update("\n");
  }
  identity.hash = digester.finish();
  return identity;
}

std::vector<std::string> differences(const std::vector<std::string>& was,
                                     const std::vector<std::string>& is) {
  std::vector<std::string> out;
  for (const std::string& line : was) {
    const auto [key, value] = split(line);
    const std::string* now = line_of(is, key);
    if (now == nullptr) {
      out.push_back(fmt::format("{}: was {}, is not set", key, value));
    } else if (*now != line) {
      out.push_back(fmt::format("{}: was {}, is {}", key, value, split(*now).value));
    }
  }
  for (const std::string& line : is) {
    const auto [key, value] = split(line);
    if (line_of(was, key) == nullptr)
      out.push_back(fmt::format("{}: was not set, is {}", key, value));
  }
  return out;
}

}  // namespace surefoot
