// What a service tells the supervisor about its node: whom it reaches, its store, the worker's
// program, logs. Real sockets and processes; the worker is a script.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <thread>

#include "checkpoint/node_check.h"
#include "checkpoint/service_keys.h"
#include "checkpoint/service_test_util.h"

namespace surefoot {
namespace {

class CheckTest : public ::testing::Test {
 protected:
  CheckTest() { std::filesystem::create_directories(folder_.path() / "shm"); }

  [[nodiscard]] NodeTools tools(const std::string& worker = "exit 0") {
    const auto script = folder_.path() / "worker";
    std::ofstream(script) << "#!/bin/sh\n" << worker << "\n";
    ::chmod(script.c_str(), 0700);
    NodeTools tools;
    tools.open_store = [this]() -> Result<std::unique_ptr<Store>> {
      SUREFOOT_ASSIGN(auto store, FileStore::open(folder_.path() / "store", false));
      return std::unique_ptr<Store>(std::move(store));
    };
    tools.describe = {script.string(), "job.yaml"};
    tools.arena_folder = folder_.path() / "shm";
    return tools;
  }
  [[nodiscard]] static service::Check check_for(double seconds) {
    service::Check check;
    check.set_seconds(seconds);
    return check;
  }
  [[nodiscard]] service::CheckReply describe(const std::string& worker, double seconds = 30) {
    service::Check check = check_for(seconds);
    check.set_describe(true);
    return check_node(check, tools(worker));
  }

