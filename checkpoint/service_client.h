// Talks to the checkpoint service of a job, and starts it on this machine when there is none.
//
// One thread per object. A call blocks until its deadline at the longest: kRetry when nobody
// answered (there is no service, or it is busy starting), else the service's own error. When the
// service is killed and started again meanwhile, the question is asked again. The connection is
// kept from call to call; after a timed-out call the object may be used on.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/service.pb.h"
#include "checkpoint/service_keys.h"
#include "common/clock.h"
#include "common/process.h"
#include "common/status.h"

namespace surefoot {

inline constexpr std::uint32_t kProtocol = 1;

// Where a service listens.
struct ServiceAddress {
  // On this machine: the socket in the arena's folder, or, with the job's keys, the tcp endpoint
  // that the folder's file names.
  ServiceAddress(std::filesystem::path arena_folder,  // NOLINT: implicit by design
                 std::optional<ServiceKeys> client_keys = std::nullopt)
      : folder(std::move(arena_folder)), keys(std::move(client_keys)) {}
  // On another one, as it has told who started it: "tcp://10.0.0.5:43211".
  static ServiceAddress elsewhere(std::string endpoint, ServiceKeys client_keys);

  std::filesystem::path folder;  // empty: elsewhere
  std::string endpoint;
  std::optional<ServiceKeys> keys;
};

class ServiceClient {
 public:
  ServiceClient(ServiceAddress address, std::string job_id);
  ~ServiceClient();
  ServiceClient(ServiceClient&&) noexcept;
  ServiceClient& operator=(ServiceClient&&) noexcept;

  [[nodiscard]] Result<service::Reply> call(service::Request request, Time deadline);
  // `start` is called (on the caller's thread, at most every two seconds) while a call waits for a
  // service that is not there: for who has to see to it himself, since no supervisor does. It may
  // use a client of its own, not this one.
  void when_missing(std::function<void()> start) { missing_ = std::move(start); }
  // Somebody listens there now; elsewhere only a call can tell: true. Does not block.
  [[nodiscard]] bool has_service() const;

 private:
  class Connection;
  ServiceAddress address_;
  std::string job_id_;
  std::function<void()> missing_;
  std::unique_ptr<Connection> connection_;  // made by the first call
};

struct ServiceLaunch {
  std::filesystem::path program;  // surefoot-node
  std::filesystem::path job_file;
  std::filesystem::path job_directory;
  std::vector<std::string> sets;
  bool supervised = false;  // false: the service writes metrics/ and ends by itself when no worker
                            // has come for arena_ttl
};
// Finds the running service of the job on this machine or starts one (detached, own session, output
// to logs/node.log), and waits until it answers.
Status ensure_service(ServiceClient& client, const ServiceLaunch& launch, Time deadline);

// The same for who may not wait: training goes on without a service. One thread.
class ServiceStarter {
 public:
  ServiceStarter(std::filesystem::path arena_folder, ServiceLaunch launch)
      : folder_(std::move(arena_folder)), launch_(std::move(launch)) {}
  // Starts a service unless one listens, or the last that was started still lives, or that was less
  // than 2 s ago, then 4, 8, at most 30. Does not wait for it. An error: it could not be started.
  Status look(Time at);

 private:
  std::filesystem::path folder_;
  ServiceLaunch launch_;
  std::optional<ProcessId> started_;
  int starts_ = 0;  // since one was there
  Time not_before_{};
};

}  // namespace surefoot
