// A checkpoint service as a real process, whose job names who tells of notices.
//
// The last test runs one on a host of its own, with the clouds' own addresses.
#include <gmock/gmock.h>

#include "checkpoint/service_test_util.h"
#include "common/test_paths.h"
#include "launcher/notice/testing/mock_metadata.h"
#include "tests/cluster/cluster.h"

namespace surefoot::notice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

WallTime wall_in(Duration in) {
  return std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now() + in);
}

class NoticeTest : public ServiceTest {
 protected:
  void start_with(const std::string& recovery) {
    write_job("interval: 1h", recovery);
    start();
  }
  void start_with_mock(const std::string& cloud) {
    auto mock = MockMetadata::start({});
    ASSERT_TRUE(mock);
    mock_ = std::move(*mock);
    start_with(fmt::format("notices: [{0}], notice_endpoints: [\"{0}={1}\"]", cloud, mock_->url()));
  }
  void start_with_file() {
    start_with(fmt::format("notices: [signal, file], notice_file: \"{}\"", file_.string()));
  }
  void say_hello_as_one_of(int nodes) {
    service::Hello hello = hello_of(1, layout_);
    hello.set_node_count(nodes);
    ASSERT_TRUE(say(hello));
    join(1);
  }
  void write_file(const std::string& content) {
    std::ofstream(folder_.path() / "new") << content;
    std::filesystem::rename(folder_.path() / "new", file_);
  }
  [[nodiscard]] bool is_drained() const {
    return (mapped_->requests().load() & kRequestDrain) != 0;
  }
  // A worker that comes and goes, as the gang does when it is drained.
  void run_a_worker() {
    const pid_t worker = fork_child([&]() -> int {
      if (!register_writer(*mapped_, Attempt{1}, 0, 0)) return 1;
      for (;;) ::pause();
    });
    ASSERT_TRUE(eventually([&] { return status().ranks_size() == 1; }));
    worker_ = worker;
  }
  void end_worker() {
    ::kill(worker_, SIGKILL);
    wait_for(worker_);
  }

  std::filesystem::path file_ = folder_.path() / "notice";
  std::unique_ptr<MockMetadata> mock_;
  pid_t worker_ = 0;
};

TEST_F(NoticeTest, TheOnlyNodeDrainsAndBringsItsStateToTheStore) {
  start_with_file();
  ASSERT_TRUE(say_hello(1));
  for (std::int64_t step = 0; step <= 5; ++step) make_step(step);
  EXPECT_FALSE(status().has_notice());
  write_file("60");
  ASSERT_TRUE(eventually([&] { return status().has_notice(); }));
  EXPECT_TRUE(is_drained());
  service::NoticeStatus notice = status().notice();
  EXPECT_EQ(notice.source(), "file");
  EXPECT_NE(notice.id(), "");
  EXPECT_TRUE(notice.everyone());
  EXPECT_LE(notice.seconds_left(), 60);
  EXPECT_GT(notice.seconds_left(), 60 - seconds(kPatience));
  EXPECT_TRUE(eventually([&] { return status().notice().safe_step() == 5; }));
}

TEST_F(NoticeTest, OneOfSeveralNodesDrainsAndLeavesItToTheOthersMemory) {
  start_with_file();
  say_hello_as_one_of(2);
  make_step(0);
  write_file("");
  ASSERT_TRUE(eventually([&] { return status().has_notice(); }));
  EXPECT_TRUE(is_drained());
  EXPECT_FALSE(status().notice().everyone());
  EXPECT_THAT(status().notice().decision(), HasSubstr("other nodes"));
  EXPECT_EQ(status().storing_step(), -1);
  // All go, says the supervisor: it is still the same notice.
  const std::string id = status().notice().id();
  service::Request request;
  request.mutable_notice()->set_deadline_seconds(20);
  request.mutable_notice()->set_everyone(true);
  ASSERT_TRUE(client_->call(request, now() + kPatience));
  EXPECT_TRUE(status().notice().everyone());
  EXPECT_EQ(status().notice().id(), id);
}

TEST_F(NoticeTest, ALaterGangIsNotDrainedByItAndTheNoticeStands) {
  start_with_file();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  write_file("600");
  ASSERT_TRUE(eventually([&] { return status().has_notice(); }));
  const std::string id = status().notice().id();
  ASSERT_TRUE(say_hello(2));
  EXPECT_FALSE(is_drained());
  EXPECT_EQ(status().notice().id(), id);
  // Not in the looks that follow either: a message is answered between any two of them.
  ASSERT_TRUE(eventually([&] { return make_step(1), mapped_->newest_ready().has_value(); }));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(status().notice().id(), id);
  EXPECT_FALSE(is_drained());
}

TEST_F(NoticeTest, ARaisedRiskAsksForACheckpointAndWarns) {
  start_with_mock("aws");
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  ASSERT_TRUE(make_step(1));
  ASSERT_TRUE(eventually([&] { return status().durable_step() == 1; }));
  ASSERT_FALSE(make_step(2));
  mock_->set_aws_rebalance(R"({"noticeTime": "2020-10-26T14:14:14Z"})");
  ASSERT_TRUE(eventually([&] { return status().warnings_size() == 1; }));
  EXPECT_THAT(status().warnings(0), HasSubstr("may be taken soon"));
  std::int64_t step = 3;
  EXPECT_TRUE(eventually([&] { return make_step(step++); }));
  EXPECT_FALSE(is_drained());
  EXPECT_FALSE(status().has_notice());
}

