// N hosts on one machine, for tests and demonstrations: what they are, see machine.h.
//
// A Cluster owns everything. It ends with the object, and with the process (and thread) that made
// it, also when that is killed by SIGKILL: all hosts live in one PID namespace whose first process
// ends with its parent. No file, device, mount or namespace of the machine is used or left.
//
// Not for several threads at once. All calls block until their deadline at the longest; where none
// is given it is kPatience.
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/file.h"
#include "common/process.h"
#include "common/status.h"

namespace surefoot::cluster {

// Why no cluster can be made on this machine; empty: it can. Tests skip with this reason.
[[nodiscard]] std::string cluster_unavailable();

inline constexpr Duration kPatience = std::chrono::seconds(30);

struct CommandResult {
  int exit_code = -1;      // 128 + number after a signal
  bool timed_out = false;  // it was ended
  std::string output;      // standard output and error
  double seconds = 0;
};

// A program that runs on a host. Ended (SIGKILL, waited for) when destroyed; what it has started is
// not.
class Running {
 public:
  Running(ProcessId process, Fd output) : process_(process), output_(std::move(output)) {}
  Running(Running&& other) noexcept;
  Running& operator=(Running&&) = delete;
  ~Running();
  // To its end, or until the deadline: then it is ended.
  CommandResult wait(Time deadline);
  [[nodiscard]] std::string output() const;  // so far
  // SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 reach the program.
  Status signal(int number) const;

 private:
  std::optional<ExitStatus> end();

  ProcessId process_;
  Fd output_;
  Time begun_ = now();
};

class Cluster;

// A name for one host of a cluster; cheap to copy.
class Host {
 public:
  Host(Cluster& cluster, int number) : cluster_(&cluster), number_(number) {}
  [[nodiscard]] std::string name() const;     // "host0"
  [[nodiscard]] std::string address() const;  // "10.77.0.1"

  struct Options {
    std::vector<std::string> environment;  // "KEY=value" beside the caller's
    std::string directory;                 // empty: the caller's where the host has it, else /
    Duration patience = kPatience;
  };
  CommandResult run(const std::vector<std::string>& argv, const Options& options) const;
  CommandResult run(const std::vector<std::string>& argv) const { return run(argv, {}); }
  [[nodiscard]] Result<Running> start(const std::vector<std::string>& argv,
                                      const Options& options) const;
  // One more address, on the loopback device: for a server that this host alone may see.
  Status add_address(const std::string& address) const;

  // Taken without notice: its cable goes first, so that nobody hears of its end, then all processes
  // at once. Returns when they are gone.
  Status kill() const;
  // Up again, also after kill(): another boot id, nothing in /dev/shm, /tmp and /run.
  Status reboot() const;
  // All processes stop where they are, or go on.
  Status freeze() const;
  Status thaw() const;
  // Frames to and from this host are lost in silence; with `to`: those that it sends to that host.
  Status cut() const;
  Status cut(const Host& to) const;
  Status heal() const;  // takes back all cuts that name this host
  // Each frame to or from this host waits `delay`; a share of `loss` is dropped, by a seed.
  Status impair(Duration delay, double loss) const;

 private:
  Status ask(const std::string& op, nlohmann::json more = nlohmann::json::object()) const;
  Cluster* cluster_;
  int number_;
};

struct ClusterOptions {
  int hosts = 2;
  // Folders that all hosts see where they are, although they lie in /tmp, /run or /dev/shm: their
  // shared file system. What lies elsewhere is the machine's own and seen by all anyway.
  std::vector<std::string> shared;
};

class Cluster {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Cluster>> start(const ClusterOptions& options);
  ~Cluster();
  Cluster(const Cluster&) = delete;

  [[nodiscard]] int size() const { return hosts_; }  // also those that are down
  [[nodiscard]] Host host(int number) { return {*this, number}; }
  [[nodiscard]] Result<Host> add();
  [[nodiscard]] const std::string& name() const { return name_; }

  // As keeper.h says.
  [[nodiscard]] Result<nlohmann::json> ask(const nlohmann::json& request);

 private:
  explicit Cluster(std::string name) : name_(std::move(name)) {}
  Status start_keeper(const ClusterOptions& options);

  std::string name_;
  ProcessId keeper_;
  Fd keeper_output_;
  Fd connection_;
  int hosts_ = 0;
};

}  // namespace surefoot::cluster
