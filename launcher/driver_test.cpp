// `surefoot` with the real service and the real mpirun, and a worker without MPI and libtorch
// (testing/fake_worker.cpp): what becomes of a job when any of its processes ends, what each verb
// says, and what is left behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/digest.h"
#include "common/file.h"
#include "common/process.h"
#include "common/test_paths.h"
#include "launcher/metrics/metrics.h"
#include "launcher/nvidia/nvml.h"

namespace surefoot {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kJob = R"(
name: fake
model: {kind: mlp, hidden: [4]}
data: {kind: synthetic, samples: 100, shape: [4], classes: 2}
train:
  max_steps: 30
  global_batch_size: 8
  micro_batch_size: 2
  optimizer: {kind: sgd, lr: 0.1}
resources: {workers_per_node: 2}
checkpoint: {interval: 200ms, keep: 2}
recovery: {backoff: 10ms}
)";

struct Ran {
  int code = -1;
  std::string output;
  json object;
};

std::vector<std::string> processes_naming(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    if (!std::all_of(pid.begin(), pid.end(), ::isdigit) || pid == std::to_string(::getpid()))
      continue;
    auto line = read_file(entry.path() / "cmdline");
    auto environment = read_file(entry.path() / "environ");
    if ((line && line->find(folder) != std::string::npos) ||
        (environment && environment->find(folder) != std::string::npos))
      found.push_back(pid);
  }
  return found;
}

class Run : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/surefoot-driver-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
    const fs::path bin = programs_folder();
    fs::create_directories(root_ / "bin");
    // Copies, since a program finds its sisters in the folder of its real file.
    for (const auto& [from, to] : {std::pair{"surefoot", "surefoot"},
                                   {"surefoot-node", "surefoot-node"},
                                   {"fake_worker", "surefoot-worker"}}) {
      fs::copy_file(bin / from, root_ / "bin" / to);
    }
    std::ofstream(root_ / "job.yaml") << kJob;
  }
  void TearDown() override {
    std::vector<ProcessId> left;
    for (const std::string& pid : processes_naming(root_.string())) {
      if (auto process = process_of(std::stoi(pid))) left.push_back(*process);
    }
    EXPECT_TRUE(end_processes(left, now() + 10s));
    fs::remove_all(arena());
    fs::remove_all(root_);
  }

  [[nodiscard]] fs::path directory() const { return root_ / "runs/fake"; }
  [[nodiscard]] fs::path arena() const {
    auto text = read_file(directory() / "job.json");
    return text ? fs::path("/dev/shm") / ("surefoot-" + json::parse(*text)["id"].get<std::string>())
                : root_ / "none";
  }

  ProcessId start(std::vector<std::string> words,
                  const std::vector<std::string>& environment = {}) {
    SpawnOptions options;
    options.argv = {(root_ / "bin/surefoot").string()};
    options.argv.insert(options.argv.end(), words.begin(), words.end());
    options.environment = environment;
    options.output = (root_ / "output").string();
    options.directory = root_.string();
    fs::remove(options.output);
    auto process = spawn(options);
    EXPECT_TRUE(process);
    return *process;
  }
  Ran wait(const ProcessId& process) {
    std::optional<ExitStatus> exit;
    while (!(exit = poll_exit(process))) ::usleep(2000);
    Ran ran;
    ran.code = exit->signal != 0 ? 128 + exit->signal : exit->code;
    ran.output = *read_file(root_ / "output");
    std::istringstream lines(ran.output);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("{")) ran.object = json::parse(line, nullptr, false);
    }
    return ran;
  }
  Ran surefoot(std::vector<std::string> words, const std::vector<std::string>& environment = {}) {
    return wait(start(std::move(words), environment));
  }
  Ran run(std::vector<std::string> more = {}, const std::vector<std::string>& environment = {}) {
    more.insert(more.begin(), {"run", "job.yaml", "--json"});
    return surefoot(std::move(more), environment);
  }

  // Beside the one that runs.
  Ran ask(std::vector<std::string> words) {
    SpawnOptions options;
    words.insert(words.begin(), (root_ / "bin/surefoot").string());
    options.argv = std::move(words);
    options.directory = root_.string();
    options.output = (root_ / "asked").string();
    fs::remove(options.output);
    auto asked = spawn(options);
    EXPECT_TRUE(asked);
    std::optional<ExitStatus> exit;
    while (!(exit = poll_exit(*asked))) ::usleep(1000);
    Ran ran{exit->code, *read_file(options.output), {}};
    ran.object = json::parse(ran.output, nullptr, false);
    return ran;
  }

  [[nodiscard]] std::vector<MetricRecord> metrics() const {
    auto text = read_file(directory() / "metrics/metrics.jsonl");
    return latest_metrics(text ? *text : "");
  }
  void await_step(std::int64_t step) {
    while (metrics().empty() || metrics().back().record.step < step) ::usleep(5000);
  }
  // Promise 1 and "leave nothing".
  void expect_whole(const Ran& ran) {
    ASSERT_EQ(ran.code, 0) << ran.output;
    ASSERT_TRUE(ran.object.is_object()) << ran.output;
    EXPECT_EQ(ran.object["state"], "done");
    EXPECT_EQ(ran.object["steps"], 30);
    EXPECT_EQ(ran.object["steps_lost"], 0);
    EXPECT_EQ(ran.object["weights_sha256"],
              *sha256_of_file(directory() / "final/model.safetensors"));
    EXPECT_EQ(ran.object["weights_sha256"].get<std::string>(), expected_weights()) << ran.output;
    const auto all = metrics();
    ASSERT_EQ(all.size(), 30u);
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(all[i].record.step, static_cast<std::int64_t>(i) + 1);
    EXPECT_THAT(processes_naming(root_.string()), IsEmpty());
    EXPECT_FALSE(fs::exists(arena()));
  }
  // Of the first undisturbed run of this test program, on three workers.
  static std::string& expected() {
    static std::string weights;
    return weights;
  }
  std::string expected_weights() {
    if (expected().empty()) {
      fs::rename(directory(), root_ / "disturbed");
      const Ran ran = run({"--set", "resources.workers_per_node=3"});
      EXPECT_EQ(ran.code, 0) << ran.output;
      expected() = ran.object.value("weights_sha256", "none");
      fs::remove_all(directory());
      fs::rename(root_ / "disturbed", directory());
    }
    return expected();
  }

  fs::path root_;
};

