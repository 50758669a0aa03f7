// Jobs whose checkpoints lie in a real S3 service, encrypted: the same bits after the machine has
// lost its memory, nothing of the weights or credentials for others to read, and training that goes
// on while the service is out.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <random>
#include <regex>

#include "checkpoint/store/s3/s3_store.h"
#include "checkpoint/store/s3/testing/proxy.h"
#include "checkpoint/store/s3/testing/servers.h"
#include "common/file.h"
#include "tests/e2e/jobs.h"
#include "tests/e2e/sandbox.h"

namespace surefoot::e2e {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

// Steps long enough to be interrupted and enough of them, a state of several chunks.
const std::string kModel = "model.hidden=[1500, 1500]";
constexpr std::int64_t kSteps = 200;

class Storage : public ::testing::Test {
 protected:
  Storage() : sandbox_(kQuick) {}

  void SetUp() override {
    server_ = s3::S3Server::seaweedfs();
    if (!server_) GTEST_SKIP() << "SeaweedFS is not installed (tools/install_python.sh)";
    key_file_ = sandbox_.root() / "key";
    std::ofstream(key_file_, std::ios::binary) << std::string(16, 'k') + std::string(16, '\x81');
    fs::permissions(key_file_, fs::perms::owner_read | fs::perms::owner_write);
  }

  [[nodiscard]] std::vector<std::string> job(const std::string& endpoint,
                                             const std::vector<std::string>& more = {}) const {
    std::vector<std::string> sets = {kModel,
                                     fmt::format("train.max_steps={}", kSteps),
                                     "checkpoint.to=s3://surefoot/jobs",
                                     "checkpoint.s3.endpoint=" + endpoint,
                                     "checkpoint.encryption.key_file=" + key_file_.string(),
                                     "checkpoint.interval=100ms"};
    sets.insert(sets.end(), more.begin(), more.end());
    std::vector<std::string> arguments;
    for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
    return arguments;
  }
  static std::vector<std::string> credentials() {
    return {std::string("AWS_ACCESS_KEY_ID=") + s3::kTestAccessKey,
            std::string("AWS_SECRET_ACCESS_KEY=") + s3::kTestSecretKey};
  }

  [[nodiscard]] std::vector<pid_t> workers() {
    std::vector<pid_t> pids;
    const nlohmann::json status = service();
    for (const auto& rank : status["ranks"]) pids.push_back(rank.value("pid", 0));
    EXPECT_FALSE(pids.empty());
    return pids;
  }

  // Everything of the job ends at once, and its memory is lost.
  void lose_the_machine() {
    const fs::path arena = sandbox_.arena();
    ASSERT_TRUE(sandbox_.end_all(now() + 10s));
    fs::remove_all(arena);
  }

  // What `surefoot status` tells of the checkpoint service; nothing while there is none.
  [[nodiscard]] nlohmann::json service() {
    const RunResult result =
        sandbox_.command({"surefoot", "status", sandbox_.directory().string(), "--json"});
    const auto& status = result.json;
    return status.is_object() && status["service"].is_object() ? status["service"]
                                                               : nlohmann::json::object();
  }

  // All objects, one after the other.
  [[nodiscard]] std::string everything_stored() const {
    s3::S3Options options = server_->options("");
    auto store = s3::S3Store::open(options, true, now() + 30s);
    SUREFOOT_CHECK(store.has_value());
    const auto objects = (*store)->list("", now() + 30s);
    SUREFOOT_CHECK(objects.has_value());
    std::string all;
    for (const ObjectInfo& object : *objects) {
      std::string content(static_cast<std::size_t>(object.bytes), '\0');
      SUREFOOT_CHECK(
          (*store)
              ->read(object.name, 0, std::as_writable_bytes(std::span(content)), now() + 30s)
              .has_value());
      all += content;
    }
    return all;
  }
  [[nodiscard]] std::string everything_in_the_job_directory() const {
    return Sandbox::everything_in(sandbox_.directory());
  }

