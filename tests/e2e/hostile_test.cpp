// Bad checkpoints, full disks, wrong job files: the job goes on from the next good copy, or stops
// with one clear line. Nothing hangs, nothing starts anew in silence.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <regex>

#include "checkpoint/arena.h"
#include "common/file.h"
#include "tests/e2e/jobs.h"
#include "tests/e2e/sandbox.h"

namespace surefoot::e2e {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

// Steps long enough to be interrupted.
const std::vector<std::string> kLarge = {"--set", "model.hidden=[1500, 1500]"};

// A job of which every process was killed. Its memory and its checkpoints are still there.
class AfterASuddenEnd : public testing::Test {
 protected:
  AfterASuddenEnd() : sandbox_(kQuick) {
    std::vector<std::string> arguments = {"--set", "checkpoint.keep=100", "--set",
                                          "checkpoint.interval=100ms"};
    arguments.insert(arguments.end(), kLarge.begin(), kLarge.end());
    const ProcessId running = sandbox_.start(sandbox_.run_command(arguments));
    EXPECT_TRUE(eventually([&] { return sandbox_.newest_step() >= 20; }, 60s));
    (void)send_signal(running, SIGKILL);
    EXPECT_EQ(sandbox_.wait(running).exit_code, 128 + SIGKILL);
    EXPECT_TRUE(eventually([&] { return checkpoints().size() >= 2; }, 30s));
    EXPECT_TRUE(sandbox_.end_all(now() + 10s));
  }

  // Steps of the published checkpoints, newest first.
  [[nodiscard]] std::vector<fs::path> checkpoints() const {
    std::vector<fs::path> found;
    std::error_code ignored;
    for (const auto& entry :
         fs::directory_iterator(sandbox_.directory() / "checkpoints" / "quick", ignored)) {
      if (fs::exists(entry.path() / "manifest.json")) found.push_back(entry.path());
    }
    std::sort(found.rbegin(), found.rend());
    return found;
  }

  // The slot with the newest step before that one.
  static int older_than(const Arena& arena, Step step) {
    int best = -1;
    for (int slot = 0; slot < kSlots; ++slot) {
      const SlotInfo info = arena.slot(slot);
      const bool older = info.state == SlotState::kReady && info.step < step;
      if (older && (best < 0 || info.step > arena.slot(best).step)) best = slot;
    }
    SUREFOOT_CHECK(best >= 0);
    return best;
  }

  static void flip_a_bit(const fs::path& folder, const std::string& extension) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != extension) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const auto middle = static_cast<std::streamoff>(fs::file_size(entry.path()) / 2);
      file.seekg(middle);
      const char was = static_cast<char>(file.get());
      file.seekp(middle);
      file.put(static_cast<char>(was ^ 4));
    }
  }

  RunResult resume() {
    return sandbox_.command({"surefoot", "resume", sandbox_.directory().string(), "--json"});
  }

  [[nodiscard]] std::string all_logs() const {
    return Sandbox::everything_in(sandbox_.directory() / "logs");
  }

  static const std::string& expected() {
    static const std::string hash = [] {
      Sandbox sandbox(kQuick);
      return sandbox.run(kLarge).text("state_sha256");
    }();
    return hash;
  }

  Sandbox sandbox_;
};

TEST_F(AfterASuddenEnd, AFlippedBitInTheNewestSnapshotMeansTheOneBeforeItAndTheLogSaysSo) {
  auto arena = Arena::open(sandbox_.arena());
  ASSERT_TRUE(arena) << arena.error().message;
  const int newest = (*arena)->newest_ready().value();
  const Step step = (*arena)->slot(newest).step;
  // This place lies between two sections: what is there must not stay when the slot is used again.
  (*arena)->bytes(newest)[(*arena)->bytes(newest).size() / 3] ^= std::byte{16};
  const int before = older_than(**arena, step);
  const Step older = (*arena)->slot(before).step;
  arena->reset();
  const RunResult result = resume();
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.text("state_sha256"), expected());
  const std::string logs = all_logs();
  EXPECT_NE(logs.find(fmt::format("refused step {}", step)), std::string::npos) << logs;
  EXPECT_NE(logs.find(fmt::format("restore: step {} ", older)), std::string::npos) << logs;
}

