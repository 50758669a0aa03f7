#include "launcher/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>

#include "common/file.h"
#include "launcher/journal_facts.h"
#include "launcher/sqlite.h"

namespace surefoot {
namespace {

using supervisor::Effect;

// Decisions that are kept; older ones are dropped. Arbitrary: a job with 100 attempts makes about
// 1,000.
constexpr std::int64_t kDecisionsKept = 10'000;

std::int64_t unix_ms() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

// Held until closed or until the process ends, however it ends.
Result<Fd> take_lock(const std::filesystem::path& file) {
  Fd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) return error(Code::kInvalid, "cannot open {}: {}", file.string(), errno_text(errno));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK)
      return error(Code::kInvalid, "cannot lock {}: {}", file.string(), errno_text(errno));
    const auto holder = read_file(file);
    return error(Code::kStale, "a supervisor of this job runs already: pid {}",
                 holder && !holder->empty() ? *holder : "unknown");
  }
  const std::string pid = fmt::to_string(::getpid());
  if (::ftruncate(fd.get(), 0) != 0 ||
      ::pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return error(Code::kNoSpace, "cannot write {}: {}", file.string(), errno_text(errno));
  }
  return fd;
}

Status put(Database& database, const Facts& facts) {
  for (const auto& [key, value] : facts) {
    SUREFOOT_TRY(
        database.run("INSERT OR REPLACE INTO facts(key, value) VALUES(?, ?)", {key, value}));
  }
  return {};
}

Result<Facts> get(Database& database) {
  Facts facts;
  SUREFOOT_TRY(database.query("SELECT key, value FROM facts", {},
                              [&](const SqlRow& row) { facts[row.text(0)] = row.text(1); }));
  return facts;
}

Result<std::int64_t> number(Database& database, std::string_view sql) {
  std::int64_t value = 0;
  SUREFOOT_TRY(database.query(sql, {}, [&](const SqlRow& row) { value = row.number(0); }));
  return value;
}

// Makes the tables of an empty file. Their meaning: docs/supervisor.md.
Status make_tables(Database& database) {
  SUREFOOT_TRY(database.run(fmt::format("PRAGMA application_id = {}", kJournalApplication)));
  SUREFOOT_TRY(database.run(fmt::format("PRAGMA user_version = {}", kJournalVersion)));
  SUREFOOT_TRY(database.run("CREATE TABLE facts(key TEXT PRIMARY KEY, value TEXT NOT NULL)"));
  SUREFOOT_TRY(database.run(
      "CREATE TABLE attempts(attempt INTEGER PRIMARY KEY, started_unix_ms INTEGER NOT "
      "NULL, ended_unix_ms INTEGER, outcome TEXT, "
      "injected INTEGER, code INTEGER, signal INTEGER, first_step INTEGER, last_step "
      "INTEGER, rank INTEGER, host TEXT, step INTEGER, "
      "phase TEXT, reason TEXT, mpirun_boot INTEGER, mpirun_start_ticks INTEGER, "
      "mpirun_pid INTEGER, detect_ns INTEGER, "
      "wait_ns INTEGER, launch_ns INTEGER, load_ns INTEGER, restore_ns INTEGER, "
      "first_step_ns INTEGER, drained_after_ns INTEGER, time_left_ns INTEGER, steps_lost "
      "INTEGER)"));
  SUREFOOT_TRY(database.run(
      "CREATE TABLE decisions(id INTEGER PRIMARY KEY AUTOINCREMENT, unix_ms INTEGER NOT NULL, "
      "attempt INTEGER NOT NULL, event TEXT NOT NULL, reason TEXT NOT NULL)"));
  SUREFOOT_TRY(database.run(
      "CREATE TABLE actions(id INTEGER PRIMARY KEY AUTOINCREMENT, decision INTEGER NOT NULL, "
      "what TEXT NOT NULL, done_unix_ms INTEGER, outcome TEXT)"));
  return database.run("CREATE INDEX actions_by_decision ON actions(decision)");
}

