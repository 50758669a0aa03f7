// Reading a journal, whether its supervisor runs, has stopped, or was killed in the middle of a
// write.
#include <algorithm>

#include "launcher/journal.h"
#include "launcher/journal_facts.h"
#include "launcher/sqlite.h"

namespace surefoot {
namespace {

using supervisor::Outcome;

Outcome outcome_named(const std::string& text) {
  for (const Outcome outcome :
       {Outcome::kDone, Outcome::kDrained, Outcome::kPreempted, Outcome::kRegrouped,
        Outcome::kFailed, Outcome::kHung, Outcome::kRefused, Outcome::kEnded}) {
    if (name(outcome) == text) return outcome;
  }
  return Outcome::kAbandoned;
}

JournalAttempt attempt_of(const SqlRow& row) {
  JournalAttempt attempt;
  attempt.end.attempt = Attempt{row.number(0)};
  attempt.started_unix_ms = row.number(1);
  attempt.ended_unix_ms = row.number(2);
  attempt.end.outcome = outcome_named(row.text(3));
  attempt.end.injected = row.number(4) != 0;
  attempt.end.code = static_cast<int>(row.number(5));
  attempt.end.signal = static_cast<int>(row.number(6));
  attempt.end.first_step = Step{row.number(7)};
  attempt.end.last_step = Step{row.number(8)};
  attempt.end.culprit.rank = row.is_null(9) ? -1 : static_cast<int>(row.number(9));
  attempt.end.culprit.host = row.text(10);
  attempt.end.culprit.step = Step{row.number(11)};
  attempt.end.culprit.phase = phase_named(row.text(12)).value_or(Phase::kStarting);
  attempt.end.culprit.reason = row.text(13);
  attempt.mpirun.boot = static_cast<std::uint64_t>(row.number(14));
  attempt.mpirun.start_ticks = row.number(15);
  attempt.mpirun.pid = static_cast<std::int32_t>(row.number(16));
  if (!row.is_null(17)) {
    attempt.recovery = Recovery{attempt.end.attempt,      Duration(row.number(17)),
                                Duration(row.number(18)), Duration(row.number(19)),
                                Duration(row.number(20)), Duration(row.number(21)),
                                Duration(row.number(22)), row.number(25)};
  }
  if (!row.is_null(23)) attempt.end.drained_after = Duration(row.number(23));
  if (!row.is_null(24)) attempt.end.time_left = Duration(row.number(24));
  return attempt;
}

Status read_all(Database& database, int max_actions, JournalView& view) {
  std::int64_t version = 0;
  SUREFOOT_TRY(database.query("PRAGMA user_version", {},
                              [&](const SqlRow& row) { version = row.number(0); }));
  Facts facts;
  SUREFOOT_TRY(database.query("SELECT key, value FROM facts", {},
                              [&](const SqlRow& row) { facts[row.text(0)] = row.text(1); }));
  view.job = job_of(facts);
  view.history = history_of(facts);
  view.result = result_of(facts);
  view.stop = stop_of(facts);
  if (facts.contains("supervisor.pid")) view.supervisor = supervisor_of(facts);
  SUREFOOT_TRY(database.query(
      fmt::format("SELECT attempt, started_unix_ms, ended_unix_ms, outcome, injected, "
                  "code, signal, first_step, last_step, rank, host, step, phase, "
                  "reason, mpirun_boot, mpirun_start_ticks, mpirun_pid, detect_ns, wait_ns, "
                  "launch_ns, load_ns, restore_ns, first_step_ns, {} "
                  "FROM attempts ORDER BY attempt",
                  version < 2 ? "NULL, NULL, NULL" : "drained_after_ns, time_left_ns, steps_lost"),
      {}, [&](const SqlRow& row) { view.attempts.push_back(attempt_of(row)); }));
  SUREFOOT_TRY(database.query(
      "SELECT a.id, d.attempt, a.what, d.reason, d.unix_ms, a.done_unix_ms, a.outcome FROM actions "
      "a JOIN decisions d ON d.id = a.decision "
      "ORDER BY a.id DESC LIMIT ?",
      {std::int64_t{max_actions}}, [&](const SqlRow& row) {
        view.actions.push_back({row.number(0), row.number(1), row.text(2), row.text(3),
                                row.number(4), row.number(5), row.text(6)});
      }));
  std::reverse(view.actions.begin(), view.actions.end());
  return {};
}

}  // namespace

Result<JournalView> read_journal(const std::filesystem::path& job_directory, int max_actions) {
  const auto file = job_directory / "journal.db";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    return error(Code::kNotFound, "{}: there is no journal", file.string());
  // Opened for writing where that is allowed: a supervisor that was killed while it wrote has left
  // a rollback to be done.
  SUREFOOT_ASSIGN(Database database, Database::open(file, Database::Mode::kExisting));
  std::int64_t application = 0;
  SUREFOOT_TRY(database.query("PRAGMA application_id", {},
                              [&](const SqlRow& row) { application = row.number(0); }));
  std::int64_t tables = 0;
  SUREFOOT_TRY(database.query("SELECT count(*) FROM sqlite_master", {},
                              [&](const SqlRow& row) { tables = row.number(0); }));
  if (tables == 0) return error(Code::kNotFound, "{}: nothing was written yet", file.string());
  if (application != kJournalApplication) {
    return error(Code::kCorrupt, "{}: a database, but no journal of Surefoot", file.string());
  }
  JournalView view;
  SUREFOOT_TRY(database.run("BEGIN"));  // one moment for all that is read
  SUREFOOT_TRY(read_all(database, max_actions, view));
  SUREFOOT_TRY(database.run("COMMIT"));
  return view;
}

}  // namespace surefoot
