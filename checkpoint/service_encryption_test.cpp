// Encryption through the real service: a job's checkpoints tell nothing, come back after its memory
// is gone, and are left alone by who has not the key.
#include <sys/stat.h>

#include <random>
#include <unordered_set>

#include "checkpoint/hex_digests.h"
#include "checkpoint/key_file.h"
#include "checkpoint/service_test_util.h"
#include "configs/job.h"

namespace surefoot {
namespace {

std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class ServiceEncryptionTest : public ServiceTest {
 protected:
  std::filesystem::path write_key(const std::string& name, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::string key;
    while (key.size() < kKeyBytes) key += static_cast<char>(random());
    const auto path = folder_.path() / name;
    std::ofstream(path, std::ios::binary) << key;
    ::chmod(path.c_str(), 0600);
    keys_.push_back(key);
    return path;
  }
  // New settings for the job; what says hello from here on has read them.
  void set_job(const std::string& checkpoint) {
    write_job(checkpoint);
    const LoadOutcome outcome = load_job(launch_.job_file, {.check_files = false});
    ASSERT_TRUE(outcome.faults.empty()) << outcome.faults.front().text();
    encryption_ = outcome.job.job.checkpoint().encryption().SerializeAsString();
  }
  static std::string with_key(const std::filesystem::path& path, const std::string& more = "") {
    return "interval: 1h, encryption: {key_file: " + path.string() + more + "}";
  }
  Result<service::HelloReply> say_hello_with_settings() {
    service::Hello hello = hello_of(0, layout_);
    hello.set_encryption(encryption_);
    auto reply = say(hello);
    if (reply) join(reply->attempt());
    return reply;
  }
  // The memory of the job goes, as when its machine is taken away.
  void end_and_free() {
    ASSERT_TRUE(shut_down(true, true));
    ASSERT_TRUE(eventually([&] { return !std::filesystem::exists(arena_); }));
  }
  void train(std::int64_t from, std::int64_t to) {
    for (std::int64_t step = from; step <= to; ++step) make_step(step);
  }
  [[nodiscard]] Digest digest_of(std::int64_t step) const {
    std::vector<std::byte> state(static_cast<std::size_t>(layout_.bytes));
    make_state(layout_, state, step);
    std::vector<Digest> chunks;
    for (std::int64_t chunk = 0; chunk < layout_.chunks(); ++chunk) {
      const ByteRange range = chunk_bytes({chunk, chunk + 1}, layout_.bytes);
      chunks.push_back(
          digest(std::span<const std::byte>(state).subspan(range.begin, range.size())));
    }
    return state_digest(chunks);
  }
  void expect_restored(std::int64_t step) {
    auto reply = say_hello_with_settings();
    ASSERT_TRUE(reply) << reply.error().message;
    const service::Candidate* found = nullptr;
    for (const auto& candidate : reply->candidates()) {
      if (candidate.source() == service::Candidate::STORE && candidate.step() == step)
        found = &candidate;
    }
    ASSERT_NE(found, nullptr) << log();
    EXPECT_EQ(found->digest(), digest_of(step).hex());
    auto restored = restore(*found);
    ASSERT_TRUE(restored) << restored.error().message;
    EXPECT_TRUE(holds(restored->slot(), step));
    EXPECT_EQ(mapped_->slot(restored->slot()).digest, digest_of(step));
  }
  // 16 aligned bytes of the states of these steps, or their digests, in the files of the store.
  [[nodiscard]] int traces_of(std::int64_t last) const {
    std::unordered_set<std::string> windows;
    for (std::int64_t step = 0; step <= last; ++step) {
      std::string state(static_cast<std::size_t>(layout_.bytes), '\0');
      make_state(layout_, std::as_writable_bytes(std::span(state)), step);
      for (std::size_t at = 0; at + 16 <= 65536; at += 16) windows.insert(state.substr(at, 16));
    }
    int found = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(store_folder())) {
      if (!entry.is_regular_file()) continue;
      const std::string bytes = bytes_of_file(entry.path());
      const std::size_t end = std::min<std::size_t>(bytes.size(), 1 << 20);
      for (std::size_t at = 0; at + 16 <= end; ++at)
        found += windows.contains(bytes.substr(at, 16)) ? 1 : 0;
      for (std::int64_t step = 0; step <= last; ++step)
        found += bytes.find(digest_of(step).hex()) != std::string::npos ? 1 : 0;
    }
    return found;
  }
  // Neither key is anywhere a service writes to or is asked about.
  void expect_no_key_told() {
    for (const std::string& key : keys_) {
      const std::string hex = to_hex(std::string_view(key));
      const auto expect_absent = [&](const std::filesystem::path& file) {
        const std::string bytes = bytes_of_file(file);
        EXPECT_EQ(bytes.find(key), std::string::npos) << file;
        EXPECT_EQ(bytes.find(hex), std::string::npos) << file;
      };
      for (const auto& where : {launch_.job_directory, arena_}) {
        for (const auto& entry : std::filesystem::recursive_directory_iterator(where)) {
          if (entry.is_regular_file()) expect_absent(entry.path());
        }
      }
      if (const auto process = service_process()) {
        const auto proc = std::filesystem::path("/proc") / std::to_string(process->pid);
        for (const char* file : {"cmdline", "environ"}) expect_absent(proc / file);
      }
    }
  }
  [[nodiscard]] std::vector<std::string> stored_files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(store_folder()))
      names.push_back(entry.path().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::vector<std::string> keys_;
  std::string encryption_;
};

TEST_F(ServiceEncryptionTest, AJobComesBackFromCheckpointsThatTellNothing) {
  set_job(with_key(write_key("job.key", 1)));
  start();
  ASSERT_TRUE(say_hello_with_settings());
  train(0, 3);
  ASSERT_TRUE(eventually([&] { return status().durable_step() == 1; }));
  expect_no_key_told();
  end_and_free();
  EXPECT_EQ(traces_of(3), 0);
  start();
  expect_restored(3);
  expect_no_key_told();
}

TEST_F(ServiceEncryptionTest, SwitchedOnBetweenTwoRunsTheEarlierCheckpointStillLoads) {
  start();
  ASSERT_TRUE(say_hello_with_settings());
  train(0, 2);
  end_and_free();
  EXPECT_GT(traces_of(2), 0);
  const auto first = write_key("job.key", 1);
  set_job(with_key(first));
  start();
  expect_restored(2);
  train(3, 4);
  end_and_free();
  // A new key, and the one before.
  const auto second = write_key("new.key", 2);
  set_job(with_key(second, ", old_key_files: [" + first.string() + "]"));
  start();
  expect_restored(4);
  train(5, 6);
  end_and_free();
  set_job(with_key(second));
  start();
  expect_restored(6);
}

TEST_F(ServiceEncryptionTest, WithoutTheRightKeyAJobDoesNotStartAndLosesNothing) {
  const auto key = write_key("job.key", 1);
  set_job(with_key(key));
  start();
  ASSERT_TRUE(say_hello_with_settings());
  train(0, 2);
  end_and_free();
  const auto before = stored_files();
  const std::string id = read_key_file(key)->id();
  for (const std::string& checkpoint :
       {std::string("interval: 1h"), with_key(write_key("other.key", 2)),
        std::string("interval: 1h, on_lost_state: restart")}) {
    set_job(checkpoint);
    start();
    const auto reply = say_hello_with_settings();
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code, Code::kInvalid);
    EXPECT_NE(reply.error().message.find(id), std::string::npos) << reply.error().message;
    EXPECT_NE(reply.error().message.find("key_file"), std::string::npos);
    kill_service();
    EXPECT_EQ(stored_files(), before);
  }
  set_job(with_key(key));
  start();
  expect_restored(2);
}

