#include "common/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
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

// Lives, and is of our user.
bool is_own(const ProcessId& process) {
  struct stat info {};
  return ::stat(fmt::format("/proc/{}", process.pid).c_str(), &info) == 0 &&
         info.st_uid == ::geteuid() && is_alive(process);
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

// Of programs that are started: the limit that this process had, once it has raised its own.
rlim_t children_descriptors = 0;

// Between fork and exec only async-signal-safe calls are allowed, so everything is prepared before.
struct Prepared {
  std::vector<char*> argv;
  std::vector<char*> environment;
  const char* directory;
  int input;
  int output;
  int errors;
  int gate;  // -1: none
};

[[noreturn]] void run_child(const Prepared& prepared, int report) {
  ::setsid();
  // From now on it is found in its session. A negative number is a pid, a positive one an errno.
  const int self = -::getpid();
  if (::write(report, &self, sizeof self) != sizeof self) ::_exit(127);
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Nothing comes, and the other end is closed: not to be begun.
  char word = 0;
  if (prepared.gate >= 0 && ::read(prepared.gate, &word, 1) != 1) ::_exit(127);
  // Some programs select(), and look at each descriptor up to the limit.
  rlimit limit{};
  if (children_descriptors != 0 && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = children_descriptors;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
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

struct Pipe {
  Fd read_end;
  Fd write_end;
};

// Above 3, so that the moves in the child do not overwrite them.
Result<Pipe> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0)
    return error(Code::kRetry, "cannot make a pipe: {}", errno_text(errno));
  Pipe pipe{Fd(::fcntl(fds[0], F_DUPFD_CLOEXEC, 10)), Fd(::fcntl(fds[1], F_DUPFD_CLOEXEC, 10))};
  ::close(fds[0]);
  ::close(fds[1]);
  return pipe;
}

// The parent's half of spawn(): who was started, and whether its program has begun.
Result<ProcessId> begun(const SpawnOptions& options, pid_t child, int report, Fd gate) {
  pid_t pid = 0;
  int number = 0;
  const auto hear = [&] {
    int message = 0;
    if (::read(report, &message, sizeof message) != sizeof message) return false;
    (message < 0 ? pid : number) = message < 0 ? -message : message;
    return true;
  };
  hear();
  Status wanted;
  if (options.before && pid != 0) {
    auto process = process_of(pid);
    wanted = process ? options.before(*process) : Status(process.error());
    if (wanted) [[maybe_unused]]
      const ssize_t put = ::write(gate.get(), "", 1);
    gate.reset();
  }
  while (hear()) continue;
  const bool started = number == 0 && pid != 0 && wanted;
  if (!started && !options.detach) ::waitpid(child, nullptr, 0);
  if (!wanted) return wanted.error();
  if (!started)
    return error(Code::kInvalid, "cannot start {}: {}", options.argv[0], errno_text(number));
  auto id = process_of(pid);
  if (!id) {  // ended already, and somebody reaped it
    ProcessId gone;
    gone.pid = pid;
    return gone;
  }
  return id;
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

std::vector<ProcessId> running_processes(std::optional<pid_t> session) {
  std::vector<ProcessId> found;
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) return found;
  while (const dirent* entry = ::readdir(folder)) {
    pid_t pid = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, pid).ptr != end || pid <= 0) continue;
    const auto in_session = [&] { return !session || ::getsid(pid) == *session; };
    if (!in_session()) continue;  // most are not, and this is quicker
    // The identity, then all else: it belongs to that process, or to nobody.
    const auto process = process_of(pid);
    if (process && in_session() && is_alive(*process)) found.push_back(*process);
  }
  ::closedir(folder);
  return found;
}

std::string environment_of(const ProcessId& process) {
  auto block = read_file(fmt::format("/proc/{}/environ", process.pid));
  return block && is_alive(process) ? *block : std::string();
}

bool has_entry(std::string_view environment_block, std::string_view entry) {
  while (!environment_block.empty()) {
    const std::string_view here = environment_block.substr(0, environment_block.find('\0'));
    if (here == entry) return true;
    environment_block.remove_prefix(std::min(environment_block.size(), here.size() + 1));
  }
  return false;
}

SessionProcesses session_of(const ProcessId& leader, std::string_view mark) {
  if (leader.pid <= 1 || leader.boot != boot_id()) return {};
  SessionProcesses session{running_processes(leader.pid)};
  // As long as it is there, a zombie too, nobody else has its number.
  const auto there = process_of(leader.pid);
  if (there && *there == leader) return session;
  std::erase_if(session.members, [&](const ProcessId& process) {
    const std::string environment = environment_of(process);
    session.maybe_more = session.maybe_more || (environment.empty() && is_own(process));
    return !has_entry(environment, mark);
  });
  return session;
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

  SUREFOOT_ASSIGN(Pipe report, make_pipe());
  Pipe gate;
  if (options.before) {
    SUREFOOT_ASSIGN(gate, make_pipe());
  }
  prepared.gate = gate.read_end ? gate.read_end.get() : -1;

  // vfork semantics are not needed: _Fork skips pthread_atfork handlers of libraries, which may
  // take locks.
  const pid_t child = ::_Fork();
  if (child < 0)
    return error(Code::kRetry, "cannot start {}: {}", options.argv[0], errno_text(errno));
  if (child == 0) {
    // Its own copy would keep the gate from ever being seen closed.
    if (gate.write_end) ::close(gate.write_end.get());
    if (!options.detach) run_child(prepared, report.write_end.get());
    const pid_t grandchild = ::_Fork();
    if (grandchild == 0) run_child(prepared, report.write_end.get());
    const int number = errno;
    if (grandchild < 0) [[maybe_unused]]
      const ssize_t put = ::write(report.write_end.get(), &number, sizeof number);
    ::_exit(0);
  }
  report.write_end.reset();
  gate.read_end.reset();
  if (options.detach) ::waitpid(child, nullptr, 0);
  return begun(options, child, report.read_end.get(), std::move(gate.write_end));
}

std::uint64_t raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return before;
  if (children_descriptors == 0) children_descriptors = before;
  return limit.rlim_cur;
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
