// The journal on a real file system: what is written is read back, whoever dies in between.
#include "launcher/journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/file.h"
#include "launcher/sqlite.h"

namespace surefoot {
namespace {

using namespace supervisor;  // NOLINT: the tests speak of its types

class JournalTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "surefoot-journal-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::filesystem::path file() const { return folder_ / "journal.db"; }

  std::unique_ptr<Journal> open() {
    auto journal = Journal::open(folder_, "id", "name");
    EXPECT_TRUE(journal) << (journal ? "" : journal.error().message);
    return journal ? std::move(*journal) : nullptr;
  }

  std::filesystem::path folder_;
};

Rules rules_of_test() {
  Rules rules;
  rules.max_steps = Step{1'000'000};
  rules.max_failures = rules.max_failures_total = -1;
  return rules;
}

// A supervisor without a world: feeds itself events and journals its decisions.
class Self {
 public:
  explicit Self(Journal& journal) : journal_(journal) {}
  // The ids of the effects; stops the test at a journal that cannot be written.
  std::vector<std::int64_t> feed(decltype(Event::what) what, double seconds) {
    const Event event{Time(std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000))),
                      std::move(what)};
    Decision decision = decide(rules_, std::move(state_), event);
    std::vector<std::int64_t> ids;
    if (decision.record) {
      auto written = journal_.record(event, decision);
      if (!written) throw std::runtime_error(written.error().message);
      ids = *written;
    }
    state_ = std::move(decision.next);
    return ids;
  }
  [[nodiscard]] const State& state() const { return state_; }

 private:
  Journal& journal_;
  Rules rules_ = rules_of_test();
  State state_;
};

TEST_F(JournalTest, ReadsBackWhatWasRecorded) {
  const auto journal = open();
  Self self(*journal);
  self.feed(JobOpened{journal->history(), false}, 0);
  const auto ids = self.feed(ServiceAnswered{}, 0.5);
  ASSERT_EQ(ids.size(), 1u);
  ASSERT_TRUE(journal->launched(Attempt{1}, self_process()));
  ASSERT_TRUE(journal->done(ids[0]));
  self.feed(StepFinished{Attempt{1}, Step{1}, Time(std::chrono::seconds(2))}, 2);
  self.feed(GangExited{Attempt{1},
                       -1,
                       9,
                       {1, "a", Step{2}, Phase::kUpdate, "it's \"odd\"; DROP TABLE facts"},
                       Time(std::chrono::seconds(3))},
            3);
  self.feed(GangEnded{Attempt{1}}, 4);
  self.feed(StepFinished{Attempt{2}, Step{2}, Time(std::chrono::seconds(6))}, 6);
  ASSERT_TRUE(journal->set_result({"weights", "state", "final", 2}));

  const auto view = read_journal(folder_);
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_EQ(view->job.id, "id");
  EXPECT_EQ(view->job.name, "name");
  History expected = self.state().history;
  expected.accounting.mark = {};
  EXPECT_EQ(view->history, expected);
  ASSERT_EQ(view->attempts.size(), 2u);
  const JournalAttempt& first = view->attempts[0];
  EXPECT_EQ(first.end.outcome, Outcome::kFailed);
  EXPECT_EQ(first.end.signal, 9);
  EXPECT_EQ(first.end.last_step, Step{1});
  EXPECT_EQ(first.end.culprit,
            (Culprit{1, "a", Step{2}, Phase::kUpdate, "it's \"odd\"; DROP TABLE facts"}));
  EXPECT_EQ(first.mpirun, self_process());
  EXPECT_GT(first.ended_unix_ms, 0);
  EXPECT_FALSE(first.recovery);
  ASSERT_TRUE(view->attempts[1].recovery);
  EXPECT_EQ(view->attempts[1].recovery->attempt, Attempt{2});
  EXPECT_EQ(view->attempts[1].ended_unix_ms, 0);
  ASSERT_GE(view->actions.size(), 2u);
  EXPECT_EQ(view->actions[1].what, "LaunchGang");
  EXPECT_EQ(view->actions[1].outcome, "done");
  EXPECT_EQ(view->actions.back().done_unix_ms, 0)
      << "a second launch was intended and never reported";
  ASSERT_TRUE(view->result);
  EXPECT_EQ(view->result->weights_sha256, "weights");
  EXPECT_FALSE(view->stop);
  EXPECT_EQ(view->supervisor, self_process());
}

// What only the effects say.
Decision decision_of(std::vector<Effect> effects) {
  Decision decision;
  decision.effects = std::move(effects);
  decision.reason = "of a test";
  decision.record = true;
  return decision;
}