TEST_F(AfterASuddenEnd, FlippedBitsInEverySnapshotMeanTheNewestCheckpoint) {
  auto arena = Arena::open(sandbox_.arena());
  ASSERT_TRUE(arena) << arena.error().message;
  for (int slot = 0; slot < kSlots; ++slot)
    (*arena)->bytes(slot)[static_cast<std::size_t>(1000 + slot)] ^= std::byte{1};
  arena->reset();
  const RunResult result = resume();
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.text("state_sha256"), expected());
  EXPECT_TRUE(std::regex_search(all_logs(), std::regex("restore: step [0-9]+ of .* in the store")));
}

// The same with the memory gone, as by a reboot.
class AfterAReboot : public AfterASuddenEnd {
 protected:
  AfterAReboot() { fs::remove_all(sandbox_.arena()); }
};

TEST_F(AfterAReboot, GoesOnFromTheNewestCheckpoint) {
  const RunResult result = resume();
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.text("state_sha256"), expected());
}

TEST_F(AfterAReboot, AFlippedBitInAPartMeansTheNextOlderCheckpointAndTheLogSaysSo) {
  const fs::path newest = checkpoints().at(0);
  flip_a_bit(newest, ".safetensors");
  const RunResult result = resume();
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.text("state_sha256"), expected());
  EXPECT_NE(all_logs().find("refused step"), std::string::npos);
}

TEST_F(AfterAReboot, AFlippedBitInAManifestMeansTheNextOlderCheckpointAndTheLogSaysSo) {
  const fs::path newest = checkpoints().at(0);
  flip_a_bit(newest, ".json");
  const RunResult result = resume();
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.text("state_sha256"), expected());
  EXPECT_NE(all_logs().find("cannot be used"), std::string::npos);
}

TEST_F(AfterAReboot, WithoutAnyGoodCopyItStopsWithOneLineAndNeverStartsAtStepZero) {
  for (const fs::path& checkpoint : checkpoints()) flip_a_bit(checkpoint, ".safetensors");
  const RunResult result = resume();
  EXPECT_EQ(result.exit_code, 65) << result.output;
  EXPECT_EQ(result.text("weights_sha256"), "");
  EXPECT_TRUE(std::regex_search(result.text("message"), std::regex("step [0-9]+")))
      << result.text("message");
}

TEST_F(AfterAReboot, AChangedTrainingKeyIsRefusedByNameUnlessItIsAccepted) {
  const std::vector<std::string> changed = {
      "surefoot", "run",   sandbox_.job_file().string(), "--dir", sandbox_.directory().string(),
      "--json",   "--set", "model.hidden=[1500, 1500]",  "--set", "train.seed=4"};
  const RunResult refused = sandbox_.command(changed);
  EXPECT_EQ(refused.exit_code, 64) << refused.output;
  EXPECT_NE(refused.output.find("train.seed"), std::string::npos) << refused.output;
  std::vector<std::string> accepted = changed;
  accepted.emplace_back("--accept-changes");
  const RunResult result = sandbox_.command(accepted);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.text("state_sha256"), expected());
}

TEST(Hostile, AStepThatIsNotFiniteIsNeverApplied) {
  const std::vector<std::string> diverges = {"--set", "train.optimizer.lr=1e6",
                                             "--set", "train.optimizer.eps=0.9",
                                             "--set", "train.grad_clip=0"};
  Sandbox sandbox(kQuick);
  const RunResult result = sandbox.run(diverges);
  EXPECT_EQ(result.exit_code, 65) << result.output;
  EXPECT_NE(result.text("message").find("not finite"), std::string::npos) << result.output;
  EXPECT_LT(result.number("steps"), 40);

  std::vector<std::string> rolls_back = diverges;
  rolls_back.insert(rolls_back.end(), {"--set", "train.on_nan=rollback"});
  Sandbox other(kQuick);
  const RunResult again = other.run(rolls_back);
  EXPECT_EQ(again.exit_code, 65) << again.output;
}

