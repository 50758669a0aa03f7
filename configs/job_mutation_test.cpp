// Job files with seeded damage: whatever the bytes, there are faults or there is a job, and a job
// can be written and read back.

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "configs/job_for_test.h"

namespace surefoot {
namespace {

constexpr const char* kSeeds[] = {
    kRightJob,
    R"(x-base: &base
  max_steps: 300   # a comment
  global_batch_size: 32
name: "merged"
model: {kind: mlp, hidden: [16, 32], dropout: 0.1}
data: {kind: synthetic, samples: 100, shape: [4, 4], classes: 3}
train:
  <<: [*base, {seed: 7}]
  micro_batch_size: 4
  optimizer: {kind: sgd, lr: 1e-3, momentum: 0.9}
  bucket_size: 64KiB
checkpoint: {to: "file:///tmp/$HOME/{name}", interval: 5m}
recovery: {max_failures: unlimited, backoff: 500ms}
)",
    "---\n? name\n: !!str right\nmodel: {\"kind\": 'gpt'}\ndata:\n  kind: >-\n    text\n  path: "
    "|-\n    data.txt\ntrain: &t {max_steps: 1, global_batch_size: 2,\n  micro_batch_size: 1, "
    "optimizer: {kind: adamw, lr: .5, betas: [0.8, 0.9]}}\nresources: {workers_per_node: "
    "1:2}\n...\n",
};

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::string operator()(std::string text) {
    const std::uint64_t count = 1 + below(2);
    for (std::uint64_t i = 0; i < count && !text.empty(); ++i) mutate(text);
    return text;
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  void mutate(std::string& text) {
    static constexpr std::string_view kWords[] = {
        "*base", "&base ", "<<: ", "[",  "]",      "{",           "}",     ": ",     "- ",
        "? ",    "\t",     "\"",   "'",  "|\n",    "%YAML 1.2\n", "---\n", "!!int ", "!<",
        "~",     "1e999",  "-",    "$X", "{name}", "\xC3\xA9",    "\xFF",  "#"};
    const std::size_t at = below(text.size());
    switch (below(6)) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        text[at] = static_cast<char>(below(256));
        break;
      case 2:
        text.insert(at, kWords[below(std::size(kWords))]);
        break;
      case 3:
        text.erase(at, 1 + below(8));
        break;
      default:
        change_line(text);
        break;
    }
  }
  // Drops a line, doubles it, or moves it somewhere else.
  void change_line(std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    if (lines.empty()) return;
    const auto at = static_cast<std::ptrdiff_t>(below(lines.size()));
    const std::string line = lines[static_cast<std::size_t>(at)];
    const std::uint64_t what = below(3);
    if (what != 1) lines.erase(lines.begin() + at);
    if (what != 0)
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(below(lines.size() + 1)), line);
    text.clear();
    for (const std::string& each : lines) text += each + "\n";
  }

  std::mt19937_64 random_;
};

TEST(JobFileWithDamage, GivesFaultsOrAJobThatCanBeWrittenAndReadBack) {
  const JobFolder folder;
  for (const char* seed : kSeeds)
    ASSERT_TRUE(folder.load(seed).faults.empty()) << texts(folder.load(seed).faults);
  int jobs = 0;
  int refused = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    const std::string text = Mutator(seed)(kSeeds[seed % std::size(kSeeds)]);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ":\n" << text);
    const LoadOutcome outcome = folder.load(text);
    if (!outcome.faults.empty()) {
      ++refused;
      for (const Fault& fault : outcome.faults) {
        EXPECT_FALSE(fault.message.empty());
        EXPECT_LE(fault.line, 100);
        EXPECT_EQ(fault.text().find('\n'), std::string::npos);
      }
      continue;
    }
    ++jobs;
    const LoadOutcome again = folder.load(to_yaml(outcome.job.job));
    ASSERT_TRUE(again.faults.empty()) << to_yaml(outcome.job.job) << texts(again.faults);
    ASSERT_TRUE(google::protobuf::util::MessageDifferencer::Equals(outcome.job.job, again.job.job));
  }
  // Else the test would show little.
  EXPECT_GT(jobs, 60);
  EXPECT_GT(refused, 1000);
}

TEST(SetWithDamage, GivesFaultsOrAJob) {
  const JobFolder folder;
  const std::string sets[] = {"train.optimizer={kind: sgd, lr: 0.1}", "model.n_head=4",
                              "train.optimizer.betas=[0.9, 0.95]"};
  int jobs = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const std::string set = Mutator(seed)(sets[seed % std::size(sets)]);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << set);
    const LoadOutcome outcome = folder.load(kRightJob, {set});
    jobs += outcome.faults.empty() ? 1 : 0;
    for (const Fault& fault : outcome.faults) EXPECT_FALSE(fault.message.empty());
  }
  EXPECT_GT(jobs, 20);
  EXPECT_LT(jobs, 900);
}

}  // namespace
}  // namespace surefoot
