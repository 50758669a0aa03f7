// The supervisor's journal: <job directory>/journal.db, an SQLite database.
//
// Written by one supervisor at a time, which holds an flock on <job directory>/supervisor.lock;
// read by anyone (read_journal). Rollback journal and synchronous=EXTRA (FULL, and the folder is
// synced too): WAL does not work on a network disk, and a recorded launch must survive a power cut,
// since it is what keeps a second gang from starting. Each call is one transaction: after a crash
// at any point the journal holds a whole number of calls. The tables stand in docs/supervisor.md.
//
// Order for each decision with `record`: record() (effects are now "intended"), perform an effect,
// done() for it. An effect that was intended and never done may or may not have happened: the next
// supervisor learns of it from History::attempt_open.
//
// One thread. Blocks on the disk (an fsync or two a call: 1-20 ms); a reader that holds the
// database is waited for, 5 s at most. Errors: kCorrupt: the file is no journal or is damaged, the
// message says which and what to do. kStale: another supervisor runs. kNoSpace: disk full. kRetry:
// other I/O errors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/process.h"
#include "common/status.h"
#include "launcher/supervisor.h"

namespace surefoot {

struct JournalJob {
  std::string id;
  std::string name;
  std::int64_t created_unix_ms = 0;
};

struct JournalAttempt {
  supervisor::AttemptEnd end;  // attempt number always; the rest once `ended_unix_ms` is set
  std::int64_t started_unix_ms = 0;
  std::int64_t ended_unix_ms = 0;    // 0: open
  ProcessId mpirun;                  // pid 0: not launched, or not known
  std::optional<Recovery> recovery;  // from the attempt before to this one's first step
};

struct JournalAction {
  std::int64_t id = 0;
  std::int64_t attempt = 0;  // in hand when it was intended
  std::string what;          // "LaunchGang"
  std::string reason;        // of the decision
  std::int64_t intended_unix_ms = 0;
  std::int64_t done_unix_ms = 0;  // 0: never reported done
  std::string outcome;            // "done", or what went wrong
};

struct JournalResult {  // of a finished job
  std::string weights_sha256;
  std::string state_sha256;
  std::string folder;
  std::int64_t step = 0;
};

// Everything in it.
struct JournalView {
  JournalJob job;
  supervisor::History history;
  std::optional<ProcessId> supervisor;  // the last one to open it; alive or not
  std::vector<JournalAttempt> attempts;
  std::vector<JournalAction> actions;  // the newest `max_actions`, oldest first
  std::optional<JournalResult> result;
  std::optional<supervisor::Stop> stop;  // how the last supervisor stopped; none: it runs, or died
};
// Takes no lock and writes nothing. kNotFound: there is no journal. kRetry: the supervisor was
// writing for longer than 5 s.
[[nodiscard]] Result<JournalView> read_journal(const std::filesystem::path& job_directory,
                                               int max_actions = 100);

class Journal {
 public:
  // Takes the lock, makes the file or checks it (integrity, version, same job id), notes this
  // process as the supervisor. kStale names the pid that runs. kInvalid: the journal is of another
  // job.
  [[nodiscard]] static Result<std::unique_ptr<Journal>> open(
      const std::filesystem::path& job_directory, const std::string& job_id,
      const std::string& job_name);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // As it was when opened; accounting.mark is meaningless (JobOpened sets it).
  [[nodiscard]] const supervisor::History& history() const;
  // mpirun of history().attempt when that is open: whether it lives says JobOpened::gang_alive. pid
  // 0: not known.
  [[nodiscard]] ProcessId open_gang() const;

  // Before the effects are performed: history, reason and the effects; LaunchGang opens an
  // attempt's row, RecordAttemptEnd closes it, RecordRecovery fills it, Stop ends the job's run.
  // Returns an id for each effect, in order (0 for the Record ones).
  [[nodiscard]] Result<std::vector<std::int64_t>> record(const supervisor::Event& event,
                                                         const supervisor::Decision& decision);
  // After one was performed.
  Status done(std::int64_t action, const std::string& outcome = "done");
  // As soon as mpirun was spawned.
  Status launched(Attempt attempt, const ProcessId& mpirun);
  // Now and then (every 5 s and before leaving): what decisions without `record` changed.
  Status save(const supervisor::History& history);
  Status set_result(const JournalResult& result);

 private:
  struct Impl;
  explicit Journal(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace surefoot
