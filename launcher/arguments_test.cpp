#include "launcher/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace surefoot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Verb>
Verb parsed(const std::vector<std::string>& words) {
  const Arguments arguments = parse_arguments(words);
  const Verb* verb = std::get_if<Verb>(&arguments);
  const PrintAndLeave* refused = std::get_if<PrintAndLeave>(&arguments);
  EXPECT_NE(verb, nullptr) << (refused != nullptr ? refused->text : "another verb");
  return verb != nullptr ? *verb : Verb{};
}

int refused(const std::vector<std::string>& words) {
  const Arguments arguments = parse_arguments(words);
  const PrintAndLeave* leave = std::get_if<PrintAndLeave>(&arguments);
  EXPECT_NE(leave, nullptr);
  if (leave == nullptr) return -1;
  EXPECT_FALSE(leave->text.empty());
  return leave->code;
}

TEST(Arguments, OfRun) {
  const auto run =
      parsed<RunArguments>({"run", "job.yaml", "--dir", "d", "--set", "train.max_steps=5", "--set",
                            "train.seed=2", "--fault", "kill:all,step=3", "--fault", "random:3",
                            "--faults-count", "--fresh", "--accept-changes", "--json", "--quiet"});
  EXPECT_EQ(run.job, "job.yaml");
  EXPECT_EQ(run.dir, "d");
  EXPECT_THAT(run.sets, ElementsAre("train.max_steps=5", "train.seed=2"));
  EXPECT_THAT(run.faults, ElementsAre("kill:all,step=3", "random:3"));
  EXPECT_TRUE(run.faults_count && run.fresh && run.accept_changes && run.json && run.quiet);
  EXPECT_FALSE(run.resume);
}

TEST(Arguments, TakeTheJobAfterARepeatableOption) {
  const auto run = parsed<RunArguments>({"run", "--set", "train.seed=2", "job.yaml"});
  EXPECT_EQ(run.job, "job.yaml");
  EXPECT_THAT(run.sets, ElementsAre("train.seed=2"));
}

TEST(Arguments, OfResumeHaveNoFresh) {
  EXPECT_TRUE(parsed<RunArguments>({"resume", "runs/a"}).resume);
  EXPECT_EQ(refused({"resume", "runs/a", "--fresh"}), 64);
}

TEST(Arguments, OfTheVerbsThatReadNeedNoJob) {
  EXPECT_TRUE(parsed<StatusArguments>({"status", "--json"}).json);
  EXPECT_EQ(parsed<CancelArguments>({"cancel"}).job, "");
  const auto logs = parsed<LogsArguments>({"logs", "-f", "--attempt", "3", "--rank", "0"});
  EXPECT_TRUE(logs.follow);
  EXPECT_EQ(logs.attempt, Attempt{3});
  EXPECT_EQ(logs.rank, 0);
  EXPECT_EQ(parsed<LogsArguments>({"logs"}).rank, std::nullopt);
}

TEST(Arguments, OfNodesAndDrain) {
  EXPECT_TRUE(parsed<NodesArguments>({"nodes", "--json"}).json);
  EXPECT_EQ(parsed<NodesArguments>({"nodes", "runs/a"}).job, "runs/a");
  const auto drain = parsed<DrainArguments>({"drain", "host2", "runs/a", "--in", "30s"});
  EXPECT_EQ(drain.node, "host2");
  EXPECT_EQ(drain.job, "runs/a");
  EXPECT_EQ(drain.in, "30s");
  EXPECT_EQ(parsed<DrainArguments>({"drain", "host2"}).in, std::nullopt);
  EXPECT_EQ(refused({"drain"}), 64) << "never all of them by a slip";
}

TEST(Arguments, OfValidateWantAJobOrTheSchema) {
  EXPECT_TRUE(parsed<ValidateArguments>({"validate", "--schema"}).schema);
  EXPECT_EQ(parsed<ValidateArguments>({"validate", "j.yaml"}).job, "j.yaml");
  EXPECT_EQ(refused({"validate"}), 64);
  EXPECT_EQ(refused({"validate", "j.yaml", "--schema"}), 64);
}

TEST(Arguments, OfDoctorNeedNoJob) {
  EXPECT_TRUE(parsed<DoctorArguments>({"doctor", "--json"}).json);
  EXPECT_EQ(parsed<DoctorArguments>({"doctor"}).job, "");
  const auto doctor =
      parsed<DoctorArguments>({"doctor", "--set", "train.seed=2", "j.yaml", "--dir", "d"});
  EXPECT_EQ(doctor.job, "j.yaml");
  EXPECT_EQ(doctor.dir, "d");
  EXPECT_THAT(doctor.sets, ElementsAre("train.seed=2"));
}

TEST(Arguments, OfCheckpointsNameWhatIsToBeDone) {
  using Action = CheckpointsArguments::Action;
  EXPECT_EQ(parsed<CheckpointsArguments>({"checkpoints", "list"}).action, Action::kList);
  EXPECT_EQ(parsed<CheckpointsArguments>({"checkpoints", "verify", "runs/a"}).action,
            Action::kVerify);
  const auto exported =
      parsed<CheckpointsArguments>({"checkpoints", "export", "runs/a", "--to", "x", "--step", "7"});
  EXPECT_EQ(exported.action, Action::kExport);
  EXPECT_EQ(exported.to, "x");
  EXPECT_EQ(exported.step, Step{7});
  EXPECT_EQ(parsed<CheckpointsArguments>({"checkpoints", "rm", "--step", "7"}).action,
            Action::kRemove);
  EXPECT_EQ(refused({"checkpoints", "rm"}), 64) << "never all of them by a slip";
  EXPECT_EQ(refused({"checkpoints", "export"}), 64);
  EXPECT_EQ(refused({"checkpoints"}), 64);
}

TEST(Arguments, ThatAreWrongLeaveWith64AndHelpWith0) {
  EXPECT_EQ(refused({}), 64);
  EXPECT_EQ(refused({"dance"}), 64);
  EXPECT_EQ(refused({"run"}), 64);
  EXPECT_EQ(refused({"run", "job.yaml", "--frehs"}), 64);
  EXPECT_EQ(refused({"logs", "--attempt", "0"}), 64);
  EXPECT_EQ(refused({"--help"}), 0);
  EXPECT_EQ(refused({"run", "--help"}), 0);
  EXPECT_EQ(refused({"--version"}), 0);
}

}  // namespace
}  // namespace surefoot