TEST_F(Run, TrainsToTheEndAndLeavesNothingButItsDirectory) {
  const Ran ran = run();
  expect_whole(ran);
  EXPECT_EQ(ran.object["attempts"], 1);
  EXPECT_EQ(ran.object["failures"], 0);
  EXPECT_GT(ran.object["goodput"], 0);
  EXPECT_TRUE(fs::exists(directory() / "job.yaml"));
  EXPECT_TRUE(fs::exists(directory() / "logs/attempt-001/mpirun.log"));
}

TEST_F(Run, GoesOnByItselfWhenRanksAllOfThemOrMpirunAreKilled) {
  const Ran ran =
      run({"--fault", "kill:rank=1,step=5", "--fault", "kill:rank=0,step=9,phase=update", "--fault",
           "kill:all,step=14", "--fault", "kill:mpirun,step=20"});
  expect_whole(ran);
  EXPECT_EQ(ran.object["attempts"], 5);
  EXPECT_EQ(ran.object["failures"], 4);
  EXPECT_EQ(ran.object["failures_injected"], 4);
  // Ranks go on for a moment when mpirun is gone, and may finish the last step.
  ASSERT_GE(ran.object["recoveries"].size(), 3u);
  const json& culprit = ran.object["attempt_list"][0]["culprit"];
  EXPECT_EQ(culprit["rank"], 1) << ran.output;
  EXPECT_EQ(culprit["step"], 5) << ran.output;
  EXPECT_EQ(culprit["reason"], "ended by SIGKILL") << ran.output;
}

TEST_F(Run, KeepsTheGangWhenTheServiceIsKilled) {
  const Ran ran = run({"--fault", "kill:service,step=6"}, {"FAKE_STEP_MS=40"});
  expect_whole(ran);
  EXPECT_EQ(ran.object["attempts"], 1) << ran.output;
}

TEST_F(Run, ForgivesAnInjectedFaultWhoseMarkOnlyTheNextServiceCanRead) {
  const Ran ran = run({"--set", "recovery.max_failures=1", "--fault", "kill:service,step=6",
                       "--fault", "kill:rank=1,step=6,phase=update"});
  expect_whole(ran);
  EXPECT_EQ(ran.object["attempts"], 2) << ran.output;
  EXPECT_EQ(ran.object["failures_injected"], 1) << ran.output;
  EXPECT_EQ(ran.object["attempt_list"][0]["culprit"]["step"], 6) << ran.output;
}