  TemporaryFolder folder_;
};

// A socket on loopback, and its "127.0.0.1:PORT".
struct Listener {
  enum Kind { kOpen, kClosed, kFull };
  explicit Listener(Kind kind) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto* name = reinterpret_cast<sockaddr*>(&address);
    ::bind(fd.get(), name, bytes);
    ::getsockname(fd.get(), name, &bytes);
    if (kind != kClosed) ::listen(fd.get(), kind == kFull ? 0 : 8);
    text = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
    // The kernel drops what comes when the queue is full.
    for (int i = 0; i < 4 && kind == kFull; ++i) {
      waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      ::connect(waiting.back().get(), name, bytes);
    }
  }
  Fd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::vector<Fd> waiting;
  std::string text;
};

TEST_F(CheckTest, LooksAtGpusWithTheNumberOfWorkersAndTellsWhatThatSays) {
  const auto script = folder_.path() / "look";
  const auto look = [&](const std::string& says) {
    std::ofstream(script) << "#!/bin/sh\n" << says << "\n";
    ::chmod(script.c_str(), 0700);
    NodeTools with_gpus = tools("echo '{}'");
    with_gpus.look_at_gpus = {script.string(), "job.yaml"};
    service::Check check = check_for(10);
    check.set_describe(true);
    check.set_workers(3);
    return check_node(check, with_gpus);
  };
  const auto good = look("echo noise; echo warning slow; echo done");
  EXPECT_EQ(good.gpu_faults_size(), 0) << good.ShortDebugString();
  ASSERT_EQ(good.gpu_warnings_size(), 1);
  EXPECT_EQ(good.gpu_warnings(0), "slow");
  const auto bad = look("echo \"fault $*\"; echo done");
  ASSERT_EQ(bad.gpu_faults_size(), 1);
  EXPECT_EQ(bad.gpu_faults(0), "job.yaml --workers 3");
  EXPECT_EQ(bad.description(), "{}\n");
  const auto crashed = look("exit 7");
  ASSERT_EQ(crashed.gpu_faults_size(), 1);
  EXPECT_EQ(crashed.gpu_faults(0), "the look at its GPUs ended with 7");
}

TEST_F(CheckTest, DoesNotLookAtGpusOfAJobOnProcessors) {
  EXPECT_EQ(describe("echo '{}'").gpu_faults_size(), 0);
}

TEST_F(CheckTest, NamesTheAddressesThatCannotBeReached) {
  const Listener open(Listener::kOpen);
  const Listener closed(Listener::kClosed);
  service::Check check = check_for(30);
  for (const std::string& text :
       {open.text, closed.text, std::string("node-b:4000"), std::string("127.0.0.1"),
        std::string("[::1:5"), std::string("127.0.0.1:99999"), open.text})
    check.add_connect_to(text);
  const auto reply = check_node(check, tools());
  ASSERT_EQ(reply.unreachable_size(), 5) << reply.ShortDebugString();
  EXPECT_EQ(reply.unreachable(0).rfind(closed.text + ": ", 0), 0u) << reply.unreachable(0);
  EXPECT_EQ(reply.unreachable(1).rfind("node-b:4000: ", 0), 0u);
}

TEST_F(CheckTest, WaitsForAConnectionUntilItsDeadlineOnly) {
  const Listener full(Listener::kFull);
  const Listener open(Listener::kOpen);
  service::Check check = check_for(0.3);
  check.add_connect_to(full.text);
  check.add_connect_to(open.text);
  const auto reply = check_node(check, tools());
  ASSERT_EQ(reply.unreachable_size(), 1) << reply.ShortDebugString();
  EXPECT_EQ(reply.unreachable(0), full.text + ": no answer in time");
}

TEST_F(CheckTest, AStoreThatTakesAllTheTimeMakesNoConnectionUnreachable) {
  const Listener open(Listener::kOpen);
  const Listener closed(Listener::kClosed);
  service::Check check = check_for(0.01);
  check.add_connect_to(open.text);
  check.add_connect_to(closed.text);
  check.set_put_probe("probe-0123abcd");
  NodeTools slow = tools();
  slow.open_store = []() -> Result<std::unique_ptr<Store>> {
    std::this_thread::sleep_for(100ms);
    return error(Code::kRetry, "too late, says \xff");
  };
  const auto reply = check_node(check, slow);
  ASSERT_EQ(reply.unreachable_size(), 1) << reply.ShortDebugString();
  EXPECT_EQ(reply.unreachable(0).rfind(closed.text + ": ", 0), 0u);
  EXPECT_EQ(reply.unreachable(0).find("in time"), std::string::npos) << reply.unreachable(0);
  // protobuf neither writes nor reads what is no UTF-8 without complaint.
  EXPECT_EQ(reply.put_error(), "too late, says ?");
}

TEST_F(CheckTest, PutsAProbeThatAnotherNodeSeesAndTakesItAway) {
  service::Check check = check_for(30);
  check.set_get_probe("probe-0123abcd");
  EXPECT_NE(check_node(check, tools()).get_error(), "") << "it is not there yet";
  service::Check put = check_for(30);
  put.set_put_probe("probe-0123abcd");
  EXPECT_EQ(check_node(put, tools()).put_error(), "");
  EXPECT_EQ(check_node(put, tools()).put_error(), "") << "asked again";
  EXPECT_EQ(check_node(check, tools()).get_error(), "");
  service::Check take = check_for(30);
  take.set_remove_probe("probe-0123abcd");
  EXPECT_EQ(check_node(take, tools()).put_error(), "");
  EXPECT_NE(check_node(check, tools()).get_error(), "");
}

TEST_F(CheckTest, TouchesNothingButProbes) {
  std::filesystem::create_directories(folder_.path() / "store");
  std::ofstream(folder_.path() / "store" / "job.json") << "{}";
  for (const char* name : {"job.json", "abcdef0123", "probe-", "probe-../job.json", "probe-XYZ",
                           "step-00000000001/manifest.json", "probe-1/2"}) {
    service::Check check = check_for(30);
    check.set_put_probe(name);
    check.set_get_probe(name);
    const auto reply = check_node(check, tools());
    EXPECT_NE(reply.put_error(), "") << name;
    EXPECT_NE(reply.get_error(), "") << name;
    service::Check take = check_for(30);
    take.set_remove_probe(name);
    EXPECT_NE(check_node(take, tools()).put_error(), "") << name;
  }
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "store" / "job.json"));
}

