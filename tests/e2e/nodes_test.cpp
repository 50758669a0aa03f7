// A job on several machines: plain mpirun over ssh between hosts of a test cluster, which share a
// folder for job directory and store, and nothing else. The bits are those of one worker alone,
// whatever was lost in between.
//
// Also a program that hosts run: `nodes_test --flip FOLDER` flips a bit in every snapshot there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <set>

#include "checkpoint/arena.h"
#include "common/file.h"
#include "common/test_paths.h"
#include "tests/cluster/cluster.h"
#include "tests/e2e/sandbox.h"

namespace surefoot::e2e {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

// Four chunks of state, so that nodes have parts; eighteen micro-batches for up to six workers.
const std::string kJob = R"(
name: nodes
model: {kind: mlp, hidden: [1000, 1000], dropout: 0.1}
data: {kind: synthetic, samples: 100, shape: [16], classes: 4}
train:
  max_steps: 24
  global_batch_size: 36
  micro_batch_size: 2
  optimizer: {kind: adamw, lr: 1e-3, weight_decay: 0.1}
  grad_clip: 1.0
  seed: 3
  eval_every: 8
checkpoint: {interval: 300ms, keep: 2}
recovery: {hang_timeout: 60s}
)";
constexpr Duration kPatience = std::chrono::minutes(2);

struct Gang {
  std::vector<int> hosts;
  int workers_per_host = 1;
  std::string faults;
};