TEST_F(NoticeTest, AzureIsToldWhenTheWorkersAreGoneAndTheStateIsInTheStore) {
  start_with_mock("azure");
  ASSERT_TRUE(say_hello(1));
  run_a_worker();
  make_step(0);
  make_step(1);
  mock_->announce(wall_in(120s));
  ASSERT_TRUE(eventually([&] { return status().notice().safe_step() == 1; }));
  // The workers may still finish a step.
  const int questions = mock_->questions();
  ASSERT_TRUE(eventually([&] { return mock_->questions() >= questions + 3; }));
  EXPECT_THAT(mock_->approved(), ElementsAre());
  end_worker();
  EXPECT_TRUE(eventually([&] { return !mock_->approved().empty(); }));
  EXPECT_THAT(mock_->approved(), ElementsAre(status().notice().id()));
}

TEST_F(NoticeTest, AzureIsToldWhenTheWorkersAreGoneAndOtherNodesHoldTheState) {
  start_with_mock("azure");
  say_hello_as_one_of(2);
  run_a_worker();
  make_step(0);
  mock_->announce(wall_in(120s));
  ASSERT_TRUE(eventually([&] { return status().has_notice(); }));
  end_worker();
  EXPECT_TRUE(eventually([&] { return !mock_->approved().empty(); }));
  EXPECT_EQ(status().storing_step(), -1);
}

TEST_F(NoticeTest, AnEventThatIsCalledOffIsNoNoticeAnyMore) {
  start_with_mock("azure");
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  mock_->announce(wall_in(120s));
  ASSERT_TRUE(eventually([&] { return status().has_notice(); }));
  mock_->call_off();
  EXPECT_TRUE(eventually([&] { return !status().has_notice(); }));
  EXPECT_TRUE(is_drained()) << "who was asked to leave leaves";
  mock_->announce(wall_in(120s));
  EXPECT_TRUE(eventually([&] { return status().has_notice(); }));
}

TEST_F(NoticeTest, AJobThatNamesNoFileForThemIsRefused) {
  write_job("interval: 1h", "notices: [file]");
  const ProcessId process = *spawn({.argv = {launch_.program.string(), launch_.job_file.string(),
                                             "--dir", launch_.job_directory.string()}});
  std::optional<ExitStatus> exit;
  ASSERT_TRUE(eventually([&] { return (exit = poll_exit(process)).has_value(); }));
  EXPECT_EQ(exit->code, 64);
}

// ---- on a host of its own ----

// No ServiceTest: a pid that such a service writes down means another process, or none, out here.
//
// tencent has a name instead of an address, which no name server of such a host knows.
TEST(NoticeHost, HearsFromTheCloudsOwnAddresses) {
  if (const std::string why = cluster::cluster_unavailable(); !why.empty()) GTEST_SKIP() << why;
  const TemporaryFolder folder;
  const std::string bin = programs_folder().string();
  const std::string file = (folder.path() / "notice").string();
  auto made = cluster::Cluster::start({1, {folder.path().string(), bin}});
  ASSERT_TRUE(made) << made.error().message;
  const cluster::Host host = (*made)->host(0);
  std::map<std::string, cluster::Running> mocks;
  for (const std::string address : {"169.254.169.254", "100.100.100.200", "100.96.0.96"}) {
    ASSERT_TRUE(host.add_address(address));
    auto mock = host.start({bin + "/surefoot-mock-metadata", "--address", address, "--port", "80",
                            "--machine", "host0", "--when", file},
                           {});
    ASSERT_TRUE(mock) << mock.error().message;
    mocks.emplace(address, std::move(*mock));
  }
  std::ofstream(folder.path() / "job.yaml")
      << "name: t\nmodel: {kind: mlp}\ndata: {kind: synthetic}\n"
      << "train: {max_steps: 9, global_batch_size: 8, micro_batch_size: 4,"
      << " optimizer: {kind: sgd, lr: 0.1}}\n"
      << "recovery: {notices: [aws, gcp, azure, alibaba, volcengine], notice_lead: 100s}\n";
  auto node = host.start({bin + "/surefoot-node", (folder.path() / "job.yaml").string(), "--dir",
                          (folder.path() / "run").string()},
                         {});
  ASSERT_TRUE(node) << node.error().message;
  const auto says = [&](const std::string& text) {
    return eventually([&] { return node->output().find(text) != std::string::npos; });
  };
  ASSERT_TRUE(says("serving job")) << node->output();
  std::ofstream(folder.path() / "new") << "90";
  std::filesystem::rename(folder.path() / "new", file);
  for (const char* cloud : {"aws", "gcp", "azure", "alibaba", "volcengine"})
    EXPECT_TRUE(says(fmt::format("notice from {}: this machine is taken", cloud)))
        << node->output();
  EXPECT_TRUE(says("draining")) << node->output();
  // It has nothing to bring to safety.
  EXPECT_TRUE(eventually([&] {
    return mocks.at("169.254.169.254").output().find("approved 602d9444") != std::string::npos;
  })) << node->output();
}

}  // namespace
}  // namespace surefoot::notice
