// Promise 1, with the examples: the same weights and the same state for any number of workers,
// pinned or not, killed or not.
#include <gtest/gtest.h>

#include "tests/e2e/jobs.h"
#include "tests/e2e/sandbox.h"

namespace surefoot::e2e {
namespace {

struct Example {
  const char* name;
  const std::string* job;
};
std::ostream& operator<<(std::ostream& out, const Example& example) {
  return out << example.name;
}

class SameBits : public testing::TestWithParam<Example> {
 protected:
  // The undisturbed run of one worker that all others are compared with.
  struct Reference {
    RunResult result;
    std::map<std::int64_t, std::string> losses;
  };
  static const Reference& reference() {
    static std::map<std::string, Reference> known;
    const Example& example = GetParam();
    auto [at, is_new] = known.try_emplace(example.name);
    if (is_new) {
      Sandbox sandbox(*example.job);
      prepare(sandbox);
      at->second.result = sandbox.run({"--set", "resources.workers_per_node=1"});
      at->second.losses = sandbox.losses();
    }
    return at->second;
  }

  static void prepare(Sandbox& sandbox) {
    if (GetParam().job != &kYourOwnModel) return;
    ASSERT_EQ(sandbox.command({"surefoot-make-module", (sandbox.root() / "module.pt").string()})
                  .exit_code,
              0);
  }

  static void expect_same(const Sandbox& sandbox, const RunResult& result) {
    ASSERT_EQ(reference().result.exit_code, 0) << reference().result.output;
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(result.text("state"), "done");
    EXPECT_EQ(result.text("weights_sha256").size(), 64u);
    EXPECT_EQ(result.text("weights_sha256"), reference().result.text("weights_sha256"));
    EXPECT_EQ(result.text("state_sha256"), reference().result.text("state_sha256"));
    EXPECT_EQ(sandbox.losses(), reference().losses);
    EXPECT_EQ(reference().losses.size(), 24u);
    EXPECT_EQ(sandbox.leftovers(), std::vector<std::string>());
  }
};

TEST_P(SameBits, ForTwoThreeAndFourWorkers) {
  for (const char* workers : {"2", "3", "4"}) {
    SCOPED_TRACE(workers);
    Sandbox sandbox(*GetParam().job);
    prepare(sandbox);
    expect_same(sandbox,
                sandbox.run({"--set", std::string("resources.workers_per_node=") + workers}));
  }
}

TEST_P(SameBits, WhenPinnedToOneCore) {
  Sandbox sandbox(*GetParam().job);
  prepare(sandbox);
  std::vector<std::string> argv = sandbox.run_command({"--set", "resources.workers_per_node=2"});
  argv[0] = program("surefoot").string();
  argv.insert(argv.begin(), {"taskset", "-c", "0"});
  expect_same(sandbox, sandbox.command(argv));
}

TEST_P(SameBits, WithAWorkerTheServiceAndAllKilledOnTheWay) {
  Sandbox sandbox(*GetParam().job);
  prepare(sandbox);
  const RunResult result = sandbox.run(
      {"--set", "resources.workers_per_node=3", "--fault", "kill:rank=1,step=5,phase=reduction",
       "--fault", "kill:service,step=9", "--fault", "kill:all,step=12,phase=update", "--fault",
       "kill:rank=2,step=17,phase=forward_backward"});
  expect_same(sandbox, result);
  EXPECT_EQ(result.number("attempts"), 4);
  EXPECT_EQ(result.number("steps_lost"), 0);
}

INSTANTIATE_TEST_SUITE_P(Examples, SameBits,
                         testing::Values(Example{"DictionaryGpt", &kDictionaryGpt},
                                         Example{"FashionMnist", &kFashionMnist},
                                         Example{"YourOwnModel", &kYourOwnModel}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace surefoot::e2e