TEST(Hostile, AWrongJobFileGivesAllFaultsAtOnceAndExit64) {
  Sandbox sandbox(kQuick);
  const RunResult result = sandbox.run({"--set", "train.max_step=3", "--set",
                                        "resources.workers_per_node=13", "--set", "train.seed=x"});
  EXPECT_EQ(result.exit_code, 64) << result.output;
  EXPECT_NE(result.output.find("max_steps"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("train.seed"), std::string::npos) << result.output;
}

// A mount namespace of its own in which `what` is mounted before the job runs. Needs root.
class InItsOwnMounts : public testing::Test {
 protected:
  void SetUp() override {
    if (Sandbox probe(kQuick); probe.command({"unshare", "-m", "true"}).exit_code != 0) {
      GTEST_SKIP() << "mount namespaces are not allowed here";
    }
  }
  static RunResult run(Sandbox& sandbox, const std::string& mount, const std::string& more) {
    const std::string command = mount + " && exec " + program("surefoot").string() + " run " +
                                sandbox.job_file().string() + " --dir " +
                                sandbox.directory().string() +
                                " --json --set 'model.hidden=[512, 512]' " + more;
    return sandbox.command({"unshare", "-m", "sh", "-c", command});
  }
};

TEST_F(InItsOwnMounts, SharedMemoryThatIsTooSmallOrReadOnlyIsRefusedBeforeTraining) {
  for (const char* options : {"size=600k", "size=18m", "ro"}) {
    SCOPED_TRACE(options);
    Sandbox sandbox(kQuick);
    const RunResult result =
        run(sandbox, std::string("mount -t tmpfs -o ") + options + " tmpfs /dev/shm", "");
    EXPECT_EQ(result.exit_code, 66) << result.output;
    EXPECT_NE(result.output.find("checkpoint.arena"), std::string::npos) << result.output;
    EXPECT_EQ(sandbox.newest_step(), 0);
  }
}

TEST_F(InItsOwnMounts, AFullStoreDoesNotStopTrainingAndEndsWithOneClearLine) {
  Sandbox sandbox(kQuick);
  const fs::path store = sandbox.root() / "store";
  fs::create_directory(store);
  const RunResult result =
      run(sandbox, "mount -t tmpfs -o size=600k tmpfs " + store.string(),
          "--set recovery.hang_timeout=12s --set checkpoint.to=" + store.string());
  EXPECT_EQ(result.exit_code, 93) << result.output;
  EXPECT_EQ(sandbox.newest_step(), 40) << "training went on to the end";
  EXPECT_NE(result.text("message").find("No space left"), std::string::npos) << result.output;
}

TEST_F(InItsOwnMounts, AFullStoreThatIsGivenRoomAtTheEndCostsNoAttempt) {
  Sandbox sandbox(kQuick);
  const fs::path store = sandbox.root() / "store";
  const fs::path sign = sandbox.root() / "room";
  fs::create_directory(store);
  const std::string script = fmt::format(
      "mount -t tmpfs -o size=600k tmpfs {0}; (while [ ! -e {1} ]; do sleep 0.1; done; mount -o "
      "remount,size=200m {0}) & exec {2} run {3} --dir {4} --json --set 'model.hidden=[512, 512]' "
      "--set checkpoint.to={0}",
      store.string(), sign.string(), program("surefoot").string(), sandbox.job_file().string(),
      sandbox.directory().string());
  const ProcessId running = sandbox.start({"unshare", "-m", "sh", "-c", script});
  EXPECT_TRUE(eventually(
      [&] {
        const auto log = read_file(sandbox.directory() / "logs" / "attempt-001" / "rank-0.log");
        return log && log->find("No space left") != std::string::npos;
      },
      60s))
      << "the steps are done, and the worker leaves the rest to the supervisor";
  std::ofstream(sign).put('x');
  const RunResult result = sandbox.wait(running);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.number("attempts"), 1);
  EXPECT_EQ(result.number("failures"), 0);
}

TEST_F(InItsOwnMounts, AReadOnlyStoreIsRefusedBeforeTraining) {
  Sandbox sandbox(kQuick);
  const fs::path store = sandbox.root() / "store";
  fs::create_directory(store);
  const RunResult result = run(sandbox, "mount -t tmpfs -o ro tmpfs " + store.string(),
                               "--set checkpoint.to=" + store.string());
  EXPECT_EQ(result.exit_code, 65) << result.output;
  EXPECT_NE(result.output.find("Read-only"), std::string::npos) << result.output;
  EXPECT_EQ(sandbox.newest_step(), 0);
}

}  // namespace
}  // namespace surefoot::e2e
