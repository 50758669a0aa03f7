// Which machines there are: resources.hosts, hostfile or discovery_command, looked at again and
// again.
//
// A thread of its own reads the source every discovery_interval, so that a command that hangs or a
// file on a disk that is away keeps nobody waiting. A command has kDiscoveryPatience; then its
// process group is ended. When a look fails the last list stands.
//
// All methods: any one thread, never block, but for the destructor, which ends a command that runs
// and waits for the thread (a hostfile on a disk that hangs can hold it).
#pragma once

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/file.h"
#include "configs/job.pb.h"
#include "configs/machines.h"

namespace surefoot {

inline constexpr Duration kDiscoveryPatience = std::chrono::seconds(60);

struct DiscoveryOptions {
  std::vector<std::string> hosts;
  std::filesystem::path hostfile;
  std::string command;              // for /bin/sh
  std::filesystem::path directory;  // where it runs
  Duration interval = std::chrono::seconds(10);
  Duration patience = kDiscoveryPatience;
};
[[nodiscard]] DiscoveryOptions discovery_options(const config::Resources& resources,
                                                 const std::filesystem::path& job_directory);

// One look. kRetry: it failed and may work later.
struct Look {
  Result<std::vector<HostSpec>> hosts;
  std::string kind;  // of the failure: "deadline", "signal 9", "exit code 7", "output", ... Its
                     // message may be another one each time
};
[[nodiscard]] Look discover(const DiscoveryOptions& options, int stop = -1);

class Discovery {
 public:
  explicit Discovery(DiscoveryOptions options);
  ~Discovery();
  Discovery(const Discovery&) = delete;

  // The newest list, when it is another one than the last that was taken. With no source at all
  // none ever comes: the job runs on this machine.
  [[nodiscard]] std::optional<std::vector<HostSpec>> take();
  // What a look has failed with, for the log; once for each kind of failure until a look succeeds.
  [[nodiscard]] std::optional<std::string> complaint();

 private:
  void run();
  void note(const Look& look);

  DiscoveryOptions options_;
  Fd stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::optional<std::vector<HostSpec>> newest_;
  bool taken_ = true;
  std::optional<std::string> complaint_;
  std::set<std::string> complained_;  // kinds
  std::thread thread_;
};

}  // namespace surefoot
