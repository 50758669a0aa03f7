#include "checkpoint/rank_traces.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "common/file.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;

std::uintmax_t bytes_of(const std::filesystem::path& file) {
  std::error_code none;
  const std::uintmax_t bytes = std::filesystem::file_size(file, none);
  return none ? 0 : bytes;
}

std::string first_line(const std::string& path) {
  auto text = read_file(path);
  return text ? text->substr(0, text->find('\n')) : "?";
}

std::string of_proc(const ProcessId& process) {
  const std::string folder = fmt::format("/proc/{}/", process.pid);
  std::string state = "?";
  if (auto status = read_file(folder + "status")) {
    const std::size_t at = status->find("State:");
    if (at != std::string::npos) state = status->substr(at + 7, status->find('\n', at) - at - 7);
  }
  std::string text = fmt::format("  state {}, waits in {}, system call {}\n", state,
                                 first_line(folder + "wchan"), first_line(folder + "syscall"));
  if (auto stack = read_file(folder + "stack"); stack && !stack->empty())
    text += "  kernel stack:\n" + *stack;
  return text;
}

// Until each worker has printed and then said nothing for a moment, or the deadline.
void await_prints(const std::vector<TracedProcess>& all, const std::vector<std::uintmax_t>& before,
                  Time deadline) {
  std::vector<std::uintmax_t> sizes(all.size());
  for (int quiet = 0; quiet < 4 && now() < deadline;) {
    std::this_thread::sleep_for(50ms);
    bool still = true;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].log.empty()) continue;
      const std::uintmax_t bytes = bytes_of(all[i].log);
      still = still && bytes == sizes[i] && bytes > before[i];
      sizes[i] = bytes;
    }
    quiet = still ? quiet + 1 : 0;
  }
}

std::string piece_of(const std::filesystem::path& file, std::uintmax_t from, std::size_t most) {
  const Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string text(static_cast<std::size_t>(
                       std::min<std::uintmax_t>(std::max(bytes_of(file), from) - from, most)),
                   '\0');
  const ssize_t got = ::pread(fd.get(), text.data(), text.size(), static_cast<off_t>(from));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

}  // namespace

std::string trace_processes(const std::vector<TracedProcess>& processes, Time deadline) {
  std::string text;
  std::vector<std::uintmax_t> before;
  for (const TracedProcess& traced : processes) {
    before.push_back(traced.log.empty() ? 0 : bytes_of(traced.log));
    text += fmt::format("\nprocess {}: {}\n{}", traced.process.pid, traced.who,
                        of_proc(traced.process));
  }
  // After all have been looked at: a worker that dies of the signal takes the others with it.
  bool any = false;
  for (const TracedProcess& traced : processes) {
    // Only workers have a handler for it.
    if (traced.log.empty()) continue;
    any = true;
    (void)send_signal(traced.process, SIGQUIT);
  }
  if (any) await_prints(processes, before, std::min(deadline, now() + 2s));
  // Each gets its share, so that one that prints for ever leaves room for the others.
  const std::size_t share = (kMaxTraceBytes - std::min(text.size(), kMaxTraceBytes)) /
                            std::max<std::size_t>(processes.size(), 1);
  for (std::size_t i = 0; i < processes.size(); ++i) {
    if (processes[i].log.empty()) continue;
    const std::string printed = piece_of(processes[i].log, before[i], share);
    if (!printed.empty()) text += fmt::format("\n{} printed:\n{}", processes[i].who, printed);
  }
  text.resize(std::min(text.size(), kMaxTraceBytes));
  return text;
}

}  // namespace surefoot