TEST_F(Run, FindsAStoppedWorkerAndTakesTraces) {
  const Ran ran = run({"--set", "recovery.hang_timeout=3s", "--fault", "stop:rank=1,step=7"});
  expect_whole(ran);
  EXPECT_GE(ran.object["attempts"], 2);  // a busy machine may hang more than once
  const auto traces = read_file(directory() / "logs/attempt-001/traces.txt");
  ASSERT_TRUE(traces);
  EXPECT_THAT(*traces, HasSubstr("rank 1, step 7"));
  EXPECT_THAT(*traces, HasSubstr("state T (stopped)"));
}

TEST_F(Run, IsResumedAfterItsSupervisorWasKilled) {
  const Ran killed = run({"--fault", "kill:supervisor,step=8"}, {"FAKE_STEP_MS=20"});
  EXPECT_EQ(killed.code, 128 + SIGKILL);
  const Ran status = surefoot({"status", "--json"});
  EXPECT_EQ(status.object["state"], "stopped") << status.output;
  const Ran ran = surefoot({"resume", "runs/fake", "--json"});
  expect_whole(ran);
}

TEST_F(Run, DrainsOnASignalKeepsTheArenaAndGoesOnFromThere) {
  const ProcessId running = start({"run", "job.yaml", "--json"}, {"FAKE_STEP_MS=20"});
  await_step(3);
  EXPECT_EQ(surefoot({"run", "job.yaml"}).code, 75) << "it runs already";
  ASSERT_TRUE(send_signal(running, SIGINT));
  std::optional<ExitStatus> exit;
  while (!(exit = poll_exit(running))) ::usleep(2000);
  EXPECT_EQ(exit->code, 75);
  EXPECT_TRUE(fs::exists(arena()));
  const Ran changed = run({"--set", "train.seed=9"});
  EXPECT_EQ(changed.code, 64);
  EXPECT_THAT(changed.output, HasSubstr("train.seed: was 1, is 9"));
  const Ran ran = run();
  expect_whole(ran);
  EXPECT_THAT(ran.output, HasSubstr("going on from step"));
}

TEST_F(Run, SaysThatAFinishedJobIsFinishedAndMovesItAsideWhenAskedForAFreshOne) {
  expect_whole(run());
  const Ran again = run();
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.output, HasSubstr("finished already"));
  EXPECT_EQ(again.object["attempts"], 1);
  expect_whole(run({"--fresh"}));
  EXPECT_TRUE(fs::exists(root_ / "runs/fake.1/final/model.safetensors"));
}

TEST_F(Run, IsNotTriedAgainAfterAUsersError) {
  const Ran ran = run({}, {"FAKE_EXIT=65"});
  EXPECT_EQ(ran.code, 65) << ran.output;
  EXPECT_EQ(ran.object["attempts"], 1);
  EXPECT_THAT(processes_naming(root_.string()), IsEmpty());
  EXPECT_FALSE(fs::exists(arena())) << "no step was finished, nothing is worth keeping";
}

TEST_F(Run, StopsWith93WhenARestartDoesNotCureIt) {
  const Ran ran = run({}, {"FAKE_EXIT=3"});
  EXPECT_EQ(ran.code, 93) << ran.output;
  EXPECT_THAT(ran.object["message"].get<std::string>(), HasSubstr("same failure twice"));
  EXPECT_THAT(processes_naming(root_.string()), IsEmpty());
}

TEST_F(Run, IsCancelledWhileItRunsAndWhenItsSupervisorIsGone) {
  const ProcessId running = start({"run", "job.yaml", "--json"}, {"FAKE_STEP_MS=50"});
  await_step(2);
  SpawnOptions cancel;
  cancel.argv = {(root_ / "bin/surefoot").string(), "cancel"};
  cancel.directory = root_.string();
  auto asked = spawn(cancel);
  ASSERT_TRUE(asked);
  std::optional<ExitStatus> exit;
  while (!(exit = poll_exit(running))) ::usleep(2000);
  EXPECT_EQ(exit->code, 93);
  while (!(exit = poll_exit(*asked))) ::usleep(2000);
  EXPECT_EQ(exit->code, 0);
  EXPECT_THAT(processes_naming(root_.string()), IsEmpty());
  EXPECT_FALSE(fs::exists(arena()));

  fs::rename(directory(), root_ / "cancelled");
  EXPECT_EQ(run({"--fault", "kill:supervisor,step=3"}, {"FAKE_STEP_MS=50"}).code, 128 + SIGKILL);
  const Ran later = surefoot({"cancel", "--json"});
  EXPECT_EQ(later.code, 0) << later.output;
  EXPECT_EQ(later.object["state"], "cancelled");
  EXPECT_THAT(processes_naming(root_.string()), IsEmpty());
  EXPECT_FALSE(fs::exists(arena()));
}

