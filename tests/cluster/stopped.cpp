#include "tests/cluster/stopped.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "common/file.h"

namespace surefoot::cluster {
namespace {

namespace fs = std::filesystem;

std::string namespace_of(pid_t pid) {
  std::error_code gone;
  return fs::read_symlink(fmt::format("/proc/{}/ns/pid", pid), gone).string();
}

// The letter in /proc/<pid>/stat: T is stopped, Z dead. 0: gone.
char state_of(pid_t pid) {
  const auto text = read_file(fmt::format("/proc/{}/stat", pid));
  // The name in parentheses may hold anything.
  const std::size_t end = text ? text->rfind(')') : std::string::npos;
  return end == std::string::npos || end + 2 >= text->size() ? '\0' : (*text)[end + 2];
}

std::vector<pid_t> processes_in(const std::string& wanted) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    const char* end = name.data() + name.size();
    if (std::from_chars(name.data(), end, pid).ptr != end) continue;
    if (namespace_of(pid) == wanted) found.push_back(pid);
  }
  return found;
}

}  // namespace

Result<std::vector<pid_t>> stop_all(pid_t first, Time deadline) {
  const std::string wanted = namespace_of(first);
  if (wanted.empty()) return error(Code::kNotFound, "the host is gone");
  std::vector<pid_t> stopped;
  std::set<pid_t> seen;
  for (;;) {
    // Who was just forking may have a child that the last look missed: until a look finds that all
    // stand still.
    bool all_still = true;
    for (const pid_t pid : processes_in(wanted)) {
      const char state = state_of(pid);
      const bool still = state == 'T' || state == 'Z' || state == '\0';
      all_still = all_still && still;
      if (!seen.insert(pid).second || still) continue;
      if (::kill(pid, SIGSTOP) == 0) stopped.push_back(pid);
    }
    if (all_still) return stopped;
    if (now() > deadline) {
      go_on(stopped);
      return error(Code::kRestart, "some processes of the host do not stop");
    }
    ::usleep(200);
  }
}

void go_on(const std::vector<pid_t>& stopped) {
  for (const pid_t pid : stopped) ::kill(pid, SIGCONT);
}

}  // namespace surefoot::cluster
