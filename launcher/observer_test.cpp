#include "launcher/observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "common/phase.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
using supervisor::Stage;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Attempt kAttempt{2};
const Time kNow = Time{} + 1000s;

void add_rank(service::StatusReply& status, int rank, Phase phase, double seconds = 0,
              std::int64_t attempt = 2) {
  auto* line = status.add_ranks();
  line->set_rank(rank);
  line->set_attempt(attempt);
  line->set_alive(true);
  line->set_phase(std::string(name(phase)));
  line->set_step(7);
  line->set_seconds_in_phase(seconds);
  line->set_exit_code(-1);
}

service::StatusReply ranks(const std::vector<Phase>& phases) {
  service::StatusReply status;
  for (std::size_t i = 0; i < phases.size(); ++i) add_rank(status, static_cast<int>(i), phases[i]);
  return status;
}

void add_record(service::StatusReply& status, std::int64_t step, double age,
                std::int64_t attempt = 2, std::int64_t kind = 0) {
  auto* record = status.add_records();
  record->set_kind(kind);
  record->set_attempt(attempt);
  record->set_step(step);
  record->set_age_seconds(age);
  for (std::size_t i = 0; i < kPhaseCount; ++i)
    record->add_phase_seconds(i == static_cast<std::size_t>(Phase::kSnapshot) ? 0.25 : 0);
}

std::vector<std::string> told(const std::vector<supervisor::Event>& events) {
  std::vector<std::string> texts;
  for (const auto& event : events) {
    if (const auto* stage = std::get_if<supervisor::StageReached>(&event.what))
      texts.push_back(std::string(supervisor::name(stage->stage)));
    if (const auto* step = std::get_if<supervisor::StepFinished>(&event.what))
      texts.push_back(fmt::format("step {}", step->step));
    if (std::holds_alternative<supervisor::FaultFired>(event.what)) texts.push_back("fault");
  }
  return texts;
}

std::string stage_name(Stage stage) {
  return std::string(supervisor::name(stage));
}

TEST(StageOf, IsThatOfTheSlowestRank) {
  EXPECT_EQ(stage_of({}, kAttempt, 2, false), std::nullopt);
  EXPECT_EQ(stage_of({}, kAttempt, 2, true), Stage::kLoading);
  EXPECT_EQ(stage_of(ranks({Phase::kRestoring}), kAttempt, 2, true), Stage::kLoading);
  EXPECT_EQ(stage_of(ranks({Phase::kRestoring, Phase::kStarting}), kAttempt, 2, true),
            Stage::kLoading);
  EXPECT_EQ(stage_of(ranks({Phase::kRestoring, Phase::kData}), kAttempt, 2, true),
            Stage::kRestoring);
  EXPECT_EQ(stage_of(ranks({Phase::kData, Phase::kSnapshot}), kAttempt, 2, true), Stage::kStepping);
  EXPECT_EQ(stage_of(ranks({Phase::kEvaluation, Phase::kSnapshot}), kAttempt, 2, true),
            Stage::kEvaluating);
  EXPECT_EQ(stage_of(ranks({Phase::kFinishing, Phase::kDone}), kAttempt, 2, true),
            Stage::kFinishing);
}

TEST(StageOf, DoesNotCountLinesOfAnEarlierAttempt) {
  service::StatusReply status;
  add_rank(status, 0, Phase::kUpdate, 0, 1);
  add_rank(status, 1, Phase::kUpdate, 0, 1);
  EXPECT_EQ(stage_of(status, kAttempt, 2, false), std::nullopt);
}

TEST(Observer, TellsEachThingOnceAndStepsBeforeWhatCameAfterThem) {
  Observer observer;
  observer.follow(kAttempt, 2);
  EXPECT_THAT(told(observer.observe(ranks({}), false, kNow)), IsEmpty());
  EXPECT_THAT(told(observer.observe(ranks({Phase::kRestoring, Phase::kRestoring}), true, kNow)),
              ElementsAre(stage_name(Stage::kRestoring)));
  service::StatusReply status = ranks({Phase::kEvaluation, Phase::kEvaluation});
  add_record(status, 6, 0.5);
  add_record(status, 7, 0.1);
  const auto events = observer.observe(status, true, kNow);
  EXPECT_THAT(told(events), ElementsAre(stage_name(Stage::kStepping), "step 6", "step 7",
                                        stage_name(Stage::kEvaluating)));
  EXPECT_THAT(told(observer.observe(status, true, kNow)), IsEmpty());
}

TEST(Observer, GivesTheTimeAtWhichAStepWasFinished) {
  Observer observer;
  observer.follow(kAttempt, 1);
  service::StatusReply status = ranks({Phase::kData});
  add_record(status, 6, 0.5);
  const auto events = observer.observe(status, true, kNow);
  const auto* step = std::get_if<supervisor::StepFinished>(&events.back().what);
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->when, kNow - 500ms);
  EXPECT_EQ(step->snapshot_exposed, 250ms);
}

