// Processes: who they are, whether they live, how to end them.
//
// A pid alone names nobody: it is reused. A process is known by boot id, pid and start time.
// Everything here acts on exactly the named process or process group, never on a name or pattern.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
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

// Those that run now, of one session or all: zombies are none. Who forks meanwhile may have a child
// that is missed: who ends a session looks until nobody is found.
[[nodiscard]] std::vector<ProcessId> running_processes(std::optional<pid_t> session = {});
// "KEY=value" entries, each ended by a zero byte. Empty: it is gone, somebody else's, or just
// beginning another program.
[[nodiscard]] std::string environment_of(const ProcessId& process);
// `entry` ("KEY=value") is one of the block's.
[[nodiscard]] bool has_entry(std::string_view environment_block, std::string_view entry);
struct SessionProcesses {
  std::vector<ProcessId> members;
  // One of our user's is there too whose environment says nothing. Just beginning another program:
  // look again before it is taken for a stranger. It may not be ended.
  bool maybe_more = false;
};
// Those that run in the session that `leader` began, itself included. When it has ended, and been
// waited for, its number may name somebody else's session: then only those count that have `mark`
// in their environment. Nobody after a reboot.
[[nodiscard]] SessionProcesses session_of(const ProcessId& leader, std::string_view mark);

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
  // Called when the process is there and before its program begins, which it does only when this
  // succeeds, and never when the caller dies in it. So whoever writes down the process here knows
  // of each one that has begun. May be empty.
  std::function<Status(const ProcessId&)> before;
};
// Starts a process in a session of its own, with standard input from /dev/null unless said
// otherwise, and no other inherited file descriptor. Does not use fork handlers of libraries
// between fork and exec. An error of `before` is returned as it is.
[[nodiscard]] Result<ProcessId> spawn(const SpawnOptions& options);

// Lets this process have as many file descriptors as it may; programs it starts get the limit that
// it had. Once, before threads. Returns how many there may be.
std::uint64_t raise_descriptor_limit();

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