class Nodes : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cluster::cluster_unavailable(); !why.empty()) GTEST_SKIP() << why;
    auto made = cluster::Cluster::start({3, {sandbox_.root().string(), source_folder().string()}});
    ASSERT_TRUE(made) << made.error().message;
    cluster_ = std::move(*made);
  }
  void TearDown() override {
    if (!HasFailure() || !cluster_) return;
    for (const fs::path& log : {sandbox_.directory() / "logs" / "node.log"}) {
      if (const auto text = read_file(log); text) std::printf("%s\n", text->c_str());
    }
  }

  // One worker, alone, on this machine.
  static const RunResult& reference() {
    static const RunResult result = [] {
      Sandbox sandbox(kJob);
      return sandbox.run({"--set", "resources.workers_per_node=1"});
    }();
    return result;
  }

  // mpirun on the first of these hosts, as a user would type it there.
  cluster::Running start(const Gang& gang) {
    std::string list;
    for (const int host : gang.hosts)
      list += fmt::format("{}host{}:{}", list.empty() ? "" : ",", host, gang.workers_per_host);
    const int workers = static_cast<int>(gang.hosts.size()) * gang.workers_per_host;
    std::vector<std::string> argv = {
        "mpirun", "--allow-run-as-root",  "--oversubscribe", "--bind-to", "none", "--host", list,
        "-np",    std::to_string(workers)};
    const std::pair<const char*, const char*> parameters[] = {
        {"mpi_yield_when_idle", "1"},
        {"odls_base_sigkill_timeout", "0"},
        {"pml", "ob1"},
        {"btl", "self,vader,tcp"},
        {"btl_tcp_if_include", "10.77.0.0/24"},
        {"oob_tcp_if_include", "10.77.0.0/24"}};
    for (const auto& [key, value] : parameters) argv.insert(argv.end(), {"--mca", key, value});
    argv.insert(argv.end(), {"-x", "SUREFOOT_FAULTS", program("surefoot-worker").string(),
                             sandbox_.job_file().string(), "--dir", sandbox_.directory().string()});
    auto running = cluster_->host(gang.hosts.front())
                       .start(argv, {.environment = {"SUREFOOT_FAULTS=" + gang.faults}});
    SUREFOOT_CHECK(running.has_value());
    return std::move(*running);
  }
  cluster::CommandResult run(const Gang& gang) { return start(gang).wait(now() + kPatience); }

  // Runs until a rank stops (SIGSTOP) in the middle of `step`: the others wait for it, so the step
  // before is the newest that is finished, on all hosts.
  cluster::Running run_until_a_rank_stops(const std::vector<int>& hosts, int step) {
    cluster::Running running = start({hosts, 1, fmt::format("stop:rank=1,step={}", step)});
    EXPECT_TRUE(eventually([&] { return sandbox_.newest_step() == step - 1; }, 60s))
        << running.output();
    return running;
  }
  // As a machine that is switched off.
  void lose(int host) { ASSERT_TRUE(cluster_->host(host).kill()); }
  void flip_bits(int host) {
    const auto flipped = cluster_->host(host).run(
        {program("nodes_test").string(), "--flip", sandbox_.arena().string()});
    ASSERT_EQ(flipped.exit_code, 0) << flipped.output;
  }

  static std::string word_after(const std::string& text, const std::string& key) {
    const std::size_t at = text.rfind(key + " ");
    if (at == std::string::npos) return "";
    const std::size_t begin = at + key.size() + 1;
    return text.substr(begin, text.find_first_of(" \n", begin) - begin);
  }
  static void expect_same_bits(const cluster::CommandResult& result) {
    ASSERT_EQ(reference().exit_code, 0) << reference().output;
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(word_after(result.output, "weights_sha256"), reference().text("weights_sha256"));
    EXPECT_EQ(word_after(result.output, "state_sha256"), reference().text("state_sha256"));
  }
  static void expect_said(const cluster::CommandResult& result, const std::string& line) {
    EXPECT_NE(result.output.find(line), std::string::npos) << line << " is not in\n"
                                                           << result.output;
  }
  // Training steps in metrics.jsonl with the attempt that finished them: none twice, none missing.
  void expect_no_step_lost() {
    std::ifstream in(sandbox_.directory() / "metrics" / "metrics.jsonl");
    std::vector<std::int64_t> steps;
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_object() && json.value("kind", "") == "train" && json.value("step", 0) > 0)
        steps.push_back(json["step"].get<std::int64_t>());
    }
    std::vector<std::int64_t> each(24);
    for (std::size_t i = 0; i < each.size(); ++i) each[i] = static_cast<std::int64_t>(i) + 1;
    EXPECT_EQ(steps, each);
  }
  [[nodiscard]] std::int64_t newest_checkpoint() const {
    std::int64_t newest = 0;
    std::error_code ignored;
    for (const auto& entry :
         fs::directory_iterator(sandbox_.directory() / "checkpoints" / "nodes", ignored)) {
      if (!fs::exists(entry.path() / "manifest.json")) continue;
      newest = std::max<std::int64_t>(newest, std::atoll(entry.path().filename().c_str() + 5));
    }
    return newest;
  }
  // Programs of the job and of MPI, and what they keep in memory and in /tmp.
  [[nodiscard]] std::string left_on(int host) {
    const auto looked = cluster_->host(host).run(
        {"sh", "-c",
         "cat /proc/[0-9]*/comm 2>/dev/null | grep -E 'surefoot-n|surefoot-w|orted|sshd';"
         "ls -d /dev/shm/* /tmp/ompi* 2>/dev/null; true"});
    return looked.exit_code == 0 ? looked.output : "cannot look: " + looked.output;
  }
  [[nodiscard]] std::string node_log() const {
    auto text = read_file(sandbox_.directory() / "logs" / "node.log");
    return text ? *text : "";
  }

  Sandbox sandbox_{kJob};
  std::unique_ptr<cluster::Cluster> cluster_;
};

TEST_F(Nodes, ThreeMachinesGiveTheBitsOfOneWorkerAloneAndNothingIsLeftOnThem) {
  expect_same_bits(run({{0, 1, 2}, 2}));
  expect_no_step_lost();
  // Services that are on their own linger for some seconds.
  for (int host = 0; host < 3; ++host)
    EXPECT_TRUE(eventually([&] { return left_on(host).empty(); }, 30s)) << left_on(host);
}

TEST_F(Nodes, AfterAMachineIsLostTheOthersAndAFreshOneGoOnFromTheNewestFinishedStep) {
  {
    const cluster::Running running = run_until_a_rank_stops({0, 1, 2}, 12);
    lose(2);
  }
  auto fresh = cluster_->add();
  ASSERT_TRUE(fresh) << fresh.error().message;
  // The fresh one first: it knows nothing of what has been.
  const auto result = run({{3, 0, 1}, 1});
  expect_said(result, "restore: step 11 of attempt 1 in the memory of node 1");
  expect_said(result, "1 nodes filled from the memory of node 1");
  expect_same_bits(result);
}