TEST_F(JournalTest, KeepsWhatWasLeftOfANoticesTimeAndWhichStepsWereLost) {
  const auto journal = open();
  const Event event{Time{}, TimerFired{}};
  AttemptEnd end;
  end.attempt = Attempt{1};
  end.outcome = Outcome::kPreempted;
  end.drained_after = std::chrono::milliseconds(350);
  end.time_left = std::chrono::milliseconds(-20);
  Recovery recovery;
  recovery.attempt = Attempt{2};
  recovery.steps_lost = 4;
  AttemptEnd regrouped;
  regrouped.attempt = Attempt{2};
  regrouped.outcome = Outcome::kRegrouped;
  for (const Effect& effect : {Effect{LaunchGang{Attempt{1}, {}}}, Effect{RecordAttemptEnd{end}},
                               Effect{LaunchGang{Attempt{2}, {}}}, Effect{RecordRecovery{recovery}},
                               Effect{RecordAttemptEnd{regrouped}}})
    ASSERT_TRUE(journal->record(event, decision_of({effect})));
  const auto view = read_journal(folder_);
  ASSERT_TRUE(view) << view.error().message;
  ASSERT_EQ(view->attempts.size(), 2u);
  EXPECT_EQ(view->attempts[0].end.drained_after, end.drained_after);
  EXPECT_EQ(view->attempts[0].end.time_left, end.time_left);
  EXPECT_EQ(view->attempts[1].end.drained_after, std::nullopt);
  EXPECT_EQ(view->attempts[1].end.time_left, std::nullopt);
  EXPECT_EQ(view->attempts[1].end.outcome, Outcome::kRegrouped);
  ASSERT_TRUE(view->attempts[1].recovery);
  EXPECT_EQ(view->attempts[1].recovery->steps_lost, 4);
}

TEST_F(JournalTest, TakesOverOneOfTheFirstVersion) {
  {
    const auto journal = open();
    ASSERT_TRUE(journal->record({Time{}, TimerFired{}}, decision_of({LaunchGang{Attempt{1}, {}}})));
  }
  {
    auto database = Database::open(file(), Database::Mode::kExisting);
    ASSERT_TRUE(database);
    for (const char* column : {"drained_after_ns", "time_left_ns", "steps_lost"})
      ASSERT_TRUE(database->run(fmt::format("ALTER TABLE attempts DROP COLUMN {}", column)));
    ASSERT_TRUE(database->run("PRAGMA user_version = 1"));
  }
  const auto old = read_journal(folder_);
  ASSERT_TRUE(old) << old.error().message;
  EXPECT_EQ(old->attempts.size(), 1u);
  const auto journal = open();
  AttemptEnd end;
  end.attempt = Attempt{1};
  end.drained_after = std::chrono::seconds(1);
  ASSERT_TRUE(journal->record({Time{}, TimerFired{}}, decision_of({RecordAttemptEnd{end}})));
  const auto view = read_journal(folder_);
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_EQ(view->attempts[0].end.drained_after, end.drained_after);
}

TEST_F(JournalTest, NamesTheGangThatAnEarlierSupervisorLeft) {
  {
    const auto journal = open();
    Self self(*journal);
    self.feed(JobOpened{journal->history(), false}, 0);
    self.feed(ServiceAnswered{}, 0.5);
    ASSERT_TRUE(journal->launched(Attempt{1}, self_process()));
  }
  const auto journal = open();
  EXPECT_TRUE(journal->history().attempt_open);
  EXPECT_EQ(journal->history().attempt, Attempt{1});
  EXPECT_EQ(journal->open_gang(), self_process());
}

TEST_F(JournalTest, KeepsHowTheLastSupervisorStoppedUntilTheNextOneOpens) {
  {
    const auto journal = open();
    Self self(*journal);
    self.feed(JobOpened{journal->history(), false}, 0);
    self.feed(Interrupted{}, 1);
    self.feed(ArenaFreed{}, 2);
  }
  auto view = read_journal(folder_);
  ASSERT_TRUE(view && view->stop);
  EXPECT_EQ(view->stop->exit_code, kExitInterrupted);
  EXPECT_EQ(view->history.state, JobState::kInterrupted);
  const auto journal = open();
  view = read_journal(folder_);
  ASSERT_TRUE(view);
  EXPECT_FALSE(view->stop);
}

TEST_F(JournalTest, RefusesASecondSupervisorAndNamesTheFirst) {
  const auto journal = open();
  const auto second = Journal::open(folder_, "id", "name");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kStale);
  EXPECT_NE(second.error().message.find(fmt::to_string(::getpid())), std::string::npos);
}

TEST_F(JournalTest, RefusesTheJournalOfAnotherJob) {
  open();
  const auto other = Journal::open(folder_, "other", "name");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kInvalid);
}

