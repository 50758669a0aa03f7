// The verbs of the command line. Each prints what it has to say and returns the exit code:
// 0 done, 64-66 the user's error, 75 interrupted or to be tried again, 93 do not requeue.
//
// The verbs that only read start nothing, write nothing, and take a few milliseconds.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "common/status.h"
#include "configs/job.h"
#include "configs/job_directory.h"
#include "launcher/arguments.h"
#include "launcher/fleet_report.h"

namespace surefoot {

inline constexpr int kExitOk = 0;
inline constexpr int kExitWrongUse = 64;  // EX_USAGE: command line or job file
inline constexpr int kExitNotGood = 65;   // EX_DATAERR: a checkpoint is damaged
inline constexpr int kExitNoInput = 66;   // EX_NOINPUT: no such job; a machine that cannot run it
inline constexpr int kExitTryLater = 75;  // EX_TEMPFAIL

int validate_verb(const ValidateArguments& arguments);
int status_verb(const StatusArguments& arguments);
int logs_verb(const LogsArguments& arguments);
int nodes_verb(const NodesArguments& arguments);
int drain_verb(const DrainArguments& arguments);
// A job that has run: its directory and the job file in it.
struct FoundJob {
  JobDirectory directory;
  config::Job job;
  std::string id;
};
// Opens the store that a job's checkpoint.to names; `write`: objects will be removed. Which adapter
// that is, main.cpp knows.
using StoreOpener = std::function<Result<std::unique_ptr<Store>>(const FoundJob& job, bool write)>;
int run_verb(const RunArguments& arguments, const StoreOpener& open_store);
int cancel_verb(const CancelArguments& arguments, const StoreOpener& open_store);
int checkpoints_verb(const CheckpointsArguments& arguments, const StoreOpener& open_store);
// Looks at this machine, as launcher/doctor/ does. 66: something is bad.
using ProbeOpener =
    std::function<Result<std::unique_ptr<Store>>(const FoundJob& job, Duration patience)>;
int doctor_verb(const DoctorArguments& arguments, const ProbeOpener& open_store);

// `where`: a job directory, a job file, or a folder with one or more jobs in runs/ (the one whose
// journal changed last); empty: the current folder.
[[nodiscard]] Result<FoundJob> find_job(const std::string& where);

// A supervisor that runs answers in a millisecond or two; one that waits for its disk may take
// longer, and is better waited for than called dead.
inline constexpr Duration kSupervisorPatience = std::chrono::seconds(1);
// How the machines are, by the supervisor; nothing: none answers. Says so when one runs.
[[nodiscard]] std::optional<FleetReport> ask_fleet(const FoundJob& found);

// Prints "surefoot: ..." to standard error and returns the code a user gets for it.
int complain(const Error& error);
int complain_about(const std::vector<Fault>& faults);
// {"valid": false, "faults": [{"file", "line", "column", "key", "message"}]}
[[nodiscard]] nlohmann::json invalid_job_json(const std::vector<Fault>& faults);

}  // namespace surefoot
