#include "tests/cluster/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "tests/cluster/machine.h"
#include "tests/cluster/stopped.h"
#include "tests/cluster/switch.h"
#include "tests/cluster/wire.h"

namespace surefoot::cluster {
namespace {

using nlohmann::json;

// Arbitrary, but the same in every run.
constexpr std::uint64_t kSeed = 7;
constexpr Duration kStopPatience = std::chrono::seconds(2);

// Who asked; the answer goes nowhere when it has left meanwhile.
using Asker = std::shared_ptr<Fd>;

struct Host {
  enum class State { kBooting, kUp, kFrozen, kEnding, kDown };
  int number = 0;
  State state = State::kDown;
  pid_t first = -1;
  Fd pidfd;
  Fd report;
  std::string fault;  // why it did not come up
  bool boot_again = false;
  std::vector<pid_t> stopped;
  Asker asker;                  // of what is being done to it
  std::vector<Asker> visitors;  // who wait for it to be thawed or up
};

std::string_view name(Host::State state) {
  switch (state) {
    case Host::State::kBooting:
      return "booting";
    case Host::State::kUp:
      return "up";
    case Host::State::kFrozen:
      return "frozen";
    case Host::State::kEnding:
      return "ending";
    case Host::State::kDown:
      return "down";
  }
  return "";
}

json describe(const Host& host) {
  return {{"host", name_of_host(host.number)},
          {"address", address_of_host(host.number)},
          {"state", name(host.state)}};
}

class Keeper {
 public:
  Keeper(Fd listener, MachineSpec common) : listener_(std::move(listener)), common_(common) {}

  void run() {
    sigset_t children;
    ::sigemptyset(&children);
    ::sigaddset(&children, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &children, nullptr);
    signals_ = Fd(::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK));
    while (!down_) turn();
  }

 private:
  void turn() {
    std::vector<pollfd> fds;
    std::vector<std::function<void()>> actions;
    const auto watch = [&](int fd, std::function<void()> action) {
      fds.push_back({fd, POLLIN, 0});
      actions.push_back(std::move(action));
    };
    watch(listener_.get(), [this] {
      if (auto connection = accept_own(listener_.get()); connection)
        connections_.push_back(std::make_shared<Fd>(std::move(*connection)));
    });
    watch(signals_.get(), [this] { bury(); });
    for (const Asker& asker : connections_) watch(asker->get(), [this, asker] { hear(asker); });
    for (auto& [number, host] : hosts_) {
      Host* const it = host.get();
      if (it->report) watch(it->report.get(), [this, it] { hear_report(*it); });
      if (it->pidfd) watch(it->pidfd.get(), [this, it] { ended(*it); });
    }
    for (const auto& [port, fd] : switch_.ports())
      watch(fd, [this, port = port] { switch_.forward(port, now()); });

    const Time due = switch_.deliver(now());
    timespec wait{};
    if (due != Time::max()) {
      const std::int64_t left = std::max<std::int64_t>((due - now()).count(), 0);
      wait = {left / 1'000'000'000, left % 1'000'000'000};
    }
    ::ppoll(fds.data(), fds.size(), due == Time::max() ? nullptr : &wait, nullptr);
    for (std::size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents != 0) actions[i]();
    }
    std::erase_if(connections_, [](const Asker& asker) { return !*asker; });
  }