TEST_F(CheckTest, SaysWhyTheStoreCannotBeUsed) {
  std::ofstream(folder_.path() / "store") << "in the way";
  service::Check check = check_for(30);
  check.set_put_probe("probe-1");
  check.set_get_probe("probe-1");
  const auto reply = check_node(check, tools());
  EXPECT_NE(reply.put_error(), "");
  EXPECT_NE(reply.get_error(), "");
}

TEST_F(CheckTest, GivesTheWorkersDescriptionWithoutWhatLibrariesPrint) {
  const auto reply = describe("echo a library speaks; echo '{\"numerics_id\":\"n\"}'; echo $* >&2");
  EXPECT_EQ(reply.describe_error(), "");
  EXPECT_EQ(reply.description().rfind("{\"numerics_id\":\"n\"}", 0), 0u) << reply.description();
  EXPECT_NE(reply.description().find("job.yaml --describe"), std::string::npos);
}

TEST_F(CheckTest, SaysWhatTheWorkerSaysWhenItCannot) {
  EXPECT_NE(describe("echo no such data; exit 65").describe_error().find("no such data"),
            std::string::npos);
  EXPECT_NE(describe("exit 65").describe_error().find("65"), std::string::npos);
  EXPECT_NE(describe("printf '\\377\\n'; exit 65").describe_error(), "");
  NodeTools none = tools();
  none.describe = {"/nonexistent/worker"};
  service::Check check = check_for(30);
  check.set_describe(true);
  EXPECT_NE(check_node(check, none).describe_error(), "");
  none.describe.clear();
  EXPECT_NE(check_node(check, none).describe_error(), "");
}

TEST_F(CheckTest, EndsAWorkerThatTakesTooLong) {
  const auto pid = folder_.path() / "pid";
  const auto reply = describe("echo $$ > " + pid.string() + ".new; mv " + pid.string() + ".new " +
                                  pid.string() + "; exec sleep 1000",
                              2);
  EXPECT_NE(reply.describe_error(), "");
  EXPECT_EQ(reply.description(), "");
  const auto text = read_file(pid);
  ASSERT_TRUE(text);
  const auto process = process_of(std::atoi(text->c_str()));
  EXPECT_FALSE(process && is_alive(*process));
}

TEST_F(CheckTest, TellsWhatTheMachineHas) {
  const auto reply = check_node(check_for(1), tools());
  EXPECT_GE(reply.cores(), 1);
  EXPECT_GT(reply.memory_bytes(), 0);
  EXPECT_GT(reply.arena_free_bytes(), 0);
  EXPECT_EQ(reply.build(), build_text());
}

// ---- over the protocol ----

class CheckedServiceTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    auto keys = make_service_keys(launch_.job_directory / "service.keys");
    ASSERT_TRUE(keys);
    start();
    supervisor_ = std::make_unique<ServiceClient>(
        ServiceAddress{arena_, std::optional(client_half(*keys))}, kJobId);
  }
  Result<service::LogReply> read_log(std::int64_t attempt, int rank, std::int64_t offset,
                                     std::int64_t limit) {
    service::Request request;
    auto& wanted = *request.mutable_read_log();
    wanted.set_attempt(attempt);
    wanted.set_rank(rank);
    wanted.set_offset(offset);
    wanted.set_limit(limit);
    SUREFOOT_ASSIGN(auto reply, supervisor_->call(request, now() + kPatience));
    return reply.log();
  }
  std::unique_ptr<ServiceClient> supervisor_;
};

TEST_F(CheckedServiceTest, AnswersOthersWhileACheckWaits) {
  const Listener full(Listener::kFull);
  service::Request request;
  request.mutable_check()->set_seconds(600);
  request.mutable_check()->add_connect_to(full.text);
  EXPECT_EQ(supervisor_->call(request, now() + 300ms).error().code, Code::kRetry);
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  EXPECT_EQ(status().ready_step(), 0);
  ASSERT_TRUE(shut_down(false, false));
  EXPECT_TRUE(eventually([&] { return !service_process(); }, 20s)) << "waits for the check";
}

