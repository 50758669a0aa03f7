#include "checkpoint/arena_space.h"

#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "checkpoint/arena.h"
#include "common/file.h"

namespace surefoot {
namespace {

std::string mib(std::int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> number_in(const std::filesystem::path& path) {
  auto text = read_file(path);
  return text ? number(*text) : std::nullopt;
}

// Value of "key value" in a file of such lines; 0 when absent.
std::int64_t field(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key) || line.size() <= key.size()) continue;
    const std::size_t at = line.find_first_of("0123456789", key.size());
    const char after = line[key.size()];
    if ((after == ' ' || after == ':') && at != std::string::npos)
      return number(std::string_view(line).substr(at)).value_or(0);
  }
  return 0;
}

// What one cgroup still allows. Its page cache is given back under pressure, so it does not count
// as used.
std::optional<std::int64_t> room_of(const std::filesystem::path& group, bool version2) {
  const auto limit =
      number_in(group / (version2 ? "memory.max" : "memory.limit_in_bytes"));  // "max": none
  const auto used = number_in(group / (version2 ? "memory.current" : "memory.usage_in_bytes"));
  // Version 1 writes no limit as the largest multiple of a page.
  if (!limit || !used || *limit >= (std::int64_t{1} << 62)) return std::nullopt;
  const std::string stat = read_file(group / "memory.stat").has_value()
                               ? read_file(group / "memory.stat").value()
                               : std::string();
  const char* const prefix = version2 ? "" : "total_";
  const std::int64_t cache = field(stat, std::string(prefix) + "inactive_file") +
                             field(stat, std::string(prefix) + "active_file");
  return std::max<std::int64_t>(0, *limit - *used + cache);
}

}  // namespace

Status check_space(std::int64_t needed_bytes, const std::string& folder, const SpaceFacts& facts) {
  const auto refuse = [&](std::string_view what, std::int64_t there, std::string_view cure) {
    return error(Code::kNoSpace,
                 "the snapshots need {} in {}, but {} {}: {}, or set checkpoint.arena to a folder "
                 "with more room",
                 mib(needed_bytes), folder, what, mib(there), cure);
  };
  if (facts.free_bytes < needed_bytes) {
    return refuse("its file system has", facts.free_bytes,
                  facts.memory ? "mount it larger (containers: --shm-size)" : "free some");
  }
  if (facts.memory && facts.memory_bytes < needed_bytes)
    return refuse("the machine's available memory is", facts.memory_bytes, "free some memory");
  if (facts.memory && facts.cgroup_bytes >= 0 && facts.cgroup_bytes < needed_bytes) {
    return refuse("the memory limit of this control group leaves", facts.cgroup_bytes,
                  "raise the limit (containers: --memory)");
  }
  return {};
}

Result<std::int64_t> available_memory() {
  SUREFOOT_ASSIGN(const std::string info, read_file("/proc/meminfo"));
  return (field(info, "MemAvailable") + field(info, "SwapFree")) * 1024;
}

Result<SpaceFacts> look_at_space(const std::filesystem::path& folder) {
  struct statvfs space {};
  struct statfs kind {};
  if (::statvfs(folder.c_str(), &space) != 0 || ::statfs(folder.c_str(), &kind) != 0) {
    return error(Code::kNoSpace, "cannot look at {}: {}; set checkpoint.arena to another folder",
                 folder.string(), errno_text(errno));
  }
  SpaceFacts facts;
  facts.free_bytes =
      static_cast<std::int64_t>(space.f_bavail) * static_cast<std::int64_t>(space.f_frsize);
  facts.memory = kind.f_type == TMPFS_MAGIC || kind.f_type == RAMFS_MAGIC;
  if (facts.memory) {
    SUREFOOT_ASSIGN(facts.memory_bytes, available_memory());
    facts.cgroup_bytes = cgroup_room("/");
  }
  return facts;
}

Status check_arena_base(const std::string& base, int workers) {
  // Open MPI 4.1 backs each rank's mailboxes with a file of 4 MiB; a rank that cannot write to it
  // dies of SIGBUS or waits for ever.
  constexpr std::int64_t kBytesPerWorker = 5 << 20;
  const std::string folder = arena_folder(base, "").parent_path().string();
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return error(
        Code::kNoSpace,
        "cannot write to {}: {}; the snapshots lie there, set checkpoint.arena to another folder",
        folder, errno_text(errno));
  }
  SUREFOOT_ASSIGN(const SpaceFacts facts, look_at_space(folder));
  return check_space(workers * kBytesPerWorker, folder, facts);
}

std::int64_t cgroup_room(const std::filesystem::path& root) {
  auto text = read_file(root / "proc/self/cgroup");
  if (!text) return -1;
  std::int64_t least = -1;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version2 = controllers == ",,";
    if (!version2 && controllers.find(",memory,") == std::string::npos) continue;
    const std::filesystem::path mount =
        root / (version2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    // In a container the path may be the host's: then only the mount itself can be looked at.
    std::filesystem::path group = std::filesystem::path(line.substr(second + 1)).relative_path();
    for (;; group = group.parent_path()) {
      if (const auto room = room_of(mount / group, version2))
        least = least < 0 ? *room : std::min(least, *room);
      if (group.empty()) break;
    }
  }
  return least;
}

}  // namespace surefoot