TEST(Observer, LetsSteppingBeginWithTheFirstStepHoweverLateTheAnswerComes) {
  Observer observer;
  observer.follow(kAttempt, 1);
  service::StatusReply status = ranks({Phase::kData});
  add_record(status, 1, 3.0);
  add_record(status, 2, 2.0);
  const auto events = observer.observe(status, true, kNow);
  const auto* stage = std::get_if<supervisor::StageReached>(&events.front().what);
  ASSERT_NE(stage, nullptr);
  EXPECT_EQ(stage->stage, Stage::kStepping);
  EXPECT_EQ(stage->when, kNow - 3250ms);
}

TEST(Observer, LeavesOutEvaluationsRepeatedRecordsAndOtherAttempts) {
  Observer observer;
  observer.follow(kAttempt, 1);
  service::StatusReply status = ranks({Phase::kData});
  add_record(status, 6, 0.5);
  add_record(status, 6, 0.4, 2, 1);
  add_record(status, 7, 0.3, 1);
  add_record(status, 6, 0.5);
  EXPECT_THAT(told(observer.observe(status, true, kNow)),
              ElementsAre(stage_name(Stage::kStepping), "step 6"));
}

TEST(Observer, TellsAnInjectedFaultOnceAndNotThoseOfAnEarlierSupervisor) {
  Observer observer;
  observer.follow(kAttempt, 1);
  service::StatusReply status;
  status.add_fired_faults(0);
  EXPECT_THAT(told(observer.observe(status, false, kNow)), IsEmpty());
  status.add_fired_faults(3);
  EXPECT_THAT(told(observer.observe(status, false, kNow)), ElementsAre("fault"));
  EXPECT_THAT(told(observer.observe(status, false, kNow)), IsEmpty());
}

// The words of Open MPI 4.1.4 itself.
constexpr const char* kSignalled =
    "--------------------------------------------------------------------------\n"
    "Primary job  terminated normally, but 1 process returned\n"
    "a non-zero exit code. Per user-direction, the job has been aborted.\n"
    "--------------------------------------------------------------------------\n"
    "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).\n";
constexpr const char* kCoded =
    "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
    "the job to be terminated. The first process to do so was:\n\n"
    "  Process name: [[45230,1],3]\n  Exit code:    17\n";

GangEndFacts facts(int code, int signal, const std::string& log) {
  GangEndFacts facts;
  facts.attempt = kAttempt;
  facts.mpirun.code = code;
  facts.mpirun.signal = signal;
  facts.mpirun_log = log;
  facts.at = kNow;
  return facts;
}

TEST(AwaitedRank, IsTheOneThatIsFurthestBehind) {
  const RankPlace at_work{0, "a", 0, Step{7}, Phase::kForwardBackward};
  const RankPlace waiting{0, "a", 1, Step{7}, Phase::kReduction};
  const RankPlace ahead{1, "b", 2, Step{8}, Phase::kData};
  const auto awaited = awaited_rank({waiting, at_work, ahead});
  ASSERT_TRUE(awaited);
  EXPECT_EQ(awaited->rank, 0);
  EXPECT_EQ(awaited->host, "a");
  EXPECT_EQ(awaited->node, 0);
  EXPECT_EQ(awaited->step, Step{7});
  EXPECT_EQ(awaited->phase, Phase::kForwardBackward);
}

TEST(AwaitedRank, IsTheFirstOfAMachineThatStandsStill) {
  const auto at = [](supervisor::NodeId node, int rank, Phase phase) {
    return RankPlace{node, "x", rank, Step{7}, phase};
  };
  const auto machine = awaited_rank({at(0, 0, Phase::kReduction), at(0, 1, Phase::kReduction),
                                     at(1, 3, Phase::kData), at(1, 2, Phase::kData)});
  ASSERT_TRUE(machine);
  EXPECT_EQ(machine->rank, 2);
  EXPECT_FALSE(awaited_rank({at(0, 0, Phase::kReduction), at(0, 1, Phase::kData),
                             at(1, 2, Phase::kData), at(1, 3, Phase::kReduction)}))
      << "two of two machines";
}

TEST(AwaitedRank, IsNobodyWhereAllAreAtTheSamePlace) {
  const RankPlace one{0, "a", 0, Step{7}, Phase::kReduction};
  const RankPlace other{1, "b", 1, Step{7}, Phase::kReduction};
  EXPECT_FALSE(awaited_rank({one, other}));
  EXPECT_FALSE(awaited_rank({one}));
  EXPECT_FALSE(awaited_rank({}));
}

