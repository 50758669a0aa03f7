// Talks to the checkpoint service of a job on this node, and starts it when there is none.
//
// One thread per object. A call blocks until its deadline at the longest: kRetry when nobody
// answered (there is no service, or it is busy starting), else the service's own error. When the
// service is killed and started again meanwhile, the question is asked again. After a timed-out
// call the object may be used on: each call has a socket of its own.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/service.pb.h"
#include "common/clock.h"
#include "common/process.h"
#include "common/status.h"

namespace surefoot {

inline constexpr std::uint32_t kProtocol = 1;

class ServiceClient {
 public:
  ServiceClient(std::filesystem::path arena_folder, std::string job_id);
  [[nodiscard]] Result<service::Reply> call(service::Request request, Time deadline);
  // `start` is called (on the caller's thread, at most every two seconds) while a call waits for a
  // service that is not there: for who has to see to it himself, since no supervisor does. It may
  // use a client of its own, not this one.
  void when_missing(std::function<void()> start) { missing_ = std::move(start); }
  // Somebody listens there now. Does not block.
  [[nodiscard]] bool has_service() const;

 private:
  std::shared_ptr<void> context_;  // libzmq's, made by the first call
  std::filesystem::path folder_;
  std::string job_id_;
  std::function<void()> missing_;
};

struct ServiceLaunch {
  std::filesystem::path program;  // surefoot-node
  std::filesystem::path job_file;
  std::filesystem::path job_directory;
  std::vector<std::string> sets;
  bool supervised = false;  // false: the service writes metrics/ and ends by itself when no worker
                            // has come for arena_ttl
};
// Finds the running service of the job or starts one (detached, own session, output to
// logs/node.log), and waits until it answers.
Status ensure_service(ServiceClient& client, const ServiceLaunch& launch, Time deadline);

}  // namespace surefoot