Status check(Database& database, const std::filesystem::path& file) {
  SUREFOOT_ASSIGN(const auto application, number(database, "PRAGMA application_id"));
  SUREFOOT_ASSIGN(const auto version, number(database, "PRAGMA user_version"));
  if (application != kJournalApplication) {
    return error(Code::kCorrupt, "{}: a database, but no journal of Surefoot; move it away",
                 file.string());
  }
  if (version == 1) {
    for (const char* column : {"drained_after_ns", "time_left_ns", "steps_lost"})
      SUREFOOT_TRY(database.run(fmt::format("ALTER TABLE attempts ADD COLUMN {} INTEGER", column)));
    SUREFOOT_TRY(database.run(fmt::format("PRAGMA user_version = {}", kJournalVersion)));
  } else if (version != kJournalVersion) {
    return error(Code::kInvalid, "{}: journal version {}, this build knows version {}",
                 file.string(), version, kJournalVersion);
  }
  std::string verdict;
  SUREFOOT_TRY(database.query("PRAGMA quick_check(1)", {},
                              [&](const SqlRow& row) { verdict = row.text(0); }));
  if (verdict != "ok") {
    return error(Code::kCorrupt, "{}: {}; move this file away to start the job's books anew",
                 file.string(), verdict);
  }
  return {};
}

SqlValue sql_of(const std::optional<Duration>& duration) {
  if (!duration) return nullptr;
  return std::int64_t{duration->count()};
}

Status close_attempt(Database& database, const supervisor::AttemptEnd& end) {
  return database.run(
      "UPDATE attempts SET ended_unix_ms=?, outcome=?, injected=?, code=?, signal=?, first_step=?, "
      "last_step=?, rank=?, host=?, "
      "step=?, phase=?, reason=?, drained_after_ns=?, time_left_ns=? WHERE attempt=?",
      {unix_ms(), std::string(name(end.outcome)), std::int64_t{end.injected},
       std::int64_t{end.code}, std::int64_t{end.signal}, end.first_step.value, end.last_step.value,
       std::int64_t{end.culprit.rank}, end.culprit.host, end.culprit.step.value,
       std::string(name(end.culprit.phase)), end.culprit.reason, sql_of(end.drained_after),
       sql_of(end.time_left), end.attempt.value});
}

Status note_recovery(Database& database, const Recovery& recovery) {
  return database.run(
      "UPDATE attempts SET detect_ns=?, wait_ns=?, launch_ns=?, load_ns=?, restore_ns=?, "
      "first_step_ns=?, steps_lost=? WHERE attempt=?",
      {std::int64_t{recovery.detect.count()}, std::int64_t{recovery.wait.count()},
       std::int64_t{recovery.launch.count()}, std::int64_t{recovery.load.count()},
       std::int64_t{recovery.restore.count()}, std::int64_t{recovery.first_step.count()},
       recovery.steps_lost, recovery.attempt.value});
}

// Writes what an effect says about the job; the id of its action, or 0 when there is nothing to
// perform.
Result<std::int64_t> note(Database& database, const Effect& effect, std::int64_t decision) {
  if (const auto* record = std::get_if<supervisor::RecordAttemptEnd>(&effect)) {
    SUREFOOT_TRY(close_attempt(database, record->end));
    return std::int64_t{0};
  }
  if (const auto* record = std::get_if<supervisor::RecordRecovery>(&effect)) {
    SUREFOOT_TRY(note_recovery(database, record->recovery));
    return std::int64_t{0};
  }
  if (const auto* launch = std::get_if<supervisor::LaunchGang>(&effect)) {
    SUREFOOT_TRY(database.run("INSERT INTO attempts(attempt, started_unix_ms) VALUES(?, ?)",
                              {launch->attempt.value, unix_ms()}));
  }
  if (const auto* stop = std::get_if<supervisor::Stop>(&effect))
    SUREFOOT_TRY(put(database, to_facts(*stop)));
  SUREFOOT_TRY(database.run("INSERT INTO actions(decision, what) VALUES(?, ?)",
                            {decision, std::string(name(effect))}));
  return database.last_id();
}

}  // namespace

struct Journal::Impl {
  Fd lock;
  Database database;
  supervisor::History history;
  ProcessId open_gang;
};