TEST_F(Run, HasItsStatusLogsAndCheckpointsReadByOtherVerbs) {
  const ProcessId running = start({"run", "job.yaml", "--json"}, {"FAKE_STEP_MS=30"});
  await_step(4);
  const Ran status = ask({"status", "--json"});
  const json& object = status.object;
  ASSERT_TRUE(object.is_object()) << status.output;
  EXPECT_EQ(object["state"], "running");
  EXPECT_GE(object["steps"], 4);
  EXPECT_EQ(object["service"]["ranks"].size(), 2u);
  EXPECT_THAT(object["service"]["endpoint"].get<std::string>(), HasSubstr("tcp://127.0.0.1:"));
  EXPECT_NE(object["service"]["interval_reason"], "");
  EXPECT_EQ(object["fleet"]["live"], true);
  ASSERT_EQ(object["fleet"]["nodes"].size(), 1u);
  EXPECT_EQ(object["fleet"]["nodes"][0]["standing"], "in_use");
  EXPECT_EQ(object["fleet"]["nodes"][0]["ranks"].size(), 2u);
  expect_whole(wait(running));

  EXPECT_THAT(surefoot({"status"}).output, HasSubstr("fake: done, step 30 of 30"));
  const Ran list = surefoot({"checkpoints", "list", "--json"});
  ASSERT_GE(list.object["checkpoints"].size(), 1u) << list.output;
  EXPECT_EQ(list.object["checkpoints"][0]["step"], 30);
  EXPECT_EQ(list.object["checkpoints"][0]["read_back"], true);
  EXPECT_EQ(list.object["checkpoints"][0]["workers"], 2);
  EXPECT_EQ(surefoot({"checkpoints", "verify", "runs/fake"}).code, 0);
  const Ran exported = surefoot({"checkpoints", "export", "--to", "out", "--json"});
  EXPECT_EQ(exported.object["weights_sha256"], expected_weights()) << exported.output;
  EXPECT_EQ(surefoot({"checkpoints", "rm", "--step", "29"}).code, 66);
  EXPECT_EQ(surefoot({"checkpoints", "rm", "--step", "30"}).code, 0);
  EXPECT_EQ(surefoot({"logs", "--rank", "0"}).code, 0);
  EXPECT_EQ(surefoot({"logs", "--attempt", "7"}).code, 66);
}

TEST_F(Run, IsDrainedByTheNameOfItsMachineAndNodesSaysHowThatStands) {
  const ProcessId running = start({"run", "job.yaml", "--json"}, {"FAKE_STEP_MS=300"});
  await_step(3);
  const Ran nodes = ask({"nodes", "--json"});
  EXPECT_EQ(nodes.code, 0);
  ASSERT_TRUE(nodes.object.is_object()) << nodes.output;
  EXPECT_EQ(nodes.object["live"], true);
  EXPECT_EQ(nodes.object["nodes"][0]["name"], host_name());
  EXPECT_EQ(nodes.object["nodes"][0]["last_rank"], 1);
  EXPECT_GE(nodes.object["nodes"][0]["snapshot"], 1);
  EXPECT_THAT(ask({"nodes"}).output, HasSubstr("fake: 1 of 1 machines ready, attempt 1"));
  const Ran unknown = ask({"drain", "moon"});
  EXPECT_EQ(unknown.code, 64);
  EXPECT_THAT(unknown.output, HasSubstr(host_name()));
  EXPECT_EQ(ask({"drain", host_name(), "--in", "soon"}).code, 64);
  const Ran drained = ask({"drain", host_name(), "--in", "20s", "--json"});
  EXPECT_EQ(drained.code, 0) << drained.output;
  EXPECT_THAT(drained.object["what"].get<std::string>(), HasSubstr("the machine goes"));
  EXPECT_EQ(wait(running).code, 75) << "there is no other machine";
  EXPECT_EQ(ask({"drain", host_name()}).code, 75);
  EXPECT_EQ(ask({"nodes", "--json"}).object["live"], false);
  EXPECT_FALSE(fs::exists(directory() / "supervisor.sock"));
  expect_whole(run());
}

