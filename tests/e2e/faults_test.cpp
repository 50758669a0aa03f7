// Every way in which a process of a job can be ended, on a job of short steps: the same bits at the
// end, no finished step lost, nothing left behind.
#include <gtest/gtest.h>
#include <signal.h>

#include "common/digest.h"
#include "tests/e2e/jobs.h"
#include "tests/e2e/sandbox.h"

namespace surefoot::e2e {
namespace {

using namespace std::chrono_literals;

struct Reference {
  RunResult result;
  std::map<std::int64_t, std::string> losses;
};

const Reference& reference() {
  static const Reference made = [] {
    Reference undisturbed;
    Sandbox sandbox(kQuick);
    undisturbed.result = sandbox.run({"--set", "resources.workers_per_node=1"});
    undisturbed.losses = sandbox.losses();
    return undisturbed;
  }();
  return made;
}

void expect_same(const Sandbox& sandbox, const RunResult& result) {
  ASSERT_EQ(reference().result.exit_code, 0) << reference().result.output;
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.text("weights_sha256").size(), 64u);
  EXPECT_EQ(result.text("weights_sha256"), reference().result.text("weights_sha256"));
  EXPECT_EQ(result.text("state_sha256"), reference().result.text("state_sha256"));
  EXPECT_EQ(sandbox.losses(), reference().losses);
  EXPECT_EQ(reference().losses.size(), 40u);
  EXPECT_EQ(result.number("steps_lost"), 0) << result.output;
  EXPECT_EQ(sandbox.leftovers(), std::vector<std::string>());
}

std::string fault(const std::string& what, int step, const std::string& phase) {
  return what + ",step=" + std::to_string(step) + ",phase=" + phase;
}

const std::vector<std::string> kPhases = {"data", "forward_backward", "reduction", "update",
                                          "snapshot"};

TEST(Faults, AnyNumberOfWorkersGivesTheSameBitsAcrossEpochBorders) {
  for (const char* workers : {"2", "3", "4", "5", "12"}) {
    SCOPED_TRACE(workers);
    Sandbox sandbox(kQuick);
    expect_same(sandbox,
                sandbox.run({"--set", std::string("resources.workers_per_node=") + workers}));
  }
}

TEST(Faults, AnyRankKilledInAnyPhase) {
  Sandbox sandbox(kQuick);
  std::vector<std::string> arguments = {"--set", "resources.workers_per_node=4"};
  int step = 2;
  for (const std::string& phase : kPhases) {
    for (int rank = 0; rank < 4; ++rank) {
      arguments.insert(arguments.end(),
                       {"--fault", fault("kill:rank=" + std::to_string(rank), step++, phase)});
    }
  }
  const RunResult result = sandbox.run(arguments);
  expect_same(sandbox, result);
  EXPECT_EQ(result.number("attempts"), 21);
  EXPECT_EQ(result.number("failures"), 20);
}

TEST(Faults, AllRanksOrMpirunKilledInAnyPhase) {
  Sandbox sandbox(kQuick);
  std::vector<std::string> arguments;
  int step = 2;
  // Workers whose mpirun is gone may make some steps more before they are ended.
  int mpirun_step = 10;
  for (const std::string& phase : kPhases) {
    arguments.insert(arguments.end(), {"--fault", fault("kill:all", step++, phase), "--fault",
                                       fault("kill:mpirun", mpirun_step, phase)});
    mpirun_step += 6;
  }
  const RunResult result = sandbox.run(arguments);
  expect_same(sandbox, result);
  EXPECT_EQ(result.number("attempts"), 11);
}

TEST(Faults, KilledWhileEvaluatingAndFinishing) {
  Sandbox sandbox(kQuick);
  const RunResult result = sandbox.run({"--fault", "kill:rank=1,step=10,phase=evaluation",
                                        "--fault", "kill:rank=0,step=20,phase=evaluation",
                                        "--fault", "kill:rank=1,step=40,phase=finishing", "--fault",
                                        "kill:rank=0,step=40,phase=finishing"});
  expect_same(sandbox, result);
}

// Steps are made long enough for the service to come back while the same gang trains on.
TEST(Faults, TheServiceKilledAndTrainingGoesOn) {
  Sandbox sandbox(kQuick);
  const RunResult result = sandbox.run(
      {"--fault", "kill:service,step=3", "--fault", "kill:service,step=20,phase=snapshot"});
  expect_same(sandbox, result);
  EXPECT_EQ(result.number("attempts"), 1);
}

TEST(Faults, TheSupervisorKilledThenResumed) {
  for (const std::string& phase : kPhases) {
    SCOPED_TRACE(phase);
    Sandbox sandbox(kQuick);
    const RunResult killed = sandbox.run({"--fault", fault("kill:supervisor", 8, phase)});
    EXPECT_EQ(killed.exit_code, 128 + SIGKILL);
    const RunResult result =
        sandbox.command({"surefoot", "resume", sandbox.directory().string(), "--json"});
    expect_same(sandbox, result);
  }
}

TEST(Faults, SigtermToAWorkerDrainsAndTheJobGoesOn) {
  Sandbox sandbox(kQuick);
  const RunResult result = sandbox.run({"--fault", "term:rank=1,step=7"});
  expect_same(sandbox, result);
  EXPECT_EQ(result.number("attempts"), 2);
}

TEST(Faults, CtrlCAndSigtermDrainAndRunGoesOnFromThere) {
  // A model so large that its steps are still going on when the signal comes.
  const std::vector<std::string> large = {"--set", "model.hidden=[1500, 1500]"};
  Sandbox undisturbed(kQuick);
  const RunResult expected = undisturbed.run(large);
  ASSERT_EQ(expected.exit_code, 0) << expected.output;
  for (int signal : {SIGINT, SIGTERM}) {
    SCOPED_TRACE(signal);
    Sandbox sandbox(kQuick);
    const ProcessId running = sandbox.start(sandbox.run_command(large));
    ASSERT_TRUE(eventually([&] { return sandbox.newest_step() >= 1; }, 60s));
    (void)send_signal(running, signal);
    const RunResult interrupted = sandbox.wait(running);
    EXPECT_EQ(interrupted.exit_code, 75) << interrupted.output;
    const RunResult result = sandbox.run(large);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(result.text("weights_sha256"), expected.text("weights_sha256"));
    EXPECT_EQ(result.text("state_sha256"), expected.text("state_sha256"));
    EXPECT_EQ(sandbox.losses(), undisturbed.losses());
    EXPECT_EQ(sandbox.leftovers(), std::vector<std::string>());
  }
}

TEST(Faults, AStoppedWorkerIsFoundAndTheJobGoesOn) {
  Sandbox sandbox(kQuick);
  const RunResult result = sandbox.run(
      {"--set", "recovery.hang_timeout=3s", "--fault", "stop:rank=1,step=9,phase=reduction"});
  expect_same(sandbox, result);
  EXPECT_EQ(result.number("attempts"), 2);
}

TEST(Faults, TwentySeededRandomFaultsInOneRun) {
  for (const char* seed : {"1", "2"}) {
    SCOPED_TRACE(seed);
    Sandbox sandbox(kQuick);
    const RunResult result = sandbox.run({"--set", "resources.workers_per_node=3", "--fault",
                                          std::string("random:20,seed=") + seed});
    expect_same(sandbox, result);
    EXPECT_GE(result.number("attempts"), 10);
  }
}

TEST(Faults, AFaultThatComesBackAtTheSameStepStopsTheJob) {
  Sandbox sandbox(kQuick);
  const RunResult result = sandbox.run({"--faults-count", "--set", "recovery.max_failures=2",
                                        "--fault", "kill:rank=0,step=5", "--fault",
                                        "kill:rank=0,step=5", "--fault", "kill:rank=0,step=5"});
  EXPECT_EQ(result.exit_code, 93) << result.output;
}

// `mpirun`, then these arguments, each "WORKER" among them as a worker of the sandbox' job.
std::vector<std::string> plain_mpirun(const Sandbox& sandbox,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {"mpirun",
                                   "--allow-run-as-root",
                                   "--oversubscribe",
                                   "--bind-to",
                                   "none",
                                   "--mca",
                                   "mpi_yield_when_idle",
                                   "1"};
  for (const std::string& argument : arguments) {
    if (argument != "WORKER") {
      argv.push_back(argument);
      continue;
    }
    argv.insert(argv.end(), {program("surefoot-worker").string(), sandbox.job_file().string(),
                             "--dir", sandbox.directory().string()});
  }
  return argv;
}

TEST(PlainMpirun, IsKilledAndResumesByItselfWhenRunAgain) {
  Sandbox sandbox(kQuick);
  const std::vector<std::string> argv = plain_mpirun(sandbox, {"-np", "3", "WORKER"});
  const RunResult killed = sandbox.command(argv, {"SUREFOOT_FAULTS=kill:rank=2,step=13"});
  EXPECT_NE(killed.exit_code, 0);
  const RunResult done = sandbox.command(argv);
  ASSERT_EQ(done.exit_code, 0) << done.output;
  EXPECT_EQ(sha256_of_file(sandbox.directory() / "final" / "model.safetensors").value(),
            reference().result.text("weights_sha256"));
  EXPECT_NE(done.output.find(reference().result.text("state_sha256")), std::string::npos)
      << done.output;
  EXPECT_TRUE(eventually([&] { return sandbox.leftovers().empty(); }, 10s))
      << testing::PrintToString(sandbox.leftovers());
  EXPECT_EQ(sandbox.losses(), reference().losses);
}

// The BLAS of the second takes the kernels of another processor.
TEST(PlainMpirun, RanksThatGiveOtherBitsAreRefusedBeforeTheFirstStep) {
  Sandbox sandbox(kQuick);
  const RunResult refused =
      sandbox.command(plain_mpirun(sandbox, {"-np", "1", "WORKER", ":", "-np", "1", "-x",
                                             "OPENBLAS_CORETYPE=Prescott", "WORKER"}));
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.output.find("rank 1 has other data or another processor than rank 0"),
            std::string::npos)
      << refused.output;
  EXPECT_EQ(sandbox.newest_step(), 0);
}

}  // namespace
}  // namespace surefoot::e2e