TEST_F(Nodes, AfterAllMachinesHaveRebootedEachReadsAPartOfTheNewestCheckpoint) {
  {
    const cluster::Running running = run_until_a_rank_stops({0, 1, 2}, 12);
    ASSERT_TRUE(eventually([&] { return newest_checkpoint() > 0; }, 60s));
    for (int host = 0; host < 3; ++host) lose(host);
  }
  const std::int64_t step = newest_checkpoint();
  for (int host = 0; host < 3; ++host) ASSERT_TRUE(cluster_->host(host).reboot());
  const auto result = run({{0, 1, 2}, 1});
  expect_said(result, fmt::format("restore: step {} of attempt 1 in the store", step));
  for (int part = 0; part < 3; ++part) {
    const std::string line = fmt::format("part {} of 3 of step {}", part, step);
    EXPECT_NE(node_log().find(line), std::string::npos) << line;
  }
  expect_same_bits(result);
}

TEST_F(Nodes, AFlippedBitOnOneMachineIsReplacedFromAnother) {
  { const cluster::Running running = run_until_a_rank_stops({0, 1, 2}, 12); }
  flip_bits(0);
  const auto result = run({{0, 1, 2}, 1});
  expect_said(result, "restore: step 11 of attempt 1 in the memory of node 0");
  expect_said(result, "1 nodes filled from the memory of node 1");
  expect_same_bits(result);
  expect_no_step_lost();
}

TEST_F(Nodes, WhereTheOnlyMemoryIsBadTheStoreServesInTheSameAttempt) {
  {
    const cluster::Running running = run_until_a_rank_stops({0, 1, 2}, 12);
    ASSERT_TRUE(eventually([&] { return newest_checkpoint() > 0; }, 60s));
    lose(1);
    lose(2);
  }
  flip_bits(0);
  const std::int64_t step = newest_checkpoint();
  for (int host = 1; host < 3; ++host) ASSERT_TRUE(cluster_->host(host).reboot());
  const auto result = run({{0, 1, 2}, 1});
  expect_said(result, "refused step 11 of attempt 1 in the memory of node 0");
  expect_said(result, fmt::format("restore: step {} of attempt 1 in the store", step));
  EXPECT_EQ(result.output.find("attempt 3"), std::string::npos) << result.output;
  expect_same_bits(result);
}

TEST_F(Nodes, AJobDirectoryThatIsNotSharedIsRefusedByName) {
  cluster_ = nullptr;
  auto made = cluster::Cluster::start({2, {source_folder().string()}});
  ASSERT_TRUE(made) << made.error().message;
  cluster_ = std::move(*made);
  for (int host = 0; host < 2; ++host) {
    const std::string write = fmt::format("mkdir -p {}; printf '%s' \"$JOB\" > {}",
                                          sandbox_.root().string(), sandbox_.job_file().string());
    const auto written =
        cluster_->host(host).run({"sh", "-c", write}, {.environment = {"JOB=" + kJob}});
    ASSERT_EQ(written.exit_code, 0) << written.output;
  }
  const auto result = run({{0, 1}, 1});
  EXPECT_NE(result.exit_code, 0);
  expect_said(result, "is not shared between host0 (rank 0) and host1 (rank 1)");
}

int flip(const std::string& folder) {
  auto arena = Arena::open(folder);
  if (!arena) return 1;
  int flipped = 0;
  for (int slot = 0; slot < kSlots; ++slot) {
    if ((*arena)->slot(slot).state != SlotState::kReady) continue;
    (*arena)->bytes(slot)[(*arena)->bytes(slot).size() / 2] ^= std::byte{4};
    ++flipped;
  }
  return flipped > 0 ? 0 : 2;
}

}  // namespace
}  // namespace surefoot::e2e

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--flip") return surefoot::e2e::flip(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