TEST_F(Run, FollowsTheLogsOfOneAttemptAfterTheOther) {
  const ProcessId running = start({"run", "job.yaml", "--json"}, {"FAKE_STEP_MS=100"});
  await_step(1);
  SpawnOptions follow;
  follow.argv = {(root_ / "bin/surefoot").string(), "logs", "-f"};
  follow.directory = root_.string();
  follow.output = (root_ / "followed").string();
  auto logs = spawn(follow);
  ASSERT_TRUE(logs);
  const auto followed = [&] {
    auto text = read_file(follow.output);
    return text ? *text : std::string();
  };
  while (followed().find("1 mpirun| ") == std::string::npos) ::usleep(5000);
  const json ranks = ask({"status", "--json"}).object["service"]["ranks"];
  ASSERT_EQ(ranks.size(), 2u);
  auto worker = process_of(ranks[1]["pid"].get<int>());
  ASSERT_TRUE(worker);
  ASSERT_TRUE(send_signal(*worker, SIGKILL));
  const Ran ran = wait(running);
  std::optional<ExitStatus> exit;
  while (!(exit = poll_exit(*logs))) ::usleep(2000);
  EXPECT_EQ(exit->code, 0);
  const std::string all = followed();
  EXPECT_THAT(all, HasSubstr("2 mpirun| "));
  int begun = 0;
  for (std::size_t at = 0; (at = all.find("goes on from step", at)) != std::string::npos; ++at)
    ++begun;
  EXPECT_EQ(begun, 4) << "each line once, of two ranks in two attempts:\n" << all;
  expect_whole(ran);
}

TEST_F(Run, RefusesTheSameJobASecondTimeAndNamesTheFirst) {
  const ProcessId running = start({"run", "job.yaml", "--json"}, {"FAKE_STEP_MS=100"});
  await_step(4);
  for (const char* verb : {"run", "resume"}) {
    const Ran second = ask({verb, "job.yaml"});
    EXPECT_EQ(second.code, 75);
    EXPECT_THAT(second.output, HasSubstr(fmt::format("runs already: pid {}", running.pid)));
  }
  expect_whole(wait(running));
}

TEST_F(Run, ReportsEveryFaultOfAJobFileAndStartsNothing) {
  std::ofstream(root_ / "job.yaml", std::ios::app) << "frobnicate: 1\n";
  const Ran ran = run({"--set", "train.max_steps=-1"});
  EXPECT_EQ(ran.code, 64);
  EXPECT_THAT(ran.output, HasSubstr("frobnicate"));
  EXPECT_THAT(ran.output, HasSubstr("train.max_steps"));
  EXPECT_FALSE(fs::exists(directory()));
  EXPECT_EQ(surefoot({"validate", "job.yaml"}).code, 64);
  EXPECT_EQ(run({"--fault", "kill:moon,step=1"}).code, 64);
  EXPECT_EQ(surefoot({"status"}).code, 66);
}

TEST_F(Run, RedrawsItsProgressInPlaceOnATerminal) {
  int terminal = -1;
  int inner = -1;
  ASSERT_EQ(::openpty(&terminal, &inner, nullptr, nullptr, nullptr), 0);
  std::string path = ::ttyname(inner);
  SpawnOptions options;
  options.argv = {(root_ / "bin/surefoot").string(), "run", "job.yaml"};
  options.environment = {"TERM=xterm", "FAKE_STEP_MS=20"};
  options.directory = root_.string();
  options.output = path;
  auto running = spawn(options);
  ASSERT_TRUE(running);
  std::string shown;
  std::optional<ExitStatus> exit;
  ASSERT_EQ(::fcntl(terminal, F_SETFL, O_NONBLOCK), 0);
  char block[4096];
  for (bool more = true; more;) {
    exit = exit ? exit : poll_exit(*running);
    const ssize_t got = ::read(terminal, block, sizeof block);
    if (got > 0) shown.append(block, static_cast<std::size_t>(got));
    more = got > 0 || !exit;
    if (got <= 0) ::usleep(2000);
  }
  ::close(inner);
  ::close(terminal);
  EXPECT_EQ(exit->code, 0) << shown;
  EXPECT_THAT(shown, HasSubstr("\r\033[K"));
  EXPECT_THAT(shown, HasSubstr("step 30/30"));
  EXPECT_THAT(shown, HasSubstr("attempt 1: starting 2 workers"));
  EXPECT_THAT(shown, HasSubstr("fake: done"));
  EXPECT_THAT(shown, HasSubstr("model.safetensors"));
}

