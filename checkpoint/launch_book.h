// What a service has launched on its node for the supervisor, and which attempts are ended there.
//
// Launched is a command line (Open MPI's daemon of an attempt) in a session of its own. Its process
// is written down in `<arena folder>/launched` before the command begins, so a service that was
// killed at any moment and started again knows of every one, and can end it. No child of the
// service: the system reaps it. What leaves the session by itself is not known here.
//
// Any thread; launch() blocks for folders, which may lie on a network disk, and for fork and exec,
// all else for no longer than a small file in memory takes.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/service.pb.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/process.h"
#include "common/status.h"

namespace surefoot {

// Larger numbers of attempts are refused: a damaged one must not make all later ones stale.
// Arbitrary.
inline constexpr std::int64_t kMaxAttempt = 1'000'000'000;

// <arena folder>/attempt-N: Open MPI's files of this attempt.
[[nodiscard]] std::filesystem::path attempt_folder(const std::filesystem::path& arena_folder,
                                                   Attempt attempt);

// Of what was launched on this machine, in its attempt's folder of logs.
[[nodiscard]] std::string daemon_log_name();

// How variables begin that are not passed on to a gang: those of an mpirun around us, which would
// make ours part of its job, and the credentials of stores, which only the service needs and which
// a user's module, or whoever lists a worker's environment, should not find.
[[nodiscard]] std::vector<std::string> kept_from_workers();

class LaunchBook {
 public:
  LaunchBook(std::filesystem::path arena_folder, std::string job_id)
      : folder_(std::move(arena_folder)), job_id_(std::move(job_id)) {}
  void read();    // what an earlier life has left
  Status save();  // again, where somebody has removed the folder

  // Begins it, or finds that just this runs already. `newest`: of the gangs that have run here.
  // kStale: the attempt was ended, or launched here before, or is not newer than those. kInvalid:
  // it makes no sense, or cannot be started. One caller at a time.
  Status launch(const service::Launch& wanted, Attempt newest);
  // From now on nothing of an attempt below this one begins. An error: it could not be written
  // down, and is forgotten when the service is killed.
  Status end_below(Attempt attempt);
  [[nodiscard]] Attempt ended_below() const;
  [[nodiscard]] Attempt newest() const;  // launched here; 0: none

  // Something that was launched is there, or may be. Cheap enough for ten times a second.
  [[nodiscard]] bool anything_runs();
  // All that runs of what was launched for attempts below this one; `maybe_more`: look again.
  [[nodiscard]] SessionProcesses processes_below(Attempt attempt);
  // Where an attempt's logs are, of the newest few.
  [[nodiscard]] std::optional<std::filesystem::path> log_folder(Attempt attempt) const;

 private:
  using Lock = std::lock_guard<std::mutex>;
  // These hold mutex_.
  [[nodiscard]] Result<bool> must_begin(const service::Launch& wanted, Attempt newest);
  [[nodiscard]] service::Launched* entry_of(std::int64_t attempt);
  [[nodiscard]] SessionProcesses session(service::Launched& entry);
  [[nodiscard]] bool runs(service::Launched& entry);
  Status write_down(const service::Launch& wanted, const ProcessId& process);
  Status write();
  [[nodiscard]] std::string mark_of(std::int64_t attempt) const;

  std::filesystem::path folder_;
  std::string job_id_;
  mutable std::mutex mutex_;
  service::Launches book_;                       // entries by rising attempt
  std::map<std::int64_t, Time> doubtful_since_;  // by attempt: nobody, but maybe somebody
};

}  // namespace surefoot
