#include "common/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "common/file.h"

namespace surefoot {
namespace {

std::uint64_t boot_id() {
  static const std::uint64_t id = [] {
    auto text = read_file("/proc/sys/kernel/random/boot_id");
    std::string digits = text ? *text : std::string();
    std::erase(digits, '-');
    return std::strtoull(digits.substr(0, 16).c_str(), nullptr, 16);
  }();
  return id;
}

int pidfd_open(pid_t pid) {
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
}
int pidfd_send_signal(int fd, int signal) {
  return static_cast<int>(::syscall(SYS_pidfd_send_signal, fd, signal, nullptr, 0));
}

struct Stat {
  char state = 0;
  std::int64_t start_ticks = 0;
};
Result<Stat> stat_of(pid_t pid) {
  SUREFOOT_ASSIGN(const std::string text, read_file(fmt::format("/proc/{}/stat", pid)));
  // The name in parentheses may contain anything, so fields are counted from the last ")".
  const std::size_t close = text.rfind(')');
  if (close == std::string::npos) return error(Code::kNotFound, "process {} is gone", pid);
  Stat stat;
  const char* at = text.c_str() + close + 2;
  stat.state = *at;
  for (int field = 3; field < 22 && at != nullptr; ++field) {
    at = std::strchr(at, ' ');
    if (at != nullptr) ++at;
  }
  if (at == nullptr) return error(Code::kNotFound, "process {} is gone", pid);
  stat.start_ticks = std::strtoll(at, nullptr, 10);
  return stat;
}

// A descriptor for exactly this process, or none when it is gone. Opened before the identity is
// read: what is read after belongs to the process the descriptor names, or to nobody.
Fd open_process(const ProcessId& process) {
  if (process.pid <= 0) return Fd();
  Fd fd(pidfd_open(process.pid));
  if (!fd) return Fd();
  auto found = process_of(process.pid);
  if (!found || *found != process) return Fd();
  return fd;
}

// Between fork and exec only async-signal-safe calls are allowed, so everything is prepared before.
struct Prepared {
  std::vector<char*> argv;
  std::vector<char*> environment;
  const char* directory;
  int input;
  int output;
  int errors;
};

[[noreturn]] void run_child(const Prepared& prepared, int report) {
  ::setsid();
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const bool ready = ::dup2(prepared.input, 0) == 0 && ::dup2(prepared.output, 1) == 1 &&
                     ::dup2(prepared.errors, 2) == 2 &&
                     (prepared.directory == nullptr || ::chdir(prepared.directory) == 0);
  if (ready) {
    // Everything else is closed by exec, `report` (moved to 3, close-on-exec) included.
    if (report != 3) ::dup3(report, 3, O_CLOEXEC);
    ::syscall(SYS_close_range, 4u, ~0u, 0u);
    report = 3;
    ::execvpe(prepared.argv[0], prepared.argv.data(), prepared.environment.data());
  }
  const int number = errno;
  [[maybe_unused]] ssize_t put = ::write(report, &number, sizeof number);
  ::_exit(127);
}

}  // namespace

ProcessId self_process() {
  auto self = process_of(::getpid());
  SUREFOOT_CHECK(self.has_value());
  return *self;
}

Result<ProcessId> process_of(pid_t pid) {
  SUREFOOT_ASSIGN(const Stat stat, stat_of(pid));
  ProcessId id;
  id.boot = boot_id();
  id.start_ticks = stat.start_ticks;
  id.pid = pid;
  return id;
}

bool is_alive(const ProcessId& process) {
  if (process.pid <= 0 || process.boot != boot_id()) return false;
  auto stat = stat_of(process.pid);
  return stat && stat->start_ticks == process.start_ticks && stat->state != 'Z' &&
         stat->state != 'X';
}

Status send_signal(const ProcessId& process, int signal) {
  Fd fd = open_process(process);
  if (!fd || pidfd_send_signal(fd.get(), signal) != 0)
    return error(Code::kNotFound, "process {} is gone", process.pid);
  return {};
}

Status end_processes(const std::vector<ProcessId>& processes, Time deadline) {
  std::vector<std::pair<pid_t, Fd>> open;
  for (const ProcessId& process : processes) {
    Fd fd = open_process(process);
    if (!fd) continue;
    pidfd_send_signal(fd.get(), SIGKILL);
    open.emplace_back(process.pid, std::move(fd));
  }
  std::string left;
  for (auto& [pid, fd] : open) {
    pollfd wait{fd.get(), POLLIN, 0};
    const auto remaining =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now()).count();
    if (::poll(&wait, 1, static_cast<int>(std::max<std::int64_t>(remaining, 0))) == 0)
      left += fmt::format(" {}", pid);
  }
  if (!left.empty())
    return error(Code::kRestart, "processes that do not end after SIGKILL:{}", left);
  return {};
}

