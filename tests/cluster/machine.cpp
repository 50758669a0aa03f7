#include "tests/cluster/machine.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/cluster/machine_net.h"
#include "tests/cluster/wire.h"

namespace surefoot::cluster {
namespace {

namespace fs = std::filesystem;

constexpr int kNamespaces = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID;
constexpr const char* kSshDaemon = "/usr/sbin/sshd";
constexpr const char* kHome = "/run/home";

Error failed(std::string_view what) {
  return error(Code::kRetry, "{}: {}", what, errno_text(errno));
}

Status mount_at(const char* type, const char* where, const char* options) {
  if (::mount(type, where, type, MS_NOSUID | MS_NODEV, options) != 0)
    return failed(fmt::format("cannot mount a {} at {}", type, where));
  return {};
}

Status bind_mount(const std::string& from, const std::string& to) {
  if (::mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0)
    return failed(fmt::format("cannot bind {} to {}", from, to));
  return {};
}

void write_file(const fs::path& path, const std::string& text, mode_t mode = 0644) {
  std::ofstream(path) << text;
  ::chmod(path.c_str(), mode);
}

std::string random_boot_id() {
  std::random_device random;
  const auto word = [&] { return random(); };
  return fmt::format("{:08x}-{:04x}-4{:03x}-8{:03x}-{:08x}{:04x}\n", word(), word() & 0xffff,
                     word() & 0xfff, word() & 0xfff, word(), word() & 0xffff);
}

// As a new program expects them.
void reset_signals() {
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Folders of the machine that would be hidden come back where they were.
Status mount_private_folders(const std::vector<std::string>& shared) {
  std::vector<std::pair<std::string, Fd>> kept;
  constexpr std::array<std::pair<const char*, const char*>, 3> kPrivate{
      {{"/dev/shm", "mode=1777"}, {"/tmp", "mode=1777"}, {"/run", "mode=0755"}}};
  for (const std::string& folder : shared) {
    bool hidden = false;
    for (const auto& [place, unused] : kPrivate)
      hidden = hidden || folder.starts_with(std::string(place) + "/");
    if (!hidden) continue;
    Fd fd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return failed("cannot share " + folder);
    kept.emplace_back(folder, std::move(fd));
  }
  for (const auto& [place, options] : kPrivate) SUREFOOT_TRY(mount_at("tmpfs", place, options));
  for (const auto& [folder, fd] : kept) {
    std::error_code ignored;
    fs::create_directories(folder, ignored);
    SUREFOOT_TRY(bind_mount(fmt::format("/proc/self/fd/{}", fd.get()), folder));
  }
  return {};
}

// The accounts of the machine, but that root has a home of its own: ssh keeps its files there, and
// asks nobody but this list where that is.
std::string passwd() {
  std::string text;
  std::ifstream in("/etc/passwd");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("root:")) text += line + "\n";
  }
  return fmt::format("root:x:0:0:root:{}:/bin/sh\n{}", kHome, text);
}

Status set_up_files(const MachineSpec& spec) {
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return failed("cannot make the mounts private");
  SUREFOOT_TRY(mount_at("proc", "/proc", nullptr));
  SUREFOOT_TRY(mount_private_folders(spec.shared));
  const fs::path own = "/run/host";
  const fs::path ssh = fs::path(kHome) / ".ssh";
  std::error_code ignored;
  for (const fs::path& folder : {own, ssh, fs::path("/run/sshd")})
    fs::create_directories(folder, ignored);
  ::chmod(kHome, 0700);
  ::chmod(ssh.c_str(), 0700);

  std::string hosts = "127.0.0.1 localhost\n";
  for (int number = 0; number < kMaxHosts; ++number)
    hosts += fmt::format("{} {}\n", address_of_host(number), name_of_host(number));
  write_file(own / "hosts", hosts);
  write_file(own / "passwd", passwd());
  write_file(own / "shadow", "root:*:1:0:99999:7:::\n", 0600);
  write_file(own / "boot_id", random_boot_id());
  SUREFOOT_TRY(bind_mount(own / "hosts", "/etc/hosts"));
  SUREFOOT_TRY(bind_mount(own / "passwd", "/etc/passwd"));
  SUREFOOT_TRY(bind_mount(own / "shadow", "/etc/shadow"));
  SUREFOOT_TRY(bind_mount(own / "boot_id", "/proc/sys/kernel/random/boot_id"));

  write_file(own / "host_key", spec.host_key.secret, 0600);
  write_file(own / "sshd_config",
             fmt::format("HostKey {}\nAuthorizedKeysFile {}\nPermitRootLogin prohibit-password\n"
                         "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n"
                         "UseDNS no\nPidFile none\nPrintMotd no\nPrintLastLog no\n",
                         (own / "host_key").string(), (ssh / "authorized_keys").string()));
  write_file(ssh / "authorized_keys", spec.user_key.open);
  write_file(ssh / "id_ed25519", spec.user_key.secret, 0600);
  write_file(ssh / "known_hosts", "host*,10.77.* " + spec.host_key.open);
  write_file(ssh / "config", "BatchMode yes\nStrictHostKeyChecking yes\nLogLevel ERROR\n", 0600);
  return {};
}

// One connection, one daemon: none is there that nobody uses, so that a forgotten connection shows.
void serve_ssh(int connection) {
  if (::fork() != 0) return;
  reset_signals();
  ::setsid();
  ::dup2(connection, 0);
  ::dup2(connection, 1);
  const int log = ::open("/run/host/sshd.log", O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(log, 2);
  ::close_range(3, ~0U, 0);
  ::execl(kSshDaemon, kSshDaemon, "-i", "-e", "-f", "/run/host/sshd_config", nullptr);
  ::_exit(127);
}

// What the first process does until it is ended: it lets ssh in.
[[noreturn]] void serve(const Fd& listener) {
  for (;;) {
    const Fd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection) serve_ssh(connection.get());
  }
}

Status set_up(const MachineSpec& spec, Fd& tap, Fd& listener) {
  const std::string name = name_of_host(spec.number);
  if (::sethostname(name.c_str(), name.size()) != 0) return failed("cannot set the host's name");
  SUREFOOT_TRY(set_up_files(spec));
  SUREFOOT_ASSIGN(tap, make_network(spec.number));
  SUREFOOT_ASSIGN(listener, listen_on(22));
  return {};
}

// Closes what belongs to the keeper: its connections, and the other hosts' cables.
void keep_only(int fd) {
  if (fd > 3) ::close_range(3, static_cast<unsigned>(fd) - 1, 0);
  ::close_range(static_cast<unsigned>(fd) + 1, ~0U, 0);
}

[[noreturn]] void be_first_process(const MachineSpec& spec, int report) {
  keep_only(report);
  reset_signals();
  // Orphans are buried by the kernel.
  ::signal(SIGCHLD, SIG_IGN);
  ::prctl(PR_SET_NAME, name_of_host(spec.number).c_str());
  ::setsid();
  Fd tap;
  Fd listener;
  const Status ready = set_up(spec, tap, listener);
  if (!ready) {
    (void)send_packet(report, {{"error", ready.error().message}});
    ::_exit(1);
  }
  (void)send_packet(report, {{"ready", true}}, {tap.get()});
  tap.reset();
  ::close(report);
  serve(listener);
}

// For a program that is started and waited for at once; returns what it prints.
Result<std::string> output_of(const std::string& shell_command) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return failed("pipe");
  Fd from(ends[0]);
  Fd to(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return failed("fork");
  if (child == 0) {
    reset_signals();
    const bool alone = ::unshare(CLONE_NEWNS) == 0 &&
                       ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                       mount_at("tmpfs", "/tmp", "mode=0700");
    ::dup2(to.get(), 1);
    if (alone) ::execl("/bin/sh", "sh", "-c", shell_command.c_str(), nullptr);
    ::_exit(127);
  }
  to.reset();
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t got; (got = ::read(from.get(), buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(got));
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) return error(Code::kRetry, "{} fails with {}", shell_command, status);
  return text;
}

}  // namespace

