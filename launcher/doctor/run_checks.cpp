#include "launcher/doctor/run_checks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/file.h"

namespace surefoot::doctor {
namespace {

using std::chrono::milliseconds;

struct Running {
  pid_t pid = -1;
  Fd from;           // open: it may say more
  std::string text;  // the line that is not whole yet
  Time deadline;     // when it is ended
  std::vector<Finding> said;
  std::string silence;  // why it says no more
};

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) ::_exit(1);  // nobody listens
    text.remove_prefix(static_cast<std::size_t>(put));
  }
}

bool has_said(const std::vector<Finding>& said, const std::string& check) {
  return std::any_of(said.begin(), said.end(),
                     [&](const Finding& finding) { return finding.check == check; });
}

[[noreturn]] void be_the_child(const Check& check, int to, int stop, Time begin) {
  ::setsid();
  ::signal(SIGPIPE, SIG_DFL);
  // Libraries print where they please.
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, fd);
  // Should the parent be killed meanwhile. Whole seconds, rounded up.
  const auto longest = std::chrono::ceil<std::chrono::seconds>(check.patience + 2 * kGrace);
  ::alarm(static_cast<unsigned>(longest.count()));
  std::vector<Finding> said;
  const auto say = [&](const Finding& finding) {
    said.push_back(finding);
    write_all(
        to, to_json(finding).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  };
  try {
    check.look({say, begin + check.patience, stop});
  } catch (const std::exception& failed) {
    for (const std::string& name : check.names) {
      if (!has_said(said, name)) say(not_checked(name, failed.what()));
    }
  }
  ::_exit(0);
}

Running begin(const Check& check, int stop_reader, int stop_writer) {
  Running running;
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    running.silence = fmt::format("cannot make a pipe: {}", errno_text(errno));
    return running;
  }
  running.from = Fd(fds[0]);
  Fd to(fds[1]);
  const Time start = now();
  running.deadline = start + check.patience + kGrace;
  running.pid = ::fork();
  if (running.pid == 0) {
    ::close(stop_writer);
    be_the_child(check, to.get(), stop_reader, start);
  }
  if (running.pid < 0) {
    running.silence = fmt::format("cannot start a process: {}", errno_text(errno));
    running.from.reset();
  }
  return running;
}

void take_lines(Running& running) {
  std::size_t start = 0;
  for (std::size_t end; (end = running.text.find('\n', start)) != std::string::npos;
       start = end + 1) {
    if (auto finding = parse_finding(running.text.substr(start, end - start)))
      running.said.push_back(std::move(*finding));
  }
  running.text.erase(0, start);
}

// Its own end was read, so it has left or is about to; but it may be stuck on its way.
void note_end(Running& running) {
  int status = 0;
  pid_t left = 0;
  for (const Time end = now() + kGrace; left == 0 && now() < end; ::usleep(1000))
    left = ::waitpid(running.pid, &status, WNOHANG);
  running.silence = "no answer";
  if (left == running.pid && WIFSIGNALED(status))
    running.silence = fmt::format("the check was ended by {}", ::strsignal(WTERMSIG(status)));
}

void read_some(Running& running) {
  std::array<char, 65536> block{};
  const ssize_t got = ::read(running.from.get(), block.data(), block.size());
  if (got < 0 && errno == EINTR) return;
  if (got > 0) {
    running.text.append(block.data(), static_cast<std::size_t>(got));
    return take_lines(running);
  }
  running.from.reset();
  note_end(running);
}

void end_late(Running& running, Duration patience) {
  ::kill(running.pid, SIGKILL);
  running.from.reset();
  // One that the kernel holds is not waited for.
  for (int turn = 0; turn < 20 && ::waitpid(running.pid, nullptr, WNOHANG) == 0; ++turn)
    ::usleep(1000);
  running.silence = fmt::format("no answer within {:.0f} s", seconds(patience));
}

void await(std::vector<Running>& all, const std::vector<Check>& checks) {
  for (;;) {
    std::vector<pollfd> items;
    std::vector<std::size_t> whose;
    Time next = Time::max();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].from) continue;
      items.push_back({all[i].from.get(), POLLIN, 0});
      whose.push_back(i);
      next = std::min(next, all[i].deadline);
    }
    if (items.empty()) return;
    const auto left = std::chrono::ceil<milliseconds>(next - now()).count();
    ::poll(items.data(), items.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 60000)));
    for (std::size_t i = 0; i < items.size(); ++i) {
      Running& running = all[whose[i]];
      if (items[i].revents != 0) read_some(running);
      if (running.from && now() >= running.deadline) end_late(running, checks[whose[i]].patience);
    }
  }
}

}  // namespace

std::vector<Finding> run_checks(const std::vector<Check>& checks) {
  int stop[2] = {-1, -1};
  [[maybe_unused]] const int piped = ::pipe2(stop, O_CLOEXEC);
  const Fd stop_reader(stop[0]);
  const Fd stop_writer(stop[1]);
  std::vector<Running> all;
  for (const Check& check : checks)
    all.push_back(begin(check, stop_reader.get(), stop_writer.get()));
  await(all, checks);
  std::vector<Finding> findings;
  for (std::size_t i = 0; i < checks.size(); ++i) {
    findings.insert(findings.end(), all[i].said.begin(), all[i].said.end());
    for (const std::string& name : checks[i].names) {
      if (!has_said(all[i].said, name)) findings.push_back(not_checked(name, all[i].silence));
    }
  }
  return findings;
}

}  // namespace surefoot::doctor