TEST_F(JournalTest, IsNotFoundWhereThereIsNone) {
  const auto view = read_journal(folder_);
  ASSERT_FALSE(view);
  EXPECT_EQ(view.error().code, Code::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(file())) << "looking must not make one";
}

TEST_F(JournalTest, SaysThatAForeignFileIsNoJournal) {
  std::ofstream(file()) << std::string(8192, 'x');
  for (const Code code :
       {Journal::open(folder_, "id", "name").error().code, read_journal(folder_).error().code}) {
    EXPECT_EQ(code, Code::kCorrupt);
  }
}

// Any page may be hit. What matters: an error that says so, or the truth; never a crash, and never
// a history made up.
TEST_F(JournalTest, SeesOrSurvivesDamageInAnyPlace) {
  History truth;
  {
    const auto journal = open();
    Self self(*journal);
    self.feed(JobOpened{journal->history(), false}, 0);
    self.feed(ServiceAnswered{Step{5}}, 1);
    truth = self.state().history;
  }
  const auto good = read_file(file());
  ASSERT_TRUE(good);
  int refused = 0;
  for (std::size_t place = 0; place < good->size(); place += 512) {
    std::string bad = *good;
    for (std::size_t i = place; i < std::min(place + 512, bad.size()); ++i)
      bad[i] = static_cast<char>(~bad[i]);
    std::ofstream(file(), std::ios::binary | std::ios::trunc) << bad;
    const auto journal = Journal::open(folder_, "id", "name");
    if (!journal) {
      ++refused;
      EXPECT_FALSE(journal.error().message.empty());
      continue;
    }
    EXPECT_LE((*journal)->history().attempt, truth.attempt) << "damage at " << place;
  }
  EXPECT_GT(refused, 0);
}

// Records for ever and writes a byte to `told` after each; killed by its parent at any moment, in
// the middle of a transaction too.
[[noreturn]] void record_until_killed(const std::filesystem::path& folder, int told) {
  auto journal = Journal::open(folder, "id", "name");
  if (!journal) ::_exit(2);
  Self self(**journal);
  double now = 0;
  self.feed(JobOpened{(*journal)->history(), false}, now);
  for (;;) {
    if (::write(told, "x", 1) != 1) ::_exit(3);
    now += 1;
    const State& state = self.state();
    const Attempt attempt = state.history.attempt;
    const Step next = state.history.finished_step.next();
    if (state.doing == Doing::kAssembling) {
      self.feed(ServiceAnswered{}, now);
    } else if (state.doing == Doing::kRunning && state.attempt_step.value < 0) {
      self.feed(StepFinished{attempt, next, Time(std::chrono::seconds(static_cast<int>(now)))},
                now);
    } else if (state.doing == Doing::kRunning) {
      self.feed(
          GangExited{attempt, -1, 9, {0, "a", next, Phase::kUpdate, fmt::to_string(now)}, Time{}},
          now);
    } else {
      self.feed(GangEnded{attempt}, now);
    }
  }
}

TEST_F(JournalTest, HoldsWholeDecisionsAfterAKillAtAnyMoment) {
  std::int64_t attempts_before = 0;
  for (int round = 0; round < 20; ++round) {
    int told[2] = {-1, -1};
    ASSERT_EQ(::pipe(told), 0);
    const Fd hears(told[0]);
    Fd tells(told[1]);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) record_until_killed(folder_, tells.get());
    tells.reset();
    // Enough for a next attempt, however slow the machine; then a moment that differs, so that the
    // kill falls anywhere.
    for (int i = 0; i < 5 + round % 5; ++i) {
      char byte = 0;
      ASSERT_EQ(::read(hears.get(), &byte, 1), 1) << "the recorder failed by itself";
    }
    ::usleep(static_cast<useconds_t>(370 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the recorder failed by itself";
    const auto view = read_journal(folder_);
    ASSERT_TRUE(view) << view.error().message;
    const History& history = view->history;
    EXPECT_EQ(history.attempt.value, static_cast<std::int64_t>(view->attempts.size()));
    for (const JournalAttempt& attempt : view->attempts) {
      const bool last = &attempt == &view->attempts.back();
      EXPECT_EQ(attempt.ended_unix_ms == 0, last && history.attempt_open);
    }
    EXPECT_EQ(history.failures_total,
              std::count_if(
                  view->attempts.begin(), view->attempts.end(), [](const JournalAttempt& attempt) {
                    return attempt.ended_unix_ms != 0 && attempt.end.outcome == Outcome::kFailed;
                  }));
    EXPECT_GE(history.attempt.value, attempts_before);
    attempts_before = history.attempt.value;
  }
  EXPECT_GE(attempts_before, 20);
}

}  // namespace
}  // namespace surefoot
