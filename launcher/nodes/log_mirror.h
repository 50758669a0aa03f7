// Brings the logs of the ranks on one machine into the supervisor's logs/attempt-N/, piece by
// piece, while they run and once more when they have ended. For machines that do not share the job
// directory (StatusReply.shares_directory).
//
// A file here is always the begin of the one there, so its size says where to go on, also for a
// supervisor that comes later, and nothing is lost or doubled whenever it is ended. One thread.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/service.pb.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"

namespace surefoot {

class LogMirror {
 public:
  // Asks the machine's service, as ServiceClient::call does.
  using Call = std::function<Result<service::Reply>(service::Request, Time deadline)>;

  // `folder`: logs/attempt-003, made when something comes. `host` names the file of what was
  // launched there (Open MPI's daemon): daemon-HOST.log.
  LogMirror(std::filesystem::path folder, std::string host, Attempt attempt,
            std::vector<int> ranks);

  // Takes what is new of each log, at most kMostPerPull bytes in all: true when that was everything
  // there was. The rank that was cut short is the first next time. Blocks until `deadline` at the
  // longest.
  inline static constexpr std::int64_t kMostPerPull = 4 << 20;
  [[nodiscard]] Result<bool> pull(const Call& call, Time deadline);

 private:
  struct Log {
    int rank;
    std::filesystem::path file;
  };
  // The bytes that are still missing here.
  Result<std::int64_t> pull_piece(const Log& log, const Call& call, Time deadline,
                                  std::int64_t& budget) const;

  Attempt attempt_;
  std::vector<Log> logs_;
  std::size_t first_ = 0;
};

}  // namespace surefoot