// ---- on GPUs, by a library of the driver's name ----

class RunOnGpus : public Run {
 protected:
  [[nodiscard]] static std::vector<std::string> gpus(const std::string& state,
                                                     const std::string& count = "2") {
    return {"LD_LIBRARY_PATH=" + (programs_folder() / "fake-nvidia").string(),
            "SUREFOOT_FAKE_GPU=" + state, "SUREFOOT_FAKE_GPUS=" + count,
            "SUREFOOT_FAKE_GPU_NAME=NVIDIA H200", "FAKE_STEP_MS=150"};
  }
  Ran run_on(const std::vector<std::string>& environment, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"--set", "resources.device=cuda"});
    return run(std::move(more), environment);
  }
  // Not even a job directory.
  void expect_nothing(const Ran& ran, const std::string& why) {
    EXPECT_EQ(ran.code, 64) << ran.output;
    EXPECT_THAT(ran.output, HasSubstr("surefoot: resources.device: "));
    EXPECT_THAT(ran.output, HasSubstr(why));
    EXPECT_EQ(std::count(ran.output.begin(), ran.output.end(), '\n'), 1) << ran.output;
    EXPECT_FALSE(fs::exists(root_ / "runs"));
    EXPECT_THAT(processes_naming(root_.string()), IsEmpty());
  }
};

TEST_F(RunOnGpus, IsRefusedBeforeAnythingIsStartedWhereThereIsNone) {
  if (count_cards("/") > 0) GTEST_SKIP() << "this machine has a GPU";
  const Ran ran = run_on({});
  expect_nothing(ran, "no NVIDIA GPU on the PCI bus");
  EXPECT_THAT(ran.output, HasSubstr("or resources.device: cpu"));
  expect_nothing(run_on(gpus("unloaded")), "no NVIDIA GPU on the PCI bus");
}

TEST_F(RunOnGpus, IsRefusedForEachReasonInALineOfItsOwn) {
  expect_nothing(run_on(gpus("mismatch")),
                 "Driver/library version mismatch -> the driver was updated");
  expect_nothing(run_on(gpus("lost")), "gpu 0: NVML says 15: GPU is lost -> drain this machine");
  expect_nothing(run_on(gpus("healthy", "1")), "1 GPU for 2 workers, of which each takes one");
  expect_nothing(run_on(gpus("healthy"), {"--set", "resources.devices=[0, 3]"}),
                 "resources.devices names 3, and this machine has 2 GPUs");
  expect_nothing(run_on(gpus("hangs"), {"--set", "recovery.check_timeout=1s"}),
                 "gpu driver: no answer within 1");
  auto without_cuda = gpus("healthy");
  without_cuda.emplace_back("FAKE_NO_CUDA=1");
  expect_nothing(run_on(without_cuda), "this build of surefoot-worker has no CUDA");
}

TEST_F(RunOnGpus, WritesWhatTheyDoAndTheShareOfTheirPeak) {
  const Ran ran = run_on(gpus("throttled"), {"--set", "resources.devices=[1, 0]"});
  expect_whole(ran);
  EXPECT_THAT(ran.output, HasSubstr("gpu clocks 0: 345 of 1980 MHz")) << "a warning, once";
  // 8 samples of 1e9 operations in the millisecond that the worker tells of, on twice 67e12.
  EXPECT_NEAR(ran.object["mfu"].get<double>(), 8 * 1e9 / 1e-3 / (2 * 67e12), 1e-5);
  std::string shares;
  for (const MetricRecord& metric : metrics()) shares += fmt::format(" {:.3g}", metric.mfu);
  EXPECT_GT(metrics().back().mfu, 0) << shares;
  std::map<std::string, json> newest;
  std::istringstream lines(*read_file(directory() / "metrics/gpus.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json object = json::parse(line);
    newest[object["device"]] = object;
  }
  ASSERT_EQ(newest.size(), 2u);
  const json& first = newest["0"];
  EXPECT_EQ(first["node"], host_name());
  EXPECT_EQ(first["name"], "NVIDIA H200");
  EXPECT_EQ(first["busy"], 0.97);
  EXPECT_EQ(first["clock_mhz"], 345);
  EXPECT_EQ(first["slowed_by"], json({"too_hot_hardware", "hardware_slowdown"}));
  EXPECT_EQ(newest["1"]["uuid"], "GPU-00000000-0000-0000-0000-000000000001");
}

TEST_F(RunOnGpus, SaysThatAFinishedJobIsFinishedWhereThereIsNoGpuAnyMore) {
  ASSERT_EQ(run_on(gpus("healthy")).code, 0);
  const Ran again = run_on(gpus("mismatch"));
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("is finished already"));
}