std::string name_of_host(int number) {
  return fmt::format("host{}", number);
}
std::string address_of_host(int number) {
  return fmt::format("10.77.0.{}", number + 1);
}

Result<SshKey> make_ssh_key() {
  SUREFOOT_ASSIGN(const std::string both,
                  output_of("ssh-keygen -q -t ed25519 -N '' -C cluster -f /tmp/key && "
                            "cat /tmp/key /tmp/key.pub"));
  const std::size_t middle = both.find("ssh-ed25519 ");
  if (middle == std::string::npos) return error(Code::kRetry, "ssh-keygen makes no key");
  return SshKey{both.substr(0, middle), both.substr(middle)};
}

Result<Machine> boot(const MachineSpec& spec) {
  int ends[2];
  int pipe_ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return failed("socketpair");
  Machine machine;
  machine.report = Fd(ends[0]);
  const Fd report(ends[1]);
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) return failed("pipe");
  const Fd pid_from(pipe_ends[0]);
  Fd pid_to(pipe_ends[1]);
  // A process can make one namespace of PIDs only, so a helper makes it; its child, the host's
  // first process, becomes ours when the helper ends.
  const pid_t helper = ::fork();
  if (helper < 0) return failed("fork");
  if (helper == 0) {
    pid_t first = ::unshare(kNamespaces) == 0 ? ::fork() : -1;
    if (first == 0) be_first_process(spec, report.get());
    if (first < 0) first = -errno;
    [[maybe_unused]] const ssize_t put = ::write(pid_to.get(), &first, sizeof first);
    ::_exit(0);
  }
  pid_to.reset();
  ::waitpid(helper, nullptr, 0);
  if (::read(pid_from.get(), &machine.first, sizeof machine.first) != sizeof machine.first)
    return error(Code::kRetry, "the helper that makes namespaces has died");
  if (machine.first < 0)
    return error(Code::kInvalid, "cannot make namespaces: {}", errno_text(-machine.first));
  return machine;
}