TEST(GangExited, BelievesMpirunAboutARankThatWasKilled) {
  GangEndFacts end = facts(137, 0, kSignalled);
  end.status = service::StatusReply();
  add_rank(*end.status, 0, Phase::kReduction, 0.2);
  add_rank(*end.status, 1, Phase::kForwardBackward, 0.3);
  // The others lost their peer, which is a consequence.
  end.status->mutable_ranks(0)->set_exit_code(76);
  end.status->mutable_ranks(0)->set_reason("rank 1 does not answer");
  const auto exited = gang_exited(end);
  EXPECT_EQ(exited.signal, SIGKILL);
  EXPECT_EQ(exited.code, -1);
  EXPECT_EQ(exited.culprit.rank, 1);
  EXPECT_EQ(exited.culprit.phase, Phase::kForwardBackward);
  EXPECT_EQ(exited.culprit.step, Step{7});
  EXPECT_EQ(exited.culprit.reason, "ended by SIGKILL");
  EXPECT_EQ(exited.died, kNow - 300ms);
}

TEST(GangExited, BelievesARankThatSaysWhyItLeft) {
  GangEndFacts end = facts(1, 0, kCoded);
  end.status = service::StatusReply();
  add_rank(*end.status, 0, Phase::kData, 0.1);
  add_rank(*end.status, 1, Phase::kData, 0.4);
  end.status->mutable_ranks(1)->set_exit_code(65);
  end.status->mutable_ranks(1)->set_reason("data.path has changed");
  const auto exited = gang_exited(end);
  EXPECT_EQ(exited.code, 65);
  EXPECT_EQ(exited.culprit.rank, 1);
  EXPECT_EQ(exited.culprit.reason, "data.path has changed");
}

TEST(GangExited, KnowsTheExitCodeWithoutTheService) {
  const auto exited = gang_exited(facts(17, 0, kCoded));
  EXPECT_EQ(exited.code, 17);
  EXPECT_EQ(exited.culprit.rank, 3);
  EXPECT_EQ(exited.culprit.reason, "left with exit code 17");
}

TEST(GangExited, GivesTheSameReasonWhenMpirunDoesNotSayWhoItWas) {
  const std::string half = std::string(kCoded).substr(0, 20);
  EXPECT_EQ(gang_exited(facts(17, 0, half)).culprit.reason,
            gang_exited(facts(17, 0, kCoded)).culprit.reason);
  GangEndFacts end = facts(137, 0, half);
  EXPECT_EQ(gang_exited(end).signal, SIGKILL);
  EXPECT_EQ(gang_exited(end).culprit.reason, gang_exited(facts(137, 0, kSignalled)).culprit.reason);
  EXPECT_EQ(gang_exited(end).culprit.rank, -1);
  end.status = service::StatusReply();
  add_rank(*end.status, 0, Phase::kReduction);
  add_rank(*end.status, 1, Phase::kForwardBackward);
  end.status->mutable_ranks(0)->set_exit_code(76);
  for (auto& line : *end.status->mutable_ranks()) line.set_alive(false);
  EXPECT_EQ(gang_exited(end).culprit.rank, 1);
}

TEST(GangExited, TakesTheReasonFromTheLogOfARankThatHadNoLineYet) {
  GangEndFacts end = facts(65, 0, kCoded);
  end.rank_logs[3] =
      "2026-11-30T15:51:44.123Z info    worker 1/3@vm: here\n2026-11-30T15:51:44.124Z error   "
      "worker 1/3@vm: cannot read data: no such file\nbye\n";
  EXPECT_EQ(gang_exited(end).culprit.reason, "cannot read data: no such file");
  end.rank_logs[3] = "job.yaml:3:1: unknown key\n\n";
  EXPECT_EQ(gang_exited(end).culprit.reason, "job.yaml:3:1: unknown key");
}

TEST(GangExited, NamesMpirunItselfWhenThatWasKilled) {
  const auto exited = gang_exited(facts(-1, SIGKILL, ""));
  EXPECT_EQ(exited.signal, SIGKILL);
  EXPECT_EQ(exited.culprit.rank, -1);
  EXPECT_EQ(exited.culprit.reason, "mpirun ended by SIGKILL");
}

TEST(GangExited, HasNoCulpritWhenAllLeftInOrder) {
  for (const int code : {0, 75}) {
    const auto exited = gang_exited(facts(code, 0, code == 75 ? kCoded : ""));
    EXPECT_EQ(exited.code, code);
    EXPECT_EQ(exited.culprit, supervisor::Culprit{});
  }
}

TEST(NamedByMpirun, NamesNobodyInOtherText) {
  for (const char* text :
       {"", "noticed that process rank ", "Process name: [[", "Process name: [[1,1],x]"}) {
    EXPECT_EQ(named_by_mpirun(text).rank, -1) << text;
  }
}

}  // namespace
}  // namespace surefoot
