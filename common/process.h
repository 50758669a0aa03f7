// Processes: who they are, whether they live, how to end them.
//
// A pid alone names nobody: it is reused. A process is known by boot id, pid and start time.
// Everything here acts on exactly the named process or process group, never on a name or pattern.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace surefoot {

struct ProcessId {
  std::uint64_t boot = 0;        // the first 64 bits of /proc/sys/kernel/random/boot_id
  std::int64_t start_ticks = 0;  // field 22 of /proc/<pid>/stat
  std::int32_t pid = 0;          // 0: nobody
  std::int32_t reserved = 0;
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

[[nodiscard]] ProcessId self_process();
[[nodiscard]] Result<ProcessId> process_of(pid_t pid);  // kNotFound when there is none
[[nodiscard]] bool is_alive(const ProcessId& process);  // a zombie is not alive

// Sends a signal to exactly this process (by pidfd). kNotFound: it is gone already.
Status send_signal(const ProcessId& process, int signal);

// SIGKILLs each of them and waits (by pidfd) until all are gone. kRestart with their pids when some
// are not by `deadline`.
Status end_processes(const std::vector<ProcessId>& processes, Time deadline);

struct SpawnOptions {
  std::vector<std::string> argv;         // argv[0] is a path, or a name searched in PATH
  std::vector<std::string> environment;  // "KEY=value" added to or replacing the caller's
  std::vector<std::string>
      dropped;            // variables of the caller that start with one of these are not passed on
  std::string output;     // file that standard output and error are appended to; empty: /dev/null
  std::string directory;  // empty: the caller's
  // Descriptors of the caller's for standard input, output and error; -1: /dev/null, and `output`.
  int input_fd = -1;
  int output_fd = -1;
  int error_fd = -1;
  bool detach = false;  // double fork: no child of the caller, so that nobody must reap it
};
// Starts a process in a session of its own, with standard input from /dev/null unless said
// otherwise, and no other inherited file descriptor. Does not use fork handlers of libraries
// between fork and exec.
[[nodiscard]] Result<ProcessId> spawn(const SpawnOptions& options);

struct ExitStatus {
  int code = -1;   // exit code when it ended by itself
  int signal = 0;  // the signal that ended it, else 0
};
// Of an own child that was not detached; nothing while it runs.
[[nodiscard]] std::optional<ExitStatus> poll_exit(const ProcessId& child);

[[nodiscard]] std::string host_name();
// The folder of the running program, where its sister programs lie.
[[nodiscard]] std::string program_directory();

}  // namespace surefoot
