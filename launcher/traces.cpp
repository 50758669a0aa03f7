#include "launcher/traces.h"

#include <signal.h>

#include <algorithm>
#include <thread>

#include "common/file.h"
#include "launcher/format.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;

struct Traced {
  ProcessId process;
  const service::RankStatus* rank = nullptr;  // null: mpirun, or not registered yet
  std::filesystem::path log;
  std::uintmax_t log_bytes = 0;
};

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

// Until each worker that can has printed and then said nothing for a moment, or the deadline.
void await_prints(const std::vector<Traced>& all, Time deadline) {
  std::vector<std::uintmax_t> sizes(all.size());
  for (int quiet = 0; quiet < 4 && now() < deadline;) {
    std::this_thread::sleep_for(50ms);
    bool still = true;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::uintmax_t bytes = bytes_of(all[i].log);
      still = still && bytes == sizes[i] && (all[i].rank == nullptr || bytes > all[i].log_bytes);
      sizes[i] = bytes;
    }
    quiet = still ? quiet + 1 : 0;
  }
}

}  // namespace

Status write_traces(const std::filesystem::path& attempt_logs, const service::StatusReply* status,
                    const std::vector<ProcessId>& processes, Time deadline) {
  std::vector<Traced> all;
  std::string text = fmt::format(
      "Taken since no step was finished in time. Processes of the gang: {}\n", processes.size());
  for (const ProcessId& process : processes) {
    Traced traced{process, nullptr, {}, 0};
    for (int i = 0; status != nullptr && i < status->ranks_size(); ++i) {
      if (status->ranks(i).pid() == process.pid &&
          status->ranks(i).start_ticks() == process.start_ticks)
        traced.rank = &status->ranks(i);
    }
    if (traced.rank != nullptr) {
      traced.log = attempt_logs / fmt::format("rank-{}.log", traced.rank->rank());
      traced.log_bytes = bytes_of(traced.log);
    }
    const std::string who =
        traced.rank == nullptr
            ? "not a registered worker"
            : fmt::format("rank {}, step {}, {} for {}", traced.rank->rank(), traced.rank->step(),
                          traced.rank->phase(), duration_text(traced.rank->seconds_in_phase()));
    text += fmt::format("\nprocess {}: {}\n{}", process.pid, who, of_proc(process));
    all.push_back(std::move(traced));
  }
  // After all have been looked at: a worker that dies of the signal takes the others with it.
  for (const Traced& traced : all) {
    // Only workers have a handler for it.
    if (traced.rank != nullptr) (void)send_signal(traced.process, SIGQUIT);
  }
  await_prints(all, std::min(deadline, now() + 2s));
  for (const Traced& traced : all) {
    auto log = traced.rank == nullptr ? Result<std::string>(std::string()) : read_file(traced.log);
    if (!log || log->size() <= traced.log_bytes) continue;
    text +=
        fmt::format("\nrank {} printed:\n{}", traced.rank->rank(), log->substr(traced.log_bytes));
  }
  return write_file_atomically(attempt_logs / "traces.txt", text);
}

}  // namespace surefoot
