#include "launcher/nodes/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/file.h"

namespace surefoot {
namespace {

struct Pipe {
  Fd read;
  Fd write;
};
Result<Pipe> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0)
    return error(Code::kRetry, "cannot make a pipe: {}", errno_text(errno));
  return Pipe{Fd(fds[0]), Fd(fds[1])};
}

void set_nonblocking(const Fd& fd) {
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
}

// A program that closes its standard input early is no reason for us to end.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    const timespec none{};
    while (::sigtimedwait(&pipe_, nullptr, &none) == SIGPIPE) continue;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

class Conversation {
 public:
  Conversation(const ProgramRun& run, ProcessId process, Fd in, Fd out, Fd errors)
      : run_(run),
        process_(process),
        ended_(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0))),
        in_(std::move(in)),
        out_(std::move(out)),
        errors_(std::move(errors)) {
    for (const Fd* fd : {&in_, &out_, &errors_}) set_nonblocking(*fd);
  }

  ProgramEnd go_on() {
    bool ended = false;
    while (!ended && end_.why == ProgramEnd::Why::kExited) ended = turn();
    // Its last words are in the pipes.
    read_all(out_, end_.output);
    read_all(errors_, end_.errors);
    // The number is its own until it is reaped, so the group is too.
    ::kill(-process_.pid, SIGKILL);
    for (auto status = poll_exit(process_);; status = poll_exit(process_)) {
      if (status) {
        end_.status = *status;
        return std::move(end_);
      }
      pollfd item{ended_.get(), POLLIN, 0};
      ::poll(&item, 1, 100);
    }
  }

 private:
  bool turn() {
    std::array<pollfd, 5> items = {{{ended_.get(), POLLIN, 0},
                                    {run_.stop, POLLIN, 0},
                                    {out_.get(), POLLIN, 0},
                                    {errors_.get(), POLLIN, 0},
                                    {in_.get(), POLLOUT, 0}}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(run_.deadline - now()).count();
    ::poll(items.data(), items.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 60000)));
    if (items[2].revents != 0) read_all(out_, end_.output);
    if (items[3].revents != 0) read_all(errors_, end_.errors);
    if (items[4].revents != 0) write_some();
    if (items[0].revents != 0) return true;
    if (items[1].revents != 0) end_.why = ProgramEnd::Why::kStopped;
    if (now() >= run_.deadline) end_.why = ProgramEnd::Why::kDeadline;
    return false;
  }

  // What is there now, but not for ever. Closes at the end.
  void read_all(Fd& fd, std::string& to) {
    std::array<char, 65536> block{};
    for (int turn = 0; fd && turn < 16; ++turn) {
      const ssize_t got = ::read(fd.get(), block.data(), block.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return fd.reset();
      const std::size_t room = kMaxOutputBytes - to.size();
      end_.cut = end_.cut || static_cast<std::size_t>(got) > room;
      to.append(block.data(), std::min(room, static_cast<std::size_t>(got)));
    }
  }

  void write_some() {
    while (in_) {
      if (unsent().empty()) return in_.reset();
      const ssize_t put = ::write(in_.get(), unsent().data(), unsent().size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0 && errno == EAGAIN) return;
      if (put < 0) return in_.reset();
      sent_ += static_cast<std::size_t>(put);
    }
  }

  // Of `input`, then block by block of the file.
  std::string_view unsent() {
    if (sent_ < current().size()) return current().substr(sent_);
    if (run_.input_file < 0) return {};
    block_.resize(256 << 10);
    const ssize_t got = ::read(run_.input_file, block_.data(), block_.size());
    block_.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    in_file_ = true;
    sent_ = 0;
    return block_;
  }
  [[nodiscard]] std::string_view current() const { return in_file_ ? block_ : run_.input; }

  const ProgramRun& run_;
  ProcessId process_;
  Fd ended_;
  Fd in_, out_, errors_;
  std::size_t sent_ = 0;
  std::string block_;
  bool in_file_ = false;
  ProgramEnd end_;
};

}  // namespace

Result<ProgramEnd> run_program(const ProgramRun& run) {
  const NoPipeSignal no_signal;
  SUREFOOT_ASSIGN(Pipe in, make_pipe());
  SUREFOOT_ASSIGN(Pipe out, make_pipe());
  SUREFOOT_ASSIGN(Pipe errors, make_pipe());
  SpawnOptions options;
  options.argv = run.argv;
  options.environment = run.environment;
  options.directory = run.directory;
  options.input_fd = in.read.get();
  options.output_fd = out.write.get();
  options.error_fd = errors.write.get();
  SUREFOOT_ASSIGN(const ProcessId process, spawn(options));
  in.read.reset();
  out.write.reset();
  errors.write.reset();
  Conversation conversation(run, process, std::move(in.write), std::move(out.read),
                            std::move(errors.read));
  return conversation.go_on();
}

std::string last_line(std::string_view text) {
  constexpr std::size_t kMost = 300;
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == text.npos) return "";
  text = text.substr(0, end + 1);
  const std::size_t feed = text.find_last_of("\r\n");
  std::string line(feed == text.npos ? text : text.substr(feed + 1));
  if (line.size() > kMost) line.resize(kMost);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return line;
}

}  // namespace surefoot