  static const std::string& expected() {
    static const std::string hash = [] {
      Sandbox sandbox(kQuick);
      return sandbox.run({"--set", kModel, "--set", fmt::format("train.max_steps={}", kSteps)})
          .text("state_sha256");
    }();
    return hash;
  }

  Sandbox sandbox_;
  std::unique_ptr<s3::S3Server> server_;
  fs::path key_file_;
};

TEST_F(Storage, AJobGoesOnFromEncryptedCheckpointsInS3WithTheSameBits) {
  const ProcessId running =
      sandbox_.start(sandbox_.run_command(job(server_->endpoint())), credentials());
  ASSERT_TRUE(eventually([&] { return sandbox_.newest_step() >= 15; }, 60s));
  ASSERT_TRUE(eventually([&] { return service().value("checkpoint", -1) > 0; }, 60s));
  for (const pid_t worker : workers()) {
    const auto environment = read_file(fmt::format("/proc/{}/environ", worker));
    ASSERT_TRUE(environment);
    EXPECT_EQ(environment->find(s3::kTestSecretKey), std::string::npos);
  }
  (void)send_signal(running, SIGKILL);
  (void)sandbox_.wait(running);
  lose_the_machine();

  const RunResult result = sandbox_.run(job(server_->endpoint()), credentials());
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.text("state_sha256"), expected()) << result.output;
  EXPECT_TRUE(std::regex_search(everything_in_the_job_directory(),
                                std::regex("restore: step [0-9]+ of .* in the store")));
  EXPECT_EQ(sandbox_.leftovers(), std::vector<std::string>{});
}

TEST_F(Storage, NothingOfTheWeightsOrTheCredentialsIsThereForOthersToRead) {
  const RunResult result = sandbox_.run(job(server_->endpoint()), credentials());
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto weights = read_file(sandbox_.directory() / "final" / "model.safetensors");
  ASSERT_TRUE(weights);
  const std::string stored = everything_stored();
  ASSERT_GT(stored.size(), weights->size()) << "the last step's state is stored";
  std::mt19937_64 random(11);
  const std::size_t header = 64 << 10;  // the names; what follows are weights
  int searched = 0;
  for (int i = 0; i < 300; ++i) {
    const std::size_t at = header + random() % (weights->size() - header - 16);
    const std::string_view window(weights->data() + at, 16);
    if (window.find_first_not_of('\0') == std::string_view::npos) continue;
    ++searched;
    ASSERT_EQ(stored.find(window), std::string::npos) << "weights at " << at;
  }
  EXPECT_GT(searched, 250);
  const std::string written = everything_in_the_job_directory() + result.output + stored;
  EXPECT_EQ(written.find(s3::kTestSecretKey), std::string::npos);
  EXPECT_EQ(written.find(std::string(16, 'k')), std::string::npos) << "the key";
}

TEST_F(Storage, AnOutageNeverStopsTrainingAndIsMadeUpForAfterwards) {
  s3::FaultProxy proxy(server_->port());
  const ProcessId running =
      sandbox_.start(sandbox_.run_command(job(proxy.endpoint())), credentials());
  ASSERT_TRUE(eventually([&] { return service().value("checkpoint", -1) > 0; }, 60s));
  proxy.add({s3::Fault::Kind::kAnswer, "/", 1 << 30, 0, 503, "ServiceUnavailable"});
  const std::int64_t before = sandbox_.newest_step();
  ASSERT_TRUE(eventually([&] { return sandbox_.newest_step() >= before + 50; }, 60s))
      << "training goes on";
  const nlohmann::json during = service();
  EXPECT_GE(during.value("checkpoint", -1), 1) << during;
  EXPECT_GT(during.value("checkpoint_age_seconds", 0.0), 0.0) << during;
  // It lasts beyond the last step: the end waits for the store.
  ASSERT_TRUE(eventually([&] { return sandbox_.newest_step() == kSteps; }, 60s));
  EXPECT_GT(proxy.faults_done(), 0);
  proxy.clear();
  const RunResult result = sandbox_.wait(running);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.number("attempts"), 1);
  EXPECT_EQ(result.text("state_sha256"), expected());
}

}  // namespace
}  // namespace surefoot::e2e
