// Machines that are lost, go, freeze, come back: the job goes on over those that are left, ends
// with the bits of one worker alone, and loses no finished step while one machine lives.
#include <regex>
#include <thread>

#include "common/file.h"
#include "tests/e2e/fleet.h"

namespace surefoot::e2e {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

TEST_F(Fleet, FourMachinesGiveTheBitsOfOneWorkerAloneAndNothingIsLeftOnThem) {
  start_job();
  expect_done_with_same_bits();
  expect_no_step_lost();
  expect_nothing_left({0, 1, 2, 3, kFront});
  // What proved that all see one store is gone, and a log that all see was not mirrored into
  // itself.
  for (const auto& entry : fs::directory_iterator(sandbox_->directory() / "checkpoints" / "fleet"))
    EXPECT_FALSE(entry.path().filename().string().starts_with("probe-")) << entry.path();
  const std::string log =
      read_file((sandbox_->directory() / "logs/attempt-001/rank-0.log").string()).value();
  EXPECT_NE(log.find(": restore: "), std::string::npos) << log;
  EXPECT_EQ(log.find(": restore: "), log.rfind(": restore: ")) << log;
}

TEST_F(Fleet, AMachineIsLostWithoutAWordAndTheOthersGoOn) {
  start_job();
  reach_step(10);
  ASSERT_TRUE(host(2).kill());
  await_line("machine host2 is lost");
  await_line("back at work");
  expect_done_with_same_bits();
  expect_no_step_lost();
  expect_nothing_left({0, 1, 3, kFront});
}

TEST_F(Fleet, TheSupervisorsOwnMachineMayBeOneOfThemAndGoesOnWhenAnotherIsLost) {
  front_ = 0;
  start_job();
  reach_step(10);
  ASSERT_TRUE(host(2).kill());
  await_line("machine host2 is lost");
  expect_done_with_same_bits();
  expect_no_step_lost();
  expect_nothing_left({0, 1, 3});
}

TEST_F(Fleet, TheMachineWithTheFirstRankIsLost) {
  start_job();
  reach_step(10);
  ASSERT_TRUE(host(0).kill());
  await_line("machine host0 is lost");
  expect_done_with_same_bits();
  expect_no_step_lost();
}

TEST_F(Fleet, TwoMachinesAreLostAtOnce) {
  start_job();
  reach_step(10);
  ASSERT_TRUE(host(0).kill());
  ASSERT_TRUE(host(3).kill());
  await_line("machine host0 is lost");
  await_line("machine host3 is lost");
  expect_done_with_same_bits();
  expect_no_step_lost();
  expect_nothing_left({1, 2, kFront});
}

TEST_F(Fleet, ALinkThatIsCutForThreeSecondsCostsNothing) {
  start_job({"--set", "recovery.heartbeat_timeout=5s"});
  reach_step(10);
  ASSERT_TRUE(host(1).cut());
  std::this_thread::sleep_for(3s);  // the cut itself
  ASSERT_TRUE(host(1).heal());
  EXPECT_LT(sandbox_->newest_step(), steps_) << "the job did not need the link any more";
  expect_done_with_same_bits();
  expect_no_step_lost();
  EXPECT_EQ(output().find("attempt 2"), std::string::npos) << output();
}

TEST_F(Fleet, AMachineThatWasCutOffComesBackIsRidOfItsOldWorkersAndTakesPart) {
  start_job({"--set", "train.max_steps=150"});
  reach_step(10);
  ASSERT_TRUE(host(1).cut());
  await_line("machine host1 is lost");
  await_line("attempt 2: starting 3 workers on 3 machines");
  await_line("back at work");
  ASSERT_TRUE(host(1).heal());
  await_growth();
  expect_done_with_same_bits();
  expect_no_step_lost();
  expect_nothing_left({0, 1, 2, 3, kFront});
}

TEST_F(Fleet, AMachineThatFreezesIsLostAndThawsIntoAJobThatHasGoneOn) {
  start_job({"--set", "train.max_steps=150"});
  reach_step(10);
  ASSERT_TRUE(host(2).freeze());
  await_line("machine host2 is lost");
  await_line("attempt 2: starting 3 workers on 3 machines");
  await_line("back at work");
  ASSERT_TRUE(host(2).thaw());
  await_growth();
  expect_done_with_same_bits();
  expect_no_step_lost();
  expect_nothing_left({0, 1, 2, 3, kFront});
}

TEST_F(Fleet, AMachineThatRebootsComesBackWithEmptyMemoryAndIsFilled) {
  start_job({"--set", "train.max_steps=150"});
  reach_step(10);
  ASSERT_TRUE(host(3).reboot());
  await_line("machine host3 is lost");
  await_line("on 3 machines");
  await_growth();
  expect_done_with_same_bits();
  expect_no_step_lost();
}

TEST_F(Fleet, AMachineIsLostWhileAnotherJoins) {
  start_job({"--set", "train.max_steps=150"});
  reach_step(10);
  ASSERT_TRUE(host(3).reboot());
  await_growth();
  ASSERT_TRUE(host(0).kill());
  expect_done_with_same_bits();
  expect_no_step_lost();
}

TEST_F(Fleet, AllMachinesAreLostAndNewOnesGoOnFromTheNewestCheckpoint) {
  const auto hostfile = sandbox_->root() / "hosts";
  const auto write = [&](const std::string& text) {
    ASSERT_TRUE(write_file_atomically(hostfile, text));
  };
  write("host0\nhost1\n");
  start_job({"--set", "resources.hosts=[]", "--set", "resources.hostfile=" + hostfile.string(),
             "--set", "resources.discovery_interval=200ms"});
  await_line("checkpoint of step");
  reach_step(25);
  ASSERT_TRUE(host(0).kill());
  ASSERT_TRUE(host(1).kill());
  const std::int64_t reached = sandbox_->newest_step();
  await_line("waiting for machines");
  write("host2 slots=2\nhost3\n");
  await_line("starting 3 workers on 2 machines");
  expect_done_with_same_bits();
  EXPECT_LT(result_.number("steps_lost"), reached) << "the checkpoint was not used";
  expect_nothing_left({2, 3, kFront});
}

TEST_F(Fleet, ASupervisorThatIsKilledIsTakenOverFromAndTrainingGoesOnMeanwhile) {
  start_job({"--set", "train.max_steps=150"});
  reach_step(10);
  // The program in it; `surefoot run` is not this process' child.
  const auto killed = host(kFront).run(
      {"sh", "-c", "kill -9 $(cat " + (sandbox_->directory() / "supervisor.lock").string() + ")"});
  ASSERT_EQ(killed.exit_code, 0) << killed.output;
  EXPECT_NE(job_->wait(now() + 10s).exit_code, 0);
  const std::int64_t seen = sandbox_->newest_step();
  std::this_thread::sleep_for(2s);  // steps that only the services see
  resume_job();
  await_line("attempt 2: starting 4 workers on 4 machines");
  expect_done_with_same_bits();
  expect_no_step_lost();
  EXPECT_GT(result_.json["attempt_list"][0]["last_step"], seen + 1) << "it did not train meanwhile";
  expect_nothing_left({0, 1, 2, 3, kFront});
}

TEST_F(Fleet, AMachineThatIsToldToGoLeavesAfterTheStepInHand) {
  start_job(
      {"--set", "recovery.notices=[signal, file]", "--set", "recovery.notice_file=/run/goes"});
  reach_step(10);
  ASSERT_EQ(host(1).run({"sh", "-c", "echo 60 > /run/goes"}).exit_code, 0);
  await_line("machine host1 goes");
  await_line("starting 3 workers on 3 machines");
  expect_done_with_same_bits();
  expect_no_step_lost();
  expect_said("no failures, 1 preemption");
}

TEST_F(Fleet, WorkersThatAreKilledOnOneMachineEndTheOthersAndAllAreStartedAgain) {
  start_job({"--fault", "kill:rank=2,step=10", "--fault", "kill:rank=0,step=20,phase=update"});
  expect_done_with_same_bits();
  expect_no_step_lost();
  expect_said("rank 2 on host2 in step 10");
  expect_said("rank 0 on host0 in step 20, update");
  expect_nothing_left({0, 1, 2, 3, kFront});
}

TEST_F(Fleet, ARankThatHangsIsNamedWithItsMachineStepAndPhase) {
  start_job({"--fault", "stop:rank=3,step=10", "--set", "recovery.hang_timeout=4s"});
  expect_done_with_same_bits();
  expect_no_step_lost();
  expect_said("hung");
  expect_said("rank 3 on host3 in step 10, ");
  const auto traces = read_file((sandbox_->directory() / "logs/attempt-001/traces.txt").string());
  ASSERT_TRUE(traces);
  EXPECT_NE(traces->find("rank 3, step 10"), std::string::npos) << *traces;
  for (const char* other : {"rank 0,", "rank 1,", "rank 2,"})
    EXPECT_NE(traces->find(other), std::string::npos) << other << " is not in\n" << *traces;
}

TEST_F(Fleet, AMachineThatCannotBeReachedIsLeftOutAndTheJobBeginsWithoutIt) {
  ASSERT_TRUE(host(1).kill());
  start_job({"--set", "recovery.check_timeout=30s"});
  await_line("starting 3 workers on 3 machines", 120s);
  expect_done_with_same_bits();
  expect_said("machine host1 is left out");
  EXPECT_EQ(output().find("attempt 2"), std::string::npos) << output();
}

// It counts against no budget of failures, and is no user's error.
TEST_F(Fleet, AMachineThatIsLostWhileWorkersStartIsAPreemption) {
  start_job({"--set", "recovery.max_failures=1"});
  await_line("attempt 1: starting 4 workers on 4 machines");
  ASSERT_TRUE(host(2).kill());
  expect_done_with_same_bits();
  expect_said("no failures, 1 preemption");
}

TEST_F(Fleet, ACheckpointFolderThatIsNotSharedIsRefusedByName) {
  start_job({"--set", "checkpoint.to=/tmp/mine", "--set", "resources.num_nodes=2:4", "--set",
             "recovery.capacity_timeout=20s"});
  const RunResult result = finish();
  EXPECT_EQ(result.exit_code, 75) << result.output;
  EXPECT_TRUE(std::regex_search(
      output(), std::regex("checkpoint.to is not shared between host[0-3] and host[0-3]")))
      << output();
}

// As rented machines are: each has its own disk, and only the store is the same for all.
class Apart : public Fleet {
 protected:
  void SetUp() override {
    make({"store"});
    if (IsSkipped()) return;
    std::string text = *read_file(sandbox_->job_file().string());
    ASSERT_EQ(host(kFront)
                  .run({"sh", "-c", "mkdir -p $0 && printf '%s' \"$JOB\" > $0/job.yaml",
                        sandbox_->root().string()},
                       {.environment = {"JOB=" + text}})
                  .exit_code,
              0);
  }
};

TEST_F(Apart, MachinesThatShareNothingButTheStoreBringModelAndLogsToTheSupervisor) {
  start_job({"--set", "checkpoint.to=" + (sandbox_->root() / "store").string()});
  await_line("checkpoint of step");
  ASSERT_TRUE(host(0).kill());
  await_line("back at work");
  expect_done_with_same_bits();
  const std::string directory = sandbox_->directory().string();
  const auto looked =
      host(kFront).run({"sh", "-c", "cd " + directory + " && sha256sum final/model.safetensors"});
  EXPECT_NE(looked.output.find(reference(60).text("weights_sha256")), std::string::npos)
      << looked.output;
  // Of the first rank, which says what it does; it ran on two of the machines.
  const auto logs = host(kFront).run(
      {"sh", "-c",
       "cd " + directory + "/logs && cat attempt-001/rank-0.log attempt-002/rank-0.log"});
  EXPECT_NE(logs.output.find("@host0: "), std::string::npos) << logs.output;
  EXPECT_NE(logs.output.find("@host1: "), std::string::npos) << logs.output;
  expect_nothing_left({1, 2, 3, kFront});
}

// Of the kind that a processor of another make would have: its BLAS takes another kernel.
TEST_F(Fleet, AMachineThatGivesOtherBitsIsLeftOutByName) {
  const auto ssh = sandbox_->root() / "ssh";
  ASSERT_TRUE(write_file_atomically(ssh, R"(#!/bin/sh
case "$*" in *" host3 "*) ;; *) exec ssh "$@" ;; esac
shift $(($# - 1))
exec ssh -o BatchMode=yes host3 "export OPENBLAS_CORETYPE=Prescott; $1"
)"));
  fs::permissions(ssh, fs::perms::owner_all);
  start_job({"--set", "resources.ssh=" + ssh.string()});
  await_line("starting 3 workers on 3 machines");
  expect_done_with_same_bits();
  expect_said("machine host3 is left out: its processor or libraries give other bits");
}

TEST_F(Fleet, AMachineWithOtherDataIsLeftOutByName) {
  for (int number = 0; number <= kFront; ++number) {
    const std::string text = number == 2 ? "other words" : "the same words";
    ASSERT_EQ(host(number)
                  .run({"sh", "-c", "for i in $(seq 500); do echo " + text + "; done > /tmp/text"})
                  .exit_code,
              0);
  }
  start_job({"--set", "model={kind: gpt, n_layer: 1, n_head: 1, n_embd: 16, block_size: 16}",
             "--set", "data={kind: text, path: /tmp/text}", "--set", "resources.num_nodes=4",
             "--set", "recovery.capacity_timeout=20s"});
  const RunResult result = finish();
  EXPECT_EQ(result.exit_code, 75) << result.output;
  expect_said(
      "machine host2 is left out: its data or its job file are not those that the job runs with");
}

}  // namespace
}  // namespace surefoot::e2e
