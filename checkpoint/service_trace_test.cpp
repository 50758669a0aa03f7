// Traces of what runs on a node, by the real service: of processes that print on SIGQUIT, and of
// one that cannot.
#include <gmock/gmock.h>
#include <signal.h>

#include "checkpoint/rank_traces.h"
#include "checkpoint/service_test_util.h"
#include "configs/job_directory.h"

namespace surefoot {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TraceTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    start();
    ASSERT_TRUE(say_hello(3));
    ASSERT_TRUE(std::filesystem::create_directories(logs()));
  }
  void TearDown() override {
    EXPECT_TRUE(end_processes(started_, now() + kPatience));
    for (const ProcessId& process : started_) (void)poll_exit(process);
    ServiceTest::TearDown();
  }

  [[nodiscard]] std::filesystem::path logs() const {
    return JobDirectory{launch_.job_directory}.attempt_logs(Attempt{3});
  }
  [[nodiscard]] std::filesystem::path log_of(int rank) const {
    return logs() / fmt::format("rank-{}.log", rank);
  }
  // A process in the place of a worker, which says `word` on SIGQUIT.
  ProcessId begin_rank(int rank, const std::string& word) {
    SpawnOptions options;
    options.argv = {"/bin/sh", "-c",
                    "trap 'echo " + word + "' QUIT; echo ready; while :; do sleep 0.02; done"};
    options.output = log_of(rank).string();
    auto process = spawn(options);
    EXPECT_TRUE(process);
    started_.push_back(*process);
    EXPECT_TRUE(eventually([&] { return !read_file(log_of(rank)).value().empty(); }));
    EXPECT_TRUE(register_writer(*mapped_, Attempt{3}, rank, rank));
    mapped_->line(rank).process = *process;
    set_phase(mapped_->line(rank), Phase::kReduction, Step{7});
    return *process;
  }
  Result<std::string> trace(std::int64_t attempt) {
    service::Request request;
    request.mutable_trace()->set_attempt(attempt);
    request.mutable_trace()->set_seconds(1e9);
    SUREFOOT_ASSIGN(const auto reply, client_->call(request, now() + kPatience));
    return reply.trace().text();
  }

  std::vector<ProcessId> started_;
};

TEST_F(TraceTest, HasWhatEachRankPrintsAndWhatTheSystemSaysOfOneThatIsStopped) {
  begin_rank(0, "stack-of-zero");
  const ProcessId stopped = begin_rank(1, "stack-of-one");
  ASSERT_TRUE(send_signal(stopped, SIGSTOP));
  ASSERT_TRUE(eventually([&] {
    const auto status = read_file(fmt::format("/proc/{}/status", stopped.pid));
    return status && status->find("T (stopped)") != std::string::npos;
  }));
  const auto text = trace(3);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_THAT(*text, HasSubstr("rank 0, step 7, reduction for"));
  EXPECT_THAT(*text, HasSubstr("stack-of-zero"));
  EXPECT_THAT(*text, HasSubstr("rank 1, step 7"));
  EXPECT_THAT(*text, HasSubstr("state T (stopped)"));
  EXPECT_THAT(*text, Not(HasSubstr("stack-of-one")));
  EXPECT_THAT(*text, Not(HasSubstr("ready"))) << "what was printed before";
  EXPECT_TRUE(is_alive(stopped));
}

TEST_F(TraceTest, LeavesRanksOfOtherAttemptsAlone) {
  begin_rank(0, "stack");
  const auto text = trace(4);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(*text, "");
  EXPECT_EQ(trace(0).error().code, Code::kInvalid);
  EXPECT_EQ(read_file(log_of(0)).value(), "ready\n");
}

TEST_F(TraceTest, IsBoundedHoweverMuchIsPrinted) {
  begin_rank(0, "$(head -c 3000000 /dev/zero | tr \"\\\\0\" x)");
  begin_rank(1, "stack-of-one");
  const auto text = trace(3);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_LE(text->size(), kMaxTraceBytes);
  EXPECT_THAT(*text, HasSubstr("xxx"));
  EXPECT_THAT(*text, HasSubstr("stack-of-one")) << "it leaves room for others";
}

}  // namespace
}  // namespace surefoot
