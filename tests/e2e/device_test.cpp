// Whole jobs on the double of a device (worker/testing/host_device.h): the state in the device's
// memory, the snapshot behind the step, the device's reducer; the same weights and the same state
// as on the processor, for any number of workers, killed or not.
#include <gtest/gtest.h>

#include "tests/e2e/jobs.h"
#include "tests/e2e/sandbox.h"

namespace surefoot::e2e {
namespace {

// The programs of the project with a worker that runs every job on the double.
std::string on_double(const std::string& name) {
  return (program(name).parent_path().parent_path() / "double" / "bin" / name).string();
}

struct Job {
  const char* name;
  const std::string* text;
};
std::ostream& operator<<(std::ostream& out, const Job& job) {
  return out << job.name;
}

class OnADevice : public testing::TestWithParam<Job> {
 protected:
  static RunResult run(Sandbox& sandbox, std::vector<std::string> arguments,
                       const std::vector<std::string>& environment = {}) {
    if (GetParam().text == &kYourOwnModel) {
      const auto module = (sandbox.root() / "module.pt").string();
      EXPECT_EQ(sandbox.command({"surefoot-make-module", module}).exit_code, 0);
    }
    std::vector<std::string> argv = sandbox.run_command(std::move(arguments));
    argv[0] = on_double("surefoot");
    return sandbox.command(argv, environment);
  }
  static void expect_same(const Sandbox& sandbox, const RunResult& result) {
    static std::map<std::string, RunResult> known;
    auto [reference, is_new] = known.try_emplace(GetParam().name);
    if (is_new) {
      Sandbox on_processor(*GetParam().text);
      if (GetParam().text == &kYourOwnModel) {
        const auto module = (on_processor.root() / "module.pt").string();
        EXPECT_EQ(on_processor.command({"surefoot-make-module", module}).exit_code, 0);
      }
      reference->second = on_processor.run({"--set", "resources.workers_per_node=1"});
    }
    ASSERT_EQ(reference->second.exit_code, 0) << reference->second.output;
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(result.text("weights_sha256").size(), 64U);
    EXPECT_EQ(result.text("weights_sha256"), reference->second.text("weights_sha256"));
    EXPECT_EQ(result.text("state_sha256"), reference->second.text("state_sha256"));
    EXPECT_EQ(sandbox.leftovers(), std::vector<std::string>());
    // It was the double that ran.
    EXPECT_NE(Sandbox::everything_in(sandbox.directory() / "logs").find("double of a device"),
              std::string::npos);
  }
};

TEST_P(OnADevice, TheBitsAreThoseOfTheProcessorForOneTwoThreeAndFourWorkers) {
  for (const char* workers : {"1", "2", "3", "4"}) {
    SCOPED_TRACE(workers);
    Sandbox sandbox(*GetParam().text);
    expect_same(sandbox,
                run(sandbox, {"--set", std::string("resources.workers_per_node=") + workers}));
  }
}

TEST_P(OnADevice, AWorkerTheServiceAndAllAreKilledOnTheWay) {
  Sandbox sandbox(*GetParam().text);
  const RunResult result = run(
      sandbox, {"--set", "resources.workers_per_node=3", "--fault",
                "kill:rank=1,step=5,phase=reduction", "--fault", "kill:service,step=9", "--fault",
                "kill:all,step=12,phase=update", "--fault", "kill:rank=2,step=15,phase=snapshot",
                "--fault", "kill:rank=0,step=17,phase=forward_backward"});
  expect_same(sandbox, result);
  EXPECT_EQ(result.number("attempts"), 5);
  EXPECT_EQ(result.number("steps_lost"), 0);
}

// Its workers' own word for that, exit code 64, is for a person who has just asked for the job.
TEST_P(OnADevice, AGpuThatIsAwayForAnAttemptIsAFailureAndNotTheEndOfTheJob) {
  Sandbox sandbox(*GetParam().text);
  const RunResult result =
      run(sandbox, {"--set", "resources.workers_per_node=2", "--fault", "kill:rank=1,step=5"},
          {"SUREFOOT_DOUBLE_AWAY=2"});
  expect_same(sandbox, result);
  EXPECT_EQ(result.number("attempts"), 3);
  EXPECT_EQ(result.number("steps_lost"), 0);
  EXPECT_NE(result.output.find("the double is not to be had"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Jobs, OnADevice,
                         testing::Values(Job{"Quick", &kQuick}, Job{"FashionMnist", &kFashionMnist},
                                         Job{"YourOwnModel", &kYourOwnModel}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace surefoot::e2e
