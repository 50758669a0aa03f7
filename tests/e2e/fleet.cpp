#include "tests/e2e/fleet.h"

#include <cstdio>
#include <fstream>

#include "common/file.h"
#include "common/test_paths.h"

namespace surefoot::e2e {
namespace {

using namespace std::chrono_literals;

// Four chunks of state, so that machines have parts; 24 micro-batches for up to eight workers.
const std::string kJob = R"(
name: fleet
model: {kind: mlp, hidden: [1000, 1000], dropout: 0.1}
data: {kind: synthetic, samples: 100, shape: [16], classes: 4}
train:
  max_steps: 60
  global_batch_size: 48
  micro_batch_size: 2
  optimizer: {kind: adamw, lr: 1e-3, weight_decay: 0.1}
  grad_clip: 1.0
  seed: 3
  eval_every: 25
checkpoint: {interval: 500ms, keep: 2}
recovery: {hang_timeout: 60s, heartbeat_timeout: 3s, grow_after: 1s, node_backoff: 0s}
)";

RunResult result_of(const cluster::CommandResult& command) {
  RunResult result;
  result.exit_code = command.exit_code;
  result.output = command.output;
  result.seconds = command.seconds;
  std::istringstream lines(command.output);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) result.json = json;
  }
  return result;
}

}  // namespace

void Fleet::make(const std::vector<std::string>& shared) {
  if (const std::string why = cluster::cluster_unavailable(); !why.empty()) GTEST_SKIP() << why;
  sandbox_ = std::make_unique<Sandbox>(kJob);
  std::vector<std::string> folders = shared;
  for (std::string& folder : folders) {
    folder = (sandbox_->root() / folder).string();
    std::filesystem::create_directories(folder);
  }
  if (folders.empty()) folders.push_back(sandbox_->root().string());
  folders.push_back(source_folder().string());
  auto made = cluster::Cluster::start({kNodes + 1, folders});
  ASSERT_TRUE(made) << made.error().message;
  cluster_ = std::move(*made);
  for (int number = 0; number < kNodes; ++number) ASSERT_TRUE(host(number).impair(pace_, 0));
}

void Fleet::TearDown() {
  if (!HasFailure() || !cluster_) return;
  if (job_) std::printf("---- surefoot run\n%s\n", job_->output().c_str());
  for (const char* log : {"supervisor.log", "node.log"}) {
    if (const auto text = read_file((sandbox_->directory() / "logs" / log).string()); text)
      std::printf("---- %s\n%s\n", log, text->c_str());
  }
}

const RunResult& Fleet::reference(std::int64_t steps, const std::string& model) {
  static std::map<std::int64_t, RunResult> results;
  const auto [found, fresh] = results.try_emplace(steps);
  if (fresh) {
    Sandbox sandbox(kJob);
    std::vector<std::string> arguments = {"--set", fmt::format("train.max_steps={}", steps)};
    if (!model.empty()) arguments.insert(arguments.end(), {"--set", "model=" + model});
    found->second = sandbox.run(arguments);
  }
  return found->second;
}

void Fleet::start_job(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument.starts_with("train.max_steps=")) steps_ = std::atoll(argument.c_str() + 16);
  }
  std::vector<std::string> argv = {program("surefoot").string(),   "run",
                                   sandbox_->job_file().string(),  "--dir",
                                   sandbox_->directory().string(), "--json"};
  std::string hosts;
  for (int host = 0; host < kNodes; ++host)
    hosts += fmt::format("{}host{}", hosts.empty() ? "" : ", ", host);
  argv.insert(argv.end(), {"--set", "resources.hosts=[" + hosts + "]"});
  if (!model_.empty()) argv.insert(argv.end(), {"--set", "model=" + model_});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  auto running = host(front_).start(argv, {});
  ASSERT_TRUE(running) << running.error().message;
  job_.emplace(std::move(*running));
}

void Fleet::resume_job() {
  auto running = host(front_).start(
      {program("surefoot").string(), "resume", sandbox_->directory().string(), "--json"}, {});
  ASSERT_TRUE(running) << running.error().message;
  job_.emplace(std::move(*running));
}

const RunResult& Fleet::finish(Duration patience) {
  return result_ = result_of(job_->wait(now() + patience));
}

void Fleet::expect_done_with_same_bits(Duration patience) {
  finish(patience);
  const RunResult& reference = Fleet::reference(steps_, model_);
  ASSERT_EQ(reference.exit_code, 0) << reference.output;
  ASSERT_EQ(result_.exit_code, 0) << result_.output;
  EXPECT_EQ(result_.text("weights_sha256"), reference.text("weights_sha256"));
  EXPECT_EQ(result_.text("state_sha256"), reference.text("state_sha256"));
}

void Fleet::reach_step(std::int64_t step, Duration patience) {
  const auto limit = std::chrono::duration_cast<std::chrono::seconds>(patience);
  ASSERT_TRUE(eventually([&] { return sandbox_->newest_step() >= step; }, limit))
      << "step " << step << " was not reached\n"
      << output();
}

void Fleet::await_line(const std::string& line, Duration patience) {
  const auto limit = std::chrono::duration_cast<std::chrono::seconds>(patience);
  ASSERT_TRUE(eventually([&] { return output().find(line) != std::string::npos; }, limit))
      << line << " is not in\n"
      << output();
}

void Fleet::await_growth() {
  const std::string line = "starting 4 workers on 4 machines";
  ASSERT_TRUE(eventually(
      [&] {
        const std::string all = output();
        return all.find(line) != all.rfind(line);
      },
      60s))
      << "only once: " << line << "\n"
      << output();
}

void Fleet::expect_said(const std::string& line) {
  EXPECT_NE(output().find(line), std::string::npos) << line << " is not in\n" << output();
}

RunResult Fleet::verb(const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {program("surefoot").string()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return result_of(host(front_).run(argv));
}

void Fleet::expect_no_step_lost() {
  std::ifstream in(sandbox_->directory() / "metrics" / "metrics.jsonl");
  std::vector<std::int64_t> steps;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.value("kind", "") == "train" && json.value("step", 0) > 0)
      steps.push_back(json["step"].get<std::int64_t>());
  }
  std::vector<std::int64_t> each(static_cast<std::size_t>(steps_));
  for (std::size_t i = 0; i < each.size(); ++i) each[i] = static_cast<std::int64_t>(i) + 1;
  EXPECT_EQ(steps, each);
}

std::string Fleet::left_on(int number) {
  const auto looked = host(number).run(
      {"sh", "-c",
       "cat /proc/[0-9]*/comm 2>/dev/null | grep -E "
       "'^surefoot(-node|-worker|-rsh)?$|orted|mpirun|^ssh$';"
       "ls -d /dev/shm/* /tmp/ompi* 2>/dev/null;"
       // Ports that somebody listens on, but sshd's and a test's own server's.
       "awk '$4 == \"0A\" && $2 !~ /:(0016|0050)$/ {print \"port\", $2}' /proc/net/tcp; true"});
  return looked.exit_code == 0 ? looked.output : "cannot look: " + looked.output;
}

void Fleet::expect_nothing_left(const std::set<int>& hosts) {
  for (const int host : hosts)
    EXPECT_TRUE(eventually([&] { return left_on(host).empty(); }, 30s)) << "host" << host << ":\n"
                                                                        << left_on(host);
}

}  // namespace surefoot::e2e