int run_inside(int first_process_fd, const std::vector<std::string>& argv) {
  std::error_code ignored;
  const fs::path folder = fs::current_path(ignored);
  if (::setns(first_process_fd, kNamespaces) != 0) {
    std::fprintf(stderr, "cannot enter the host: %s\n", errno_text(errno).c_str());
    return 127;
  }
  int alive[2];
  if (::pipe2(alive, O_CLOEXEC) != 0) return 127;
  static pid_t child = -1;
  child = ::fork();
  if (child == 0) {
    // Ends with us. The parent has no number in here to compare; a pipe without a writer tells that
    // it was gone before.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(alive[1]);
    pollfd writer{alive[0], POLLIN, 0};
    if (::poll(&writer, 1, 0) != 0) ::_exit(127);
    if (::chdir(folder.c_str()) != 0 && ::chdir("/") != 0) ::_exit(127);
    ::setenv("HOME", kHome, 1);
    for (const char* gone : {"TMPDIR", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "HOSTNAME"})
      ::unsetenv(gone);
    std::vector<char*> arguments;
    for (const std::string& argument : argv)
      arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    ::execvp(arguments[0], arguments.data());
    std::fprintf(stderr, "cannot start %s: %s\n", arguments[0], errno_text(errno).c_str());
    ::_exit(127);
  }
  if (child < 0) return 127;
  for (const int number : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2})
    ::signal(number, [](int passed_on) { ::kill(child, passed_on); });
  ::signal(SIGQUIT, [](int) { ::kill(child, SIGKILL); });
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string machines_unavailable() {
  for (const char* program : {kSshDaemon, "/usr/bin/ssh", "/usr/bin/ssh-keygen"}) {
    if (::access(program, X_OK) != 0) return fmt::format("{} is not installed", program);
  }
  if (::geteuid() != 0) return "only root may make hosts out of namespaces";
  const Fd tap(::open("/dev/net/tun", O_RDWR | O_CLOEXEC));
  if (!tap) return fmt::format("/dev/net/tun: {}", errno_text(errno));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool allowed = ::unshare(kNamespaces) == 0 &&
                         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    ::_exit(allowed ? 0 : errno);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  return fmt::format("namespaces are not allowed here: {}",
                     errno_text(WIFEXITED(status) ? WEXITSTATUS(status) : EPERM));
}

}  // namespace surefoot::cluster