TEST_F(RunOnGpus, OfAJobOnProcessorsAreNotLookedAt) {
  expect_whole(run({}, {"LD_LIBRARY_PATH=" + (programs_folder() / "fake-nvidia").string(),
                        "SUREFOOT_FAKE_GPU=crashes"}));
  EXPECT_FALSE(fs::exists(directory() / "metrics/gpus.jsonl"));
}

TEST_F(RunOnGpus, LeavesAMachineOfAListOutForItsGpus) {
  const Ran ran = run_on(gpus("lost"), {"--set", "resources.hosts=[localhost]", "--set",
                                        "recovery.capacity_timeout=4s"});
  EXPECT_EQ(ran.code, 75) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("localhost: resources.device: cuda: gpu 0: NVML says 15"));
  EXPECT_EQ(ran.object["attempts"], 0);
}

// Not at work, and in the life in which they were well.
TEST_F(RunOnGpus, LooksAgainAtAMachineOfAListThatItStartsAnewOn) {
  std::ofstream(root_ / "gpus") << "healthy";
  auto environment = gpus("@" + (root_ / "gpus").string());
  const ProcessId job =
      start({"run", "job.yaml", "--json", "--set", "resources.device=cuda", "--set",
             "resources.hosts=[localhost]", "--set", "recovery.backoff=5s", "--set",
             "recovery.capacity_timeout=4s", "--fault", "kill:rank=0,step=1", "--faults-count"},
            environment);
  const Time until = now() + 30s;
  const auto said = [&] {
    const auto text = read_file(root_ / "output");
    return text ? *text : std::string();
  };
  while (said().find("attempt 1: failed") == std::string::npos && now() < until) ::usleep(5000);
  std::ofstream(root_ / "gpus") << "lost";
  for (const std::string& pid : processes_naming(root_.string())) {
    const auto process = process_of(std::stoi(pid));
    const auto line = read_file("/proc/" + pid + "/cmdline");
    const std::string program = line ? line->substr(0, line->find('\0')) : "";
    const bool service = process && program.ends_with("/surefoot-node") &&
                         line->find("--sample") == std::string::npos;
    if (service) (void)send_signal(*process, SIGKILL);
  }
  const Ran ran = wait(job);
  EXPECT_EQ(ran.code, 75) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("localhost: resources.device: cuda: gpu 0: NVML says 15"));
  EXPECT_EQ(ran.object["attempts"], 1);
}

TEST_F(RunOnGpus, IsValidatedWithAWarningWhereThereIsNone) {
  std::ofstream(root_ / "bin/surefoot-worker.new")
      << "#!/bin/sh\ncase \"$*\" in\n"
         "*device=cpu*) echo '{\"parameters\": 7, \"training_hash\": \"of another job\"}' ;;\n"
         "*) echo 'resources.device: no CUDA device' ; exit 64 ;;\nesac\n";
  fs::permissions(root_ / "bin/surefoot-worker.new", fs::perms::owner_all);
  fs::rename(root_ / "bin/surefoot-worker.new", root_ / "bin/surefoot-worker");
  const std::vector<std::string> words = {"validate", "job.yaml", "--set", "resources.device=cuda"};
  const Ran ran = surefoot(words, gpus("mismatch"));
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("is a valid job file."));
  EXPECT_THAT(ran.output, HasSubstr("warning       the job would not start on this machine: "
                                    "resources.device: cuda: gpu driver: NVML says 18"));
  auto as_json = words;
  as_json.emplace_back("--json");
  const json said = surefoot(as_json, gpus("mismatch")).object;
  EXPECT_EQ(said["valid"], true);
  EXPECT_EQ(said["warnings"].size(), 1u);
  EXPECT_EQ(said["needs"], json({{"parameters", 7}}));
}

}  // namespace
}  // namespace surefoot