Result<ProcessId> spawn(const SpawnOptions& options) {
  SUREFOOT_CHECK(!options.argv.empty());
  std::vector<std::string> environment = options.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view key = text.substr(0, text.find('='));
    const bool replaced = std::any_of(
        options.environment.begin(), options.environment.end(), [&](const std::string& own) {
          return std::string_view(own).substr(0, own.find('=')) == key;
        });
    const bool dropped =
        std::any_of(options.dropped.begin(), options.dropped.end(),
                    [&](const std::string& prefix) { return key.starts_with(prefix); });
    if (!replaced && !dropped) environment.emplace_back(text);
  }
  Prepared prepared{};
  for (const std::string& argument : options.argv)
    prepared.argv.push_back(const_cast<char*>(argument.c_str()));
  prepared.argv.push_back(nullptr);
  for (const std::string& entry : environment)
    prepared.environment.push_back(const_cast<char*>(entry.c_str()));
  prepared.environment.push_back(nullptr);
  prepared.directory = options.directory.empty() ? nullptr : options.directory.c_str();

  const std::string output = options.output.empty() ? "/dev/null" : options.output;
  Fd in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Fd out(::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!in || !out)
    return error(Code::kRetry, "cannot open {} for the output of {}: {}", output, options.argv[0],
                 errno_text(errno));
  // Above 3, so that the moves in the child do not overwrite them.
  const auto moved = [](int chosen, const Fd& standard) {
    return Fd(::fcntl(chosen >= 0 ? chosen : standard.get(), F_DUPFD_CLOEXEC, 10));
  };
  const Fd input = moved(options.input_fd, in);
  const Fd result = moved(options.output_fd, out);
  const Fd errors = moved(options.error_fd, out);
  prepared.input = input.get();
  prepared.output = result.get();
  prepared.errors = errors.get();

  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0)
    return error(Code::kRetry, "cannot make a pipe: {}", errno_text(errno));
  Fd read_end(pipe_fds[0]);
  Fd write_end(::fcntl(pipe_fds[1], F_DUPFD_CLOEXEC, 10));
  ::close(pipe_fds[1]);

  // vfork semantics are not needed: _Fork skips pthread_atfork handlers of libraries, which may
  // take locks.
  const pid_t child = ::_Fork();
  if (child < 0)
    return error(Code::kRetry, "cannot start {}: {}", options.argv[0], errno_text(errno));
  if (child == 0) {
    if (!options.detach) run_child(prepared, write_end.get());
    const pid_t grandchild = ::_Fork();
    if (grandchild == 0) run_child(prepared, write_end.get());
    // A positive number is an errno, a negative one the pid.
    const int message = grandchild < 0 ? errno : -grandchild;
    [[maybe_unused]] ssize_t put = ::write(write_end.get(), &message, sizeof message);
    ::_exit(0);
  }
  write_end.reset();
  if (options.detach) ::waitpid(child, nullptr, 0);

  pid_t pid = options.detach ? 0 : child;
  int number = 0;
  for (int message = 0; ::read(read_end.get(), &message, sizeof message) == sizeof message;) {
    if (message < 0) {
      pid = -message;
    } else {
      number = message;
    }
  }
  if (number != 0 || pid == 0) {
    if (!options.detach) ::waitpid(child, nullptr, 0);
    return error(Code::kInvalid, "cannot start {}: {}", options.argv[0], errno_text(number));
  }
  auto id = process_of(pid);
  if (!id) {  // ended already, and somebody reaped it
    ProcessId gone;
    gone.pid = pid;
    return gone;
  }
  return id;
}

std::optional<ExitStatus> poll_exit(const ProcessId& child) {
  int status = 0;
  const pid_t got = ::waitpid(child.pid, &status, WNOHANG);
  if (got == 0) return std::nullopt;
  ExitStatus result;
  if (got == child.pid && WIFEXITED(status)) result.code = WEXITSTATUS(status);
  if (got == child.pid && WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

std::string host_name() {
  char buffer[256] = {};
  ::gethostname(buffer, sizeof buffer - 1);
  return buffer;
}

std::string program_directory() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
}

}  // namespace surefoot