// Its settings are those of the run before; the snapshots it holds outlive it.
TEST_F(ServiceEncryptionTest, AServiceLeftFromBeforeNeverWritesInTheClear) {
  set_job("interval: 1h");
  start();
  ASSERT_TRUE(say_hello_with_settings());
  train(0, 2);
  const auto old = service_process();
  set_job(with_key(write_key("job.key", 1)));
  const auto refused = say_hello_with_settings();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kRestart);
  ASSERT_TRUE(eventually([&] { return service_process() != old; }));
  start();
  const auto reply = say_hello_with_settings();
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(mapped_->slot(*mapped_->newest_ready()).step, Step{2});
  train(3, 4);
  end_and_free();
  start();
  expect_restored(4);
}

TEST_F(ServiceEncryptionTest, DoesNotStartWithAKeyFileThatOthersCanRead) {
  const auto key = write_key("job.key", 1);
  ::chmod(key.c_str(), 0644);
  set_job(with_key(key));
  EXPECT_FALSE(ensure_service(*client_, launch_, now() + 3s));
  EXPECT_TRUE(logged("chmod 600")) << log();
}

// What a dead gang's worker has read of the job file is no reason to end.
TEST_F(ServiceEncryptionTest, DoesNotEndForAStaleGangThatHasReadOtherSettings) {
  start();
  ASSERT_TRUE(say_hello(5));
  service::Hello stale = hello_of(4, layout_);
  stale.set_encryption("another");
  EXPECT_EQ(say(stale).error().code, Code::kStale);
  EXPECT_EQ(status().attempt(), 5);
  stale.set_attempt(6);
  EXPECT_EQ(say(stale).error().code, Code::kRestart);
}

}  // namespace
}  // namespace surefoot
