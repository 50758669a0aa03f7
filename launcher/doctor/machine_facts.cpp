#include <linux/magic.h>
#include <pwd.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "checkpoint/arena.h"
#include "checkpoint/arena_space.h"
#include "common/file.h"
#include "launcher/doctor/links.h"
#include "launcher/doctor/machine.h"

namespace surefoot::doctor {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  auto text = read_file(file);
  return text ? *text : std::string();
}

std::string line_in(const fs::path& file) {
  const std::string text = text_of(file);
  return text.substr(0, text.find('\n'));
}

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(::sysconf(_SC_NPROCESSORS_ONLN), 1L));
}

int count_cores(const fs::path& root) {
  std::set<std::string> cores;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root / "sys/devices/system/cpu", none)) {
    const std::string siblings = line_in(entry.path() / "topology/thread_siblings_list");
    if (!siblings.empty()) cores.insert(siblings);
  }
  return static_cast<int>(cores.size());
}

// "max 100000" or "150000 100000".
std::optional<double> quota_of(const fs::path& group) {
  std::istringstream words(line_in(group / "cpu.max"));
  double quota = 0, period = 0;
  if (!(words >> quota >> period) || period <= 0) return std::nullopt;
  return quota / period;
}

// Version 2 only: that is what systems with cpu.max have.
std::optional<double> tightest_quota(const fs::path& root) {
  std::optional<double> least;
  const std::string own = line_in(root / "proc/self/cgroup");
  if (!own.starts_with("0::/")) return least;
  for (fs::path group = own.substr(4);; group = group.parent_path()) {
    const auto quota = quota_of(root / "sys/fs/cgroup" / group);
    if (quota && (!least || *quota < *least)) least = quota;
    if (group.empty()) return least;
  }
}

std::map<std::string, std::int64_t> meminfo(const fs::path& root) {
  std::map<std::string, std::int64_t> bytes;
  std::istringstream lines(text_of(root / "proc/meminfo"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    std::int64_t kilobytes = 0;
    if (words >> key >> kilobytes) bytes[key] = kilobytes * 1024;
  }
  return bytes;
}

// "some avg10=0.00 avg60=0.00 avg300=0.00 total=0"
std::optional<double> stalled_percent(const fs::path& root) {
  const std::string line = line_in(root / "proc/pressure/memory");
  const std::size_t at = line.find("avg60=");
  if (!line.starts_with("some ") || at == std::string::npos) return std::nullopt;
  return std::atof(line.c_str() + at + 6);
}

void count_arenas(const fs::path& folder, SharedMemoryFacts& facts) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    // Ours, of another check, is no job's.
    if (!name.starts_with("surefoot-") || name.starts_with("surefoot-doctor-")) continue;
    if (!entry.is_directory(none)) continue;
    ++facts.arenas;
    for (const auto& file : fs::directory_iterator(entry.path(), none)) {
      const auto bytes = file.is_regular_file(none) ? file.file_size(none) : 0;
      if (!none) facts.arenas_bytes += static_cast<std::int64_t>(bytes);
    }
  }
}

Limit limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  ::getrlimit(resource, &limit);
  return {limit.rlim_cur, limit.rlim_max};
}

}  // namespace

ProcessorFacts look_at_processors(const fs::path& root) {
  ProcessorFacts facts;
  facts.usable = usable_processors();
  facts.cores = count_cores(root);
  facts.quota = tightest_quota(root);
  facts.load = std::atof(line_in(root / "proc/loadavg").c_str());
  return facts;
}

MemoryFacts look_at_memory(const fs::path& root) {
  auto bytes = meminfo(root);
  MemoryFacts facts;
  facts.total_bytes = bytes["MemTotal:"];
  facts.available_bytes = bytes["MemAvailable:"];
  facts.swap_bytes = bytes["SwapTotal:"];
  facts.swap_used_bytes = bytes["SwapTotal:"] - bytes["SwapFree:"];
  facts.cgroup_bytes = cgroup_room(root);
  facts.stalled_percent = stalled_percent(root);
  return facts;
}

SharedMemoryFacts look_at_shared_memory(const std::string& base, int workers) {
  SharedMemoryFacts facts;
  facts.folder = arena_folder(base, "").parent_path().string();
  if (const Status room = check_arena_base(base, workers); !room)
    facts.fault = room.error().message;
  struct statvfs space {};
  struct statfs kind {};
  if (::statvfs(facts.folder.c_str(), &space) == 0 && ::statfs(facts.folder.c_str(), &kind) == 0) {
    const auto block = static_cast<std::int64_t>(space.f_frsize);
    facts.total_bytes = static_cast<std::int64_t>(space.f_blocks) * block;
    facts.free_bytes = static_cast<std::int64_t>(space.f_bavail) * block;
    facts.memory = kind.f_type == TMPFS_MAGIC || kind.f_type == RAMFS_MAGIC;
  }
  count_arenas(facts.folder, facts);
  return facts;
}

LimitFacts look_at_limits(const fs::path& root) {
  LimitFacts facts;
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.locked_bytes = limit_of(RLIMIT_MEMLOCK);
  facts.core_bytes = limit_of(RLIMIT_CORE);
  facts.core_pattern = line_in(root / "proc/sys/kernel/core_pattern");
  const std::vector<RdmaPort> ports = look_at_rdma(root);
  facts.rdma = std::any_of(ports.begin(), ports.end(),
                           [](const RdmaPort& port) { return port.state == "ACTIVE"; });
  return facts;
}

// logind.conf(5): the first main file there is; then drop-ins by file name, whatever their folder,
// where a name in a folder named earlier here hides the same name in later ones.
LogindFacts look_at_logind(const fs::path& root, const std::string& arena_base) {
  LogindFacts facts;
  std::error_code none;
  facts.runs = fs::exists(root / "run/systemd/seats", none);
  facts.uid = ::geteuid();
  facts.arena_in_dev_shm =
      (arena_base.empty() ? std::string("/dev/shm") : arena_base).starts_with("/dev/shm");
  const std::vector<fs::path> folders = {root / "etc/systemd", root / "run/systemd",
                                         root / "usr/local/lib/systemd", root / "usr/lib/systemd"};
  std::map<std::string, fs::path> drop_ins;
  bool main_file = false;
  for (const fs::path& folder : folders) {
    if (!main_file && fs::exists(folder / "logind.conf", none)) {
      apply_logind_conf(text_of(folder / "logind.conf"), facts);
      main_file = true;
    }
    for (const auto& entry : fs::directory_iterator(folder / "logind.conf.d", none)) {
      if (entry.path().extension() == ".conf")
        drop_ins.try_emplace(entry.path().filename().string(), entry.path());
    }
  }
  for (const auto& [name, path] : drop_ins) apply_logind_conf(text_of(path), facts);
  // A file for each user who lingers, by name.
  const passwd* const user = ::getpwuid(facts.uid);
  facts.lingers =
      user != nullptr && fs::exists(root / "var/lib/systemd/linger" / user->pw_name, none);
  return facts;
}

}  // namespace surefoot::doctor