  // Hosts are found by their pidfds; everything else is nobody's.
  void bury() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    }
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }

  static void answer(const Asker& asker, const json& answer, const std::vector<int>& fds = {}) {
    if (asker && *asker) (void)send_packet(asker->get(), answer, fds);
  }
  static void refuse(const Asker& asker, const std::string& why) {
    answer(asker, {{"error", why}});
  }

  void hear(const Asker& asker) {
    auto packet = receive_packet(asker->get(), now());
    if (!packet) {
      if (packet.error().code == Code::kNotFound) asker->reset();
      return;
    }
    const json& request = packet->json;
    const std::string op = request.value("op", "");
    if (op == "add") return add(asker);
    if (op == "list") return list(asker);
    if (op == "down") {
      down_ = true;
      return;
    }
    const auto found = std::find_if(hosts_.begin(), hosts_.end(), [&](const auto& entry) {
      return name_of_host(entry.first) == request.value("host", "");
    });
    if (found == hosts_.end()) return refuse(asker, "there is no such host");
    Host& host = *found->second;
    if (op == "kill" || op == "reboot") return end(host, op == "reboot", asker);
    if (op == "freeze") return freeze(host, asker);
    if (op == "thaw") return thaw(host, asker);
    if (op == "enter") return enter(host, asker);
    if (op == "cut" || op == "heal" || op == "impair") return set_link(op, host, request, asker);
    refuse(asker, "there is no such request");
  }

  void add(const Asker& asker) {
    const int number = static_cast<int>(hosts_.size());
    if (number == kMaxHosts) return refuse(asker, "no more hosts can be made");
    auto& host = hosts_[number] = std::make_unique<Host>();
    host->number = number;
    host->asker = asker;
    start(*host);
  }

  void list(const Asker& asker) {
    json all = json::array();
    for (const auto& [unused, host] : hosts_) all.push_back(describe(*host));
    answer(asker, {{"hosts", all}});
  }

  void start(Host& host) {
    host.boot_again = false;
    host.fault.clear();
    MachineSpec spec = common_;
    spec.number = host.number;
    auto machine = boot(spec);
    if (!machine) {
      host.state = Host::State::kDown;
      refuse(std::exchange(host.asker, nullptr), machine.error().message);
      return;
    }
    host.first = machine->first;
    host.pidfd = Fd(static_cast<int>(::syscall(SYS_pidfd_open, host.first, 0)));
    host.report = std::move(machine->report);
    host.state = Host::State::kBooting;
  }

  void hear_report(Host& host) {
    auto packet = receive_packet(host.report.get(), now());
    host.report.reset();
    if (!packet || packet->fds.size() != 1) {
      host.fault = packet ? packet->json.value("error", "it does not come up")
                          : std::string("it ends while it comes up");
      return;  // its end follows
    }
    switch_.plug(host.number, std::move(packet->fds.front()));
    host.state = Host::State::kUp;
    answer(std::exchange(host.asker, nullptr), describe(host));
    welcome(host);
  }

  // A lost machine sends nothing any more, not even that its connections are closed: the cable
  // first.
  void end(Host& host, bool boot_again, const Asker& asker) {
    if (host.asker) return refuse(asker, "something else is being done to this host");
    host.asker = asker;
    host.boot_again = boot_again;
    switch_.unplug(host.number);
    host.stopped.clear();
    if (host.state == Host::State::kDown) return settle(host);
    host.state = Host::State::kEnding;
    ::syscall(SYS_pidfd_send_signal, host.pidfd.get(), SIGKILL, nullptr, 0);
  }

  // Its first process is dead, and so is everything in its namespace.
  void ended(Host& host) {
    switch_.unplug(host.number);
    host.pidfd.reset();
    host.report.reset();
    host.state = Host::State::kDown;
    settle(host);
  }

  void settle(Host& host) {
    if (host.boot_again) return start(host);
    const Asker asker = std::exchange(host.asker, nullptr);
    host.fault.empty() ? answer(asker, describe(host)) : refuse(asker, host.fault);
    welcome(host);
  }

  void freeze(Host& host, const Asker& asker) {
    if (host.state != Host::State::kUp) return refuse(asker, "the host is not up");
    auto stopped = stop_all(host.first, now() + kStopPatience);
    if (!stopped) return refuse(asker, stopped.error().message);
    host.stopped = std::move(*stopped);
    host.state = Host::State::kFrozen;
    answer(asker, describe(host));
  }

  void thaw(Host& host, const Asker& asker) {
    if (host.state != Host::State::kFrozen) return refuse(asker, "the host is not frozen");
    go_on(std::exchange(host.stopped, {}));
    host.state = Host::State::kUp;
    answer(asker, describe(host));
    welcome(host);
  }

  // Nothing begins on a host that is frozen, as on a real one.
  void enter(Host& host, const Asker& asker) {
    host.visitors.push_back(asker);
    if (host.state == Host::State::kUp || host.state == Host::State::kDown) welcome(host);
  }
  void welcome(Host& host) {
    for (const Asker& asker : std::exchange(host.visitors, {})) {
      if (host.state == Host::State::kUp) {
        answer(asker, describe(host), {host.pidfd.get()});
      } else {
        refuse(asker, "the host is down");
      }
    }
  }

  void set_link(const std::string& op, const Host& host, const json& request, const Asker& asker) {
    if (op == "heal") switch_.heal(host.number);
    if (op == "impair") {
      Impairment impairment;
      impairment.delay = std::chrono::microseconds(
          static_cast<std::int64_t>(request.value("delay_ms", 0.0) * 1000));
      impairment.loss = request.value("loss", 0.0);
      switch_.impair(host.number, impairment);
    }
    if (op == "cut" && request.contains("to")) {
      for (const auto& [number, unused] : hosts_) {
        if (name_of_host(number) == request.value("to", "")) switch_.cut(host.number, number);
      }
    } else if (op == "cut") {
      switch_.cut(host.number, -1);
      switch_.cut(-1, host.number);
    }
    answer(asker, describe(host));
  }

  Fd listener_;
  Fd signals_;
  MachineSpec common_;
  Switch switch_{kSeed};
  std::map<int, std::unique_ptr<Host>> hosts_;
  std::vector<Asker> connections_;
  bool down_ = false;
};

// The first process of the cluster's PID namespace.
int be_keeper(Fd listener, const KeeperOptions& options) {
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("proc", "/proc", "proc", 0, nullptr) != 0) {
    std::fprintf(stderr, "cannot mount: %s\n", errno_text(errno).c_str());
    return 1;
  }
  MachineSpec common;
  common.shared = options.shared;
  for (SshKey* key : {&common.host_key, &common.user_key}) {
    auto made = make_ssh_key();
    if (!made) {
      std::fprintf(stderr, "%s\n", made.error().message.c_str());
      return 1;
    }
    *key = std::move(*made);
  }
  Keeper(std::move(listener), std::move(common)).run();
  return 0;
}

}  // namespace

int keep(const KeeperOptions& options) {
  if (options.parent != 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != options.parent) return 1;
  }
  auto listener = listen_as(options.name);
  if (!listener) {
    std::fprintf(stderr, "%s\n", listener.error().message.c_str());
    return 1;
  }
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) {
    std::fprintf(stderr, "cannot make namespaces: %s\n", errno_text(errno).c_str());
    return 1;
  }
  int alive[2];
  if (::pipe2(alive, O_CLOEXEC) != 0) return 1;
  const pid_t child = ::fork();
  if (child < 0) return 1;
  if (child == 0) {
    // Ends with its parent; a pipe without a writer tells that it was gone before.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(alive[1]);
    pollfd writer{alive[0], POLLIN, 0};
    if (::poll(&writer, 1, 0) != 0) ::_exit(1);
    std::fflush(nullptr);
    const int code = be_keeper(std::move(*listener), options);
    std::fflush(nullptr);
    ::_exit(code);
  }
  listener->reset();
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace surefoot::cluster