TEST_F(CheckedServiceTest, ProbesAreInvisibleToAllThatLooksAtSteps) {
  write_job("interval: 100ms, keep: 1");
  kill_service();
  start();
  service::Request request;
  request.mutable_check()->set_seconds(30);
  request.mutable_check()->set_put_probe("probe-0123abcd");
  auto reply = supervisor_->call(request, now() + kPatience);
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->check().put_error(), "");
  ASSERT_TRUE(std::filesystem::exists(store_folder() / "probe-0123abcd"));
  auto hello = say_hello(1);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->candidates_size(), 0);
  EXPECT_EQ(hello->known_step(), 0);
  make_step(0);
  std::int64_t step = 0;
  // Long enough for a second checkpoint, whose cleaning removes the first.
  ASSERT_TRUE(eventually([&] {
    make_step(++step);
    return stored_steps().size() == 1 && stored_steps()[0] > 1;
  }));
  EXPECT_TRUE(std::filesystem::exists(store_folder() / "probe-0123abcd"));
  EXPECT_FALSE(logged("probe-0123abcd"));
}

TEST_F(CheckedServiceTest, GivesLogsInPiecesAndReadsNoOtherFile) {
  const auto logs = folder_.path() / "far" / "attempt-003";
  EXPECT_EQ(read_log(3, 0, 0, 100)->size(), 0);
  service::Request request;
  request.mutable_launch()->set_attempt(3);
  request.mutable_launch()->set_command("echo from the daemon");
  request.mutable_launch()->set_log_folder(logs.string());
  ASSERT_TRUE(supervisor_->call(request, now() + kPatience));
  ASSERT_TRUE(eventually([&] { return read_log(3, -1, 0, 100)->text() == "from the daemon\n"; }));
  EXPECT_EQ(read_log(3, 0, 0, 100)->size(), 0) << "no such rank has said anything yet";

  std::ofstream(logs / "rank-0.log") << "0123456789" << std::string(3 << 20, 'x');
  EXPECT_EQ(read_log(3, 0, 2, 4)->text(), "2345");
  EXPECT_EQ(read_log(3, 0, 2, 4)->size(), (3 << 20) + 10);
  EXPECT_EQ(read_log(3, 0, 0, 1 << 30)->text().size(), 1u << 20);
  EXPECT_EQ(read_log(3, 0, 1 << 30, 4)->text(), "");
  EXPECT_EQ(read_log(2, 0, 0, 100)->size(), 0) << "of an attempt that was not launched here";
  EXPECT_EQ(read_log(3, -2, 0, 100).error().code, Code::kInvalid);
  EXPECT_EQ(read_log(3, 0, -1, 100).error().code, Code::kInvalid);
  std::filesystem::create_symlink("/etc/passwd", logs / "rank-1.log");
  std::filesystem::create_directory(logs / "rank-2.log");
  EXPECT_FALSE(read_log(3, 1, 0, 100));
  EXPECT_FALSE(read_log(3, 2, 0, 100));
  // After its end, and in the service's next life.
  kill_service();
  start();
  EXPECT_EQ(read_log(3, 0, 2, 4)->text(), "2345");
}

TEST_F(CheckedServiceTest, SaysWhetherItSeesTheJobDirectory) {
  std::this_thread::sleep_for(1500ms);  // longer than between two looks
  EXPECT_FALSE(status().shares_directory()) << "a stand-in of this machine's own has no journal";
  std::ofstream(launch_.job_directory / "journal.db") << "one";
  EXPECT_TRUE(eventually([&] { return status().shares_directory(); }));
  std::filesystem::rename(launch_.job_directory / "job.json", launch_.job_directory / "elsewhere");
  EXPECT_TRUE(eventually([&] { return !status().shares_directory(); }));
  std::ofstream(launch_.job_directory / "job.json") << R"({"id": "ffffffffffffffff", "name": "t"})"
                                                    << "\n";
  std::this_thread::sleep_for(1500ms);  // longer than between two looks
  EXPECT_FALSE(status().shares_directory());
}

}  // namespace
}  // namespace surefoot