Journal::Journal(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Journal::~Journal() = default;

Result<std::unique_ptr<Journal>> Journal::open(const std::filesystem::path& job_directory,
                                               const std::string& job_id,
                                               const std::string& job_name) {
  SUREFOOT_ASSIGN(Fd lock, take_lock(job_directory / "supervisor.lock"));
  const auto file = job_directory / "journal.db";
  SUREFOOT_ASSIGN(Database database, Database::open(file, Database::Mode::kCreate));
  SUREFOOT_TRY(database.run("PRAGMA journal_mode = DELETE"));
  SUREFOOT_TRY(database.run("PRAGMA synchronous = EXTRA"));
  Facts facts;
  ProcessId gang;
  SUREFOOT_TRY(database.transaction([&]() -> Status {
    SUREFOOT_ASSIGN(const auto tables, number(database, "SELECT count(*) FROM sqlite_master"));
    if (tables == 0) {
      SUREFOOT_TRY(make_tables(database));
      SUREFOOT_TRY(put(database, to_facts(JournalJob{job_id, job_name, unix_ms()})));
      SUREFOOT_TRY(put(database, to_facts(supervisor::History{})));
    }
    SUREFOOT_TRY(check(database, file));
    SUREFOOT_ASSIGN(facts, get(database));
    if (facts["job.id"] != job_id) {
      return error(Code::kInvalid, "{}: the journal of job {}, this folder's job is {}",
                   file.string(), facts["job.id"], job_id);
    }
    SUREFOOT_TRY(database.run("DELETE FROM facts WHERE key LIKE 'stop.%'"));
    SUREFOOT_TRY(put(database, to_facts(self_process())));
    return database.query(
        "SELECT mpirun_boot, mpirun_start_ticks, mpirun_pid FROM attempts WHERE ended_unix_ms IS "
        "NULL ORDER BY attempt DESC LIMIT 1",
        {}, [&](const SqlRow& row) {
          gang.boot = static_cast<std::uint64_t>(row.number(0));
          gang.start_ticks = row.number(1);
          gang.pid = static_cast<std::int32_t>(row.number(2));
        });
  }));
  auto impl =
      std::make_unique<Impl>(Impl{std::move(lock), std::move(database), history_of(facts), gang});
  return std::unique_ptr<Journal>(new Journal(std::move(impl)));
}

const supervisor::History& Journal::history() const {
  return impl_->history;
}
ProcessId Journal::open_gang() const {
  return impl_->history.attempt_open ? impl_->open_gang : ProcessId{};
}

Result<std::vector<std::int64_t>> Journal::record(const supervisor::Event& event,
                                                  const supervisor::Decision& decision) {
  Database& database = impl_->database;
  std::vector<std::int64_t> ids;
  SUREFOOT_TRY(database.transaction([&]() -> Status {
    const auto& history = decision.next.history;
    SUREFOOT_TRY(put(database, to_facts(history)));
    SUREFOOT_TRY(
        database.run("INSERT INTO decisions(unix_ms, attempt, event, reason) VALUES(?, ?, ?, ?)",
                     {unix_ms(), history.attempt.value, std::string(name(event)),
                      std::string(decision.reason)}));
    const std::int64_t id = database.last_id();
    for (const Effect& effect : decision.effects) {
      SUREFOOT_ASSIGN(const auto action, note(database, effect, id));
      ids.push_back(action);
    }
    SUREFOOT_TRY(database.run("DELETE FROM actions WHERE decision <= ?", {id - kDecisionsKept}));
    return database.run("DELETE FROM decisions WHERE id <= ?", {id - kDecisionsKept});
  }));
  return ids;
}

Status Journal::done(std::int64_t action, const std::string& outcome) {
  return impl_->database.run("UPDATE actions SET done_unix_ms=?, outcome=? WHERE id=?",
                             {unix_ms(), outcome, action});
}

Status Journal::launched(Attempt attempt, const ProcessId& mpirun) {
  return impl_->database.run(
      "UPDATE attempts SET mpirun_boot=?, mpirun_start_ticks=?, mpirun_pid=? WHERE attempt=?",
      {static_cast<std::int64_t>(mpirun.boot), mpirun.start_ticks, std::int64_t{mpirun.pid},
       attempt.value});
}

Status Journal::save(const supervisor::History& history) {
  return impl_->database.transaction(
      [&]() -> Status { return put(impl_->database, to_facts(history)); });
}

Status Journal::set_result(const JournalResult& result) {
  return impl_->database.transaction(
      [&]() -> Status { return put(impl_->database, to_facts(result)); });
}

}  // namespace surefoot
