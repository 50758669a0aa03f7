#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>

#include "common/test_paths.h"
#include "configs/job_for_test.h"

namespace surefoot {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::ElementsAre;
using testing::IsEmpty;

class JobFile : public testing::Test {
 protected:
  config::Job load(const std::string& text, const std::vector<std::string>& sets = {}) {
    LoadOutcome outcome = folder_.load(text, sets);
    EXPECT_THAT(outcome.faults, IsEmpty()) << texts(outcome.faults);
    return outcome.job.job;
  }
  JobFolder folder_;
};

// A right job with `section` in place of the line that begins with its key.
std::string with(const std::string& section) {
  const std::string key = section.substr(0, section.find(':') + 1);
  std::string out;
  bool is_replaced = false;
  std::istringstream lines(kRightJob);
  for (std::string line; std::getline(lines, line);) {
    const bool is_it = line.starts_with(key);
    is_replaced = is_replaced || is_it;
    out += (is_it ? section : line) + "\n";
  }
  return is_replaced ? out : out + section + "\n";
}

TEST_F(JobFile, FillsEveryKeyThatAppliesWithItsDefault) {
  const config::Job job = load(kRightJob);
  EXPECT_EQ(job.model().n_layer(), 2);
  EXPECT_EQ(job.model().n_embd(), 128);
  EXPECT_EQ(job.model().vocab_size(), 256);
  EXPECT_EQ(job.data().holdout(), 0.05);
  EXPECT_THAT(job.train().optimizer().betas(), ElementsAre(0.9, 0.999));
  EXPECT_EQ(job.train().optimizer().eps(), 1e-8);
  EXPECT_EQ(job.train().seed(), 1);
  EXPECT_EQ(job.train().bucket_size(), 2 << 20);
  EXPECT_EQ(job.resources().num_nodes().min(), 1);
  EXPECT_EQ(job.resources().workers_per_node().max(), 2);
  EXPECT_EQ(job.checkpoint().to(), "checkpoints");
  EXPECT_EQ(job.checkpoint().interval(), 300'000);
  EXPECT_EQ(job.recovery().max_failures(), 3);
  EXPECT_EQ(job.recovery().max_preemptions(), -1);
}

TEST_F(JobFile, TakesFromOneToAllOfTheHostsWhereNoNumberIsGiven) {
  const auto most = [&](const std::string& resources) {
    const config::Job job = load(with("resources: " + resources));
    EXPECT_LE(job.resources().num_nodes().min(), 2);
    return job.resources().num_nodes().max();
  };
  EXPECT_EQ(most("{workers_per_node: 2}"), 1);
  EXPECT_EQ(most("{hosts: [a, \"b:2\", u@c, a]}"), 3);
  EXPECT_EQ(most("{hosts: [a, b, c], num_nodes: 2}"), 2);
  EXPECT_EQ(most("{hostfile: hosts.txt}"), 10'000);
  EXPECT_EQ(most("{discovery_command: ./hosts.sh}"), 10'000);
}

TEST_F(JobFile, LeavesKeysOfOtherKindsAtZero) {
  const config::Job job = load(kRightJob);
  EXPECT_THAT(job.model().hidden(), IsEmpty());
  EXPECT_EQ(job.model().width(), 0);
  EXPECT_EQ(job.train().optimizer().momentum(), 0);
}

TEST_F(JobFile, ReadsNumbersAsTheyAreWritten) {
  for (const auto& [text, value] : std::vector<std::pair<std::string, double>>{{"1e-3", 1e-3},
                                                                               {"1E-3", 1e-3},
                                                                               {"0.001", 1e-3},
                                                                               {".5", 0.5},
                                                                               {"1.", 1},
                                                                               {"+2", 2},
                                                                               {"1e+2", 100},
                                                                               {"3", 3}}) {
    EXPECT_EQ(load(kRightJob, {"train.optimizer.lr=" + text, "train.schedule.min_lr=0"})
                  .train()
                  .optimizer()
                  .lr(),
              value)
        << text;
  }
  EXPECT_EQ(load(kRightJob, {"train.max_steps=1e6"}).train().max_steps(), 1'000'000);
  EXPECT_EQ(load(kRightJob, {"train.seed=9000000000000000"}).train().seed(), 9'000'000'000'000'000);
}

TEST_F(JobFile, ReadsDurationsSizesAndUnlimited) {
  for (const auto& [text, value] :
       std::vector<std::pair<std::string, std::int64_t>>{{"500ms", 500},
                                                         {"30s", 30'000},
                                                         {"5m", 300'000},
                                                         {"1h", 3'600'000},
                                                         {"2d", 172'800'000},
                                                         {"1.5h", 5'400'000},
                                                         {"1.1s", 1100}}) {
    EXPECT_EQ(load(kRightJob, {"checkpoint.interval=" + text}).checkpoint().interval(), value)
        << text;
  }
  for (const auto& [text, value] :
       std::vector<std::pair<std::string, std::int64_t>>{{"512KiB", 512 << 10},
                                                         {"64MiB", 64 << 20},
                                                         {"1GiB", 1 << 30},
                                                         {"16384B", 16384},
                                                         {"0.5MiB", 512 << 10}}) {
    EXPECT_EQ(load(kRightJob, {"train.bucket_size=" + text}).train().bucket_size(), value) << text;
  }
  EXPECT_EQ(load(kRightJob, {"recovery.max_failures=unlimited"}).recovery().max_failures(), -1);
}

TEST_F(JobFile, ReadsRangesInBlockAndFlowStyle) {
  for (const char* section :
       {"resources: {workers_per_node: 1:4}", "resources:\n  workers_per_node: 1:4",
        "resources: {workers_per_node: \"1:4\"}"}) {
    const config::Range range = load(with(section)).resources().workers_per_node();
    EXPECT_EQ(range.min(), 1) << section;
    EXPECT_EQ(range.max(), 4) << section;
  }
}

TEST_F(JobFile, TakesASectionWithoutKeysAsAbsent) {
  EXPECT_EQ(
      load(std::string(kRightJob) + "recovery:\n  # max_failures: 5\n").recovery().max_failures(),
      3);
}

TEST_F(JobFile, TakesAByteOrderMarkAndWindowsLines) {
  std::string text = "\xEF\xBB\xBF";
  for (const char c : std::string(kRightJob)) text += c == '\n' ? "\r\n" : std::string(1, c);
  EXPECT_EQ(load(text).name(), "right");
}

TEST_F(JobFile, MakesPathsAbsoluteFromItsFolder) {
  const config::Job job = load(with("data: {kind: text, path: ./sub/../data.txt, eval_path: " +
                                    (folder_.path() / "tokens.bin").string() + "}"));
  EXPECT_EQ(job.data().path(), (folder_.path() / "data.txt").string());
  EXPECT_EQ(job.data().eval_path(), (folder_.path() / "tokens.bin").string());
  EXPECT_EQ(job.checkpoint().to(), "checkpoints");
}

TEST_F(JobFile, LooksForNoFilesWhenAskedNotTo) {
  const std::filesystem::path file =
      folder_.write("job.yaml", with("data: {kind: text, path: missing.txt}"));
  EXPECT_THAT(load_job(file, {.check_files = false}).faults, IsEmpty());
  EXPECT_EQ(load_job(file, {}).faults.size(), 1U);
}

TEST_F(JobFile, SetsWinOverTheFileAndTheLastOneWins) {
  const config::Job job = load(kRightJob, {"train.max_steps=100", "train.max_steps=200",
                                           "recovery.hang_timeout=30s", "model.dropout=0.5"});
  EXPECT_EQ(job.train().max_steps(), 200);
  EXPECT_EQ(job.recovery().hang_timeout(), 30'000);
  EXPECT_EQ(job.model().dropout(), 0.5);
  EXPECT_EQ(job.model().n_layer(), 2);
}

TEST_F(JobFile, SetsTakeListsAndWholeSections) {
  const config::Job job = load(kRightJob, {"train.optimizer.betas=[0.8, 0.9]"});
  EXPECT_THAT(job.train().optimizer().betas(), ElementsAre(0.8, 0.9));
  const config::Job other =
      load(kRightJob, {"train.optimizer={kind: sgd, lr: 0.1}", "train.optimizer.momentum=0.5"});
  EXPECT_EQ(other.train().optimizer().kind(), config::Optimizer::sgd);
  EXPECT_EQ(other.train().optimizer().momentum(), 0.5);
}

TEST_F(JobFile, ASetMayGiveWhatTheFileLacksOrHasWrong) {
  EXPECT_EQ(load(with("name: 'no good'"), {"name=good"}).name(), "good");
  EXPECT_EQ(load(with("model: {}"), {"model.kind=gpt"}).model().kind(), config::Model::gpt);
}

TEST_F(JobFile, ExpandsEnvironmentVariablesAndTheName) {
  ::setenv("SUREFOOT_TEST_DATA", "data", 1);
  const config::Job job = load(with("data: {kind: text, path: \"${SUREFOOT_TEST_DATA}.txt\"}") +
                               "checkpoint: {to: \"$SUREFOOT_TEST_DATA/{name}/$$x/{other}\"}\n");
  EXPECT_EQ(job.data().path(), (folder_.path() / "data.txt").string());
  EXPECT_EQ(job.checkpoint().to(), "data/right/$x/{other}");
}

TEST_F(JobFile, ExpandsAVariableInTheNameItself) {
  ::setenv("SUREFOOT_TEST_USER", "ada", 1);
  const config::Job job =
      load(with("name: run-$SUREFOOT_TEST_USER"), {"checkpoint.to=/scratch/{name}"});
  EXPECT_EQ(job.name(), "run-ada");
  EXPECT_EQ(job.checkpoint().to(), "/scratch/run-ada");
}

TEST_F(JobFile, ResolvesAnchorsAndMergeKeysAndOwnKeysWin) {
  const config::Job job = load(R"(x-small: &small {kind: gpt, n_layer: 1, n_head: 2}
x-wide: &wide {n_head: 8, n_embd: 256}
name: merged
model: {<<: [*small, *wide], n_layer: 3}
data: {kind: text, path: &path data.txt, eval_path: *path}
train:
  <<: &sizes {max_steps: 10, global_batch_size: 8, micro_batch_size: 2}
  max_steps: 20
  optimizer: {kind: sgd, lr: 0.1}
)");
  EXPECT_EQ(job.model().n_layer(), 3);   // own
  EXPECT_EQ(job.model().n_head(), 2);    // the first of the list
  EXPECT_EQ(job.model().n_embd(), 256);  // the second
  EXPECT_EQ(job.data().eval_path(), job.data().path());
  EXPECT_EQ(job.train().max_steps(), 20);
  EXPECT_EQ(job.train().global_batch_size(), 8);
}

TEST_F(JobFile, ReadsFlowAndBlockStyleAlike) {
  const config::Job block = load(R"(---
name: "right"
model:
  kind: gpt
  n_layer: 2
data:
  kind: text
  path: data.txt
train:
  max_steps: 300
  global_batch_size: 32
  micro_batch_size: 4
  optimizer:
    kind: adamw
    lr: 1e-3
    betas:
    - 0.9
    - 0.999
  schedule:
    kind: cosine
    warmup_steps: 50
    min_lr: 1e-4
resources:
  workers_per_node: 2
...
)");
  EXPECT_TRUE(MessageDifferencer::Equals(block, load(kRightJob)));
}

TEST_F(JobFile, IsEqualAfterBeingWrittenAndReadBackFromAnotherFolder) {
  ::setenv("SUREFOOT_TEST_ODD", R"(a $HOME "b" \c 'd' #e: {f} - é)", 1);
  const std::vector<std::pair<std::string, std::vector<std::string>>> jobs = {
      {kRightJob, {}},
      {kRightJob,
       {"checkpoint.to=$SUREFOOT_TEST_ODD", "recovery.max_failures=unlimited",
        "recovery.backoff=0s"}},
      {kRightJob, {"checkpoint.to='null'"}},
      {kRightJob, {"checkpoint.to='12'", "name='1e3'", "train.seed=0"}},
      {kRightJob,
       {"data={kind: tokens, path: tokens.bin, eval_path: tokens.bin}", "model.vocab_size=50257",
        "resources.workers_per_node=2:8"}},
      {kRightJob,
       {"model={kind: mlp, hidden: []}", "data={kind: idx, images: images.gz, labels: labels.gz}"}},
      {kRightJob,
       {"model={kind: mlp, hidden: [3, 4, 5], dropout: 0.1}",
        "data={kind: synthetic, shape: [2, 3], samples: 7}"}},
      {kRightJob,
       {"model={kind: resnet}", "data={kind: synthetic, shape: [3, 32, 32]}",
        "train.optimizer={kind: sgd, lr: 0.1234567890123}"}},
      {kRightJob,
       {"model={kind: torchscript, path: module.pt}", "train.schedule={}",
        "train.optimizer.eps=1e-30", "checkpoint.arena=/dev/shm"}},
      {kRightJob,
       {"train.bucket_size=16385B", "checkpoint.interval=123456ms", "train.grad_clip=1e9",
        "train.on_nan=rollback"}},
  };
  const JobFolder other;
  for (const auto& [text, sets] : jobs) {
    const config::Job job = load(text, sets);
    const std::string yaml = to_yaml(job);
    const LoadOutcome again = other.load(yaml);
    EXPECT_THAT(again.faults, IsEmpty()) << yaml << texts(again.faults);
    EXPECT_TRUE(MessageDifferencer::Equals(job, again.job.job)) << yaml;
    EXPECT_EQ(to_yaml(again.job.job), yaml);
  }
}

TEST_F(JobFile, OfEveryExampleIsRight) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(source_folder() / "examples")) {
    if (entry.path().extension() != ".yaml") continue;
    ++count;
    const LoadOutcome outcome = load_job(entry.path(), {.check_files = false});
    EXPECT_THAT(outcome.faults, IsEmpty()) << texts(outcome.faults);
  }
  EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace surefoot
