// What a supervisor has done on a node: launches, what is asked of a gang, its end. The real
// program, real processes.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <thread>

#include "checkpoint/launch_book.h"
#include "checkpoint/service_keys.h"
#include "checkpoint/service_test_util.h"

namespace surefoot {
namespace {

class LaunchTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    write_job("interval: 1h", recovery_);
    auto keys = make_service_keys(launch_.job_directory / "service.keys");
    ASSERT_TRUE(keys) << keys.error().message;
    start();
    supervisor_ = std::make_unique<ServiceClient>(
        ServiceAddress{arena_, std::optional(client_half(*keys))}, kJobId);
  }
  void TearDown() override {
    if (service_process()) (void)end_gang(0);
    for (const ProcessId& process : noted()) EXPECT_FALSE(is_alive(process)) << process.pid;
    ServiceTest::TearDown();
  }

  [[nodiscard]] service::Launch launch_of(std::int64_t attempt, const std::string& command) const {
    service::Launch launch;
    launch.set_attempt(attempt);
    launch.set_command(command);
    launch.add_environment("NOTES=" + notes().string());
    launch.set_log_folder(logs().string());
    return launch;
  }
  Status launch(const service::Launch& wanted) {
    service::Request request;
    *request.mutable_launch() = wanted;
    SUREFOOT_TRY(supervisor_->call(request, now() + kPatience));
    return {};
  }
  // Each process of the command writes its pid; the last one sleeps until it is ended.
  Status launch(std::int64_t attempt, const std::string& command = kCrowd) {
    return launch(launch_of(attempt, command));
  }
  Status end_gang(std::int64_t below) {
    service::Request request;
    request.mutable_end_gang()->set_below(below);
    SUREFOOT_TRY(supervisor_->call(request, now() + kPatience));
    return {};
  }
  Status ask_to_drain(std::int64_t attempt) {
    service::Request request;
    request.mutable_ask()->set_drain(true);
    request.mutable_ask()->set_attempt(attempt);
    SUREFOOT_TRY(supervisor_->call(request, now() + kPatience));
    return {};
  }
  // The processes that have written their pid.
  [[nodiscard]] std::vector<ProcessId> noted() const {
    auto text = read_file(notes());
    std::istringstream lines(text ? *text : "");
    std::vector<ProcessId> found;
    for (std::int32_t pid = 0; lines >> pid;) {
      if (auto process = process_of(pid)) found.push_back(*process);
    }
    return found;
  }
  [[nodiscard]] bool wait_for(std::size_t processes) const {
    return eventually([&] { return noted().size() >= processes; });
  }
  [[nodiscard]] bool all_are_gone() const {
    const auto all = noted();
    return std::none_of(all.begin(), all.end(), [](const auto& each) { return is_alive(each); });
  }
  [[nodiscard]] std::filesystem::path notes() const { return folder_.path() / "pids"; }
  [[nodiscard]] std::filesystem::path logs() const {
    return launch_.job_directory / "logs" / "attempt-003";
  }

  static constexpr const char* kCrowd =
      "echo $$ >> $NOTES; for i in 1 2; do sh -c 'echo $$ >> $NOTES; sleep 1000' & done; "
      "sh -c 'echo $$ >> $NOTES; sleep 1000'";
  std::unique_ptr<ServiceClient> supervisor_;
  std::string recovery_;
};

TEST_F(LaunchTest, BeginsACommandInASessionOfItsOwnAndEndsAllOfIt) {
  const Status launched = launch(3);
  ASSERT_TRUE(launched) << launched.error().message;
  ASSERT_TRUE(wait_for(4));
  const pid_t session = ::getsid(noted()[0].pid);
  EXPECT_EQ(session, noted()[0].pid);
  for (const ProcessId& process : noted()) EXPECT_EQ(::getsid(process.pid), session);
  EXPECT_TRUE(std::filesystem::is_directory(attempt_folder(arena_, Attempt{3})));
  EXPECT_TRUE(std::filesystem::exists(logs() / ("daemon-" + host_name() + ".log")));
  ASSERT_TRUE(end_gang(4));
  EXPECT_TRUE(all_are_gone());
  EXPECT_FALSE(std::filesystem::exists(attempt_folder(arena_, Attempt{3})));
}

TEST_F(LaunchTest, ABackgroundProcessWhoseParentHasEndedIsEndedToo) {
  ASSERT_TRUE(launch(3, "sh -c 'echo $$ >> $NOTES; exec sleep 1000' & exit 0"));
  ASSERT_TRUE(wait_for(1));
  const ProcessId left = noted()[0];
  EXPECT_NE(::getsid(left.pid), left.pid);
  // The harder case, where somebody reaps at all.
  (void)eventually([&] { return !process_of(::getsid(left.pid)).has_value(); }, 5s);
  ASSERT_TRUE(end_gang(4));
  EXPECT_FALSE(is_alive(left));
}

TEST_F(LaunchTest, RepeatedWhileItRunsBeginsNothing) {
  ASSERT_TRUE(launch(3));
  ASSERT_TRUE(wait_for(4));
  ASSERT_TRUE(launch(3));
  EXPECT_EQ(launch(launch_of(3, "true")).error().code, Code::kStale);
  ASSERT_TRUE(launch(4, "echo $$ >> $NOTES; sleep 1000"));
  ASSERT_TRUE(wait_for(5));
  EXPECT_EQ(noted().size(), 5u);
  EXPECT_EQ(launch(2, "true").error().code, Code::kStale) << "of an older attempt";
}

TEST_F(LaunchTest, KnowsWhatAServiceThatWasKilledHadLaunched) {
  ASSERT_TRUE(launch(3));
  ASSERT_TRUE(wait_for(4));
  kill_service();
  EXPECT_TRUE(is_alive(noted()[0]));
  start();
  ASSERT_TRUE(launch(3));
  EXPECT_EQ(noted().size(), 4u) << "launched again";
  ASSERT_TRUE(end_gang(0));
  EXPECT_TRUE(all_are_gone());
}

TEST_F(LaunchTest, NothingOfAnEndedAttemptBeginsOrRegistersAnyMore) {
  ASSERT_TRUE(end_gang(4));
  ASSERT_FALSE(launch(3));
  EXPECT_EQ(launch(3).error().code, Code::kStale);
  kill_service();
  start();
  EXPECT_EQ(launch(3).error().code, Code::kStale) << "forgotten with the service";
  EXPECT_EQ(say(hello_of(3, layout_)).error().code, Code::kStale);
  ASSERT_TRUE(say_hello(4));
  make_step(0);
  ASSERT_TRUE(register_writer(*mapped_, Attempt{4}, 0, 0));
  // The test itself is registered: it may not be found when the gang is ended.
  const RankLine empty{};
  std::memcpy(static_cast<void*>(&mapped_->line(0)), &empty, sizeof empty);
  ASSERT_TRUE(end_gang(5));
  EXPECT_EQ(register_writer(*mapped_, Attempt{4}, 0, 0).error().code, Code::kStale);
  std::memcpy(static_cast<void*>(&mapped_->line(0)), &empty, sizeof empty);
  EXPECT_EQ(say(hello_of(4, layout_)).error().code, Code::kStale);
  // Who lets the service choose gets the next one.
  auto next = say(hello_of(0, layout_));
  ASSERT_TRUE(next) << next.error().message;
  EXPECT_EQ(next->attempt(), 5);
}

TEST_F(LaunchTest, AHelloOfADamagedAttemptMakesNoOtherStale) {
  for (const std::int64_t attempt :
       {kMaxAttempt + 1, std::int64_t{9'000'000'000'000'000'000}, std::int64_t{-1}})
    EXPECT_EQ(say(hello_of(attempt, layout_)).error().code, Code::kInvalid) << attempt;
  ASSERT_TRUE(end_gang(0));
  kill_service();
  start();
  const auto taken = say(hello_of(1, layout_));
  ASSERT_TRUE(taken) << taken.error().message;
  EXPECT_EQ(taken->attempt(), 1);
}

TEST_F(LaunchTest, SparesTheGangThatIsNotMeant) {
  ASSERT_TRUE(launch(3));
  ASSERT_TRUE(wait_for(4));
  ASSERT_TRUE(say_hello(3));
  make_step(0);
  ASSERT_TRUE(end_gang(3));
  EXPECT_EQ(noted().size(), 4u);
  for (const ProcessId& process : noted()) EXPECT_TRUE(is_alive(process));
  EXPECT_TRUE(std::filesystem::is_directory(attempt_folder(arena_, Attempt{3})));
  make_step(1);
  EXPECT_EQ(status().ready_step(), 1);
}

TEST_F(LaunchTest, ForgetsWhatHasEndedByItself) {
  ASSERT_TRUE(launch(3, "true"));
  ASSERT_TRUE(end_gang(4));
  ASSERT_TRUE(launch(4, "echo $$ >> $NOTES"));
  ASSERT_TRUE(eventually([&] {
    auto text = read_file(notes());
    return text && text->ends_with('\n') && all_are_gone();
  }));
  // Nothing hangs on it: the folder can be given up.
  ASSERT_TRUE(eventually([&] { return shut_down(false, true).has_value(); }));
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(arena_); }));
}

TEST_F(LaunchTest, KeepsTheMemoryWhileSomethingRuns) {
  ASSERT_TRUE(launch(3));
  ASSERT_TRUE(wait_for(4));
  EXPECT_EQ(shut_down(false, true).error().code, Code::kRetry);
}

TEST_F(LaunchTest, IsTakenFromTheSupervisorOnlyAndWhenItMakesSense) {
  service::Request request;
  *request.mutable_launch() = launch_of(3, kCrowd);
  EXPECT_EQ(client_->call(request, now() + kPatience).error().code, Code::kInvalid);
  for (const auto& spoil : std::initializer_list<void (*)(service::Launch&)>{
           [](auto& wrong) { wrong.set_attempt(0); },
           [](auto& wrong) { wrong.set_attempt(kMaxAttempt + 1); },
           [](auto& wrong) { wrong.clear_command(); },
           [](auto& wrong) { wrong.set_command(std::string("true\0", 5)); },
           [](auto& wrong) { wrong.set_log_folder("logs"); },
           [](auto& wrong) { wrong.set_log_folder("/proc/none"); },
           [](auto& wrong) { wrong.add_environment("=x"); },
           [](auto& wrong) { wrong.add_environment("x"); },
       }) {
    service::Launch wrong = launch_of(3, kCrowd);
    spoil(wrong);
    EXPECT_EQ(launch(wrong).error().code, Code::kInvalid) << wrong.ShortDebugString();
  }
  EXPECT_TRUE(noted().empty());
  ASSERT_TRUE(launch(3)) << "what made no sense has used the attempt up";
}

TEST_F(LaunchTest, PassesItsEnvironmentOnButNoCredentials) {
  kill_service();
  ::setenv("AWS_SECRET_ACCESS_KEY", "a-secret", 1);
  ::setenv("OMPI_MCA_outer", "1", 1);
  start();
  ::unsetenv("AWS_SECRET_ACCESS_KEY");
  ::unsetenv("OMPI_MCA_outer");
  service::Launch wanted = launch_of(3, "env > $NOTES.env; echo done >> $NOTES.env");
  wanted.add_environment("OMPI_MCA_inner=2");
  ASSERT_TRUE(launch(wanted));
  std::string text;
  ASSERT_TRUE(eventually([&] {
    auto now_there = read_file(notes().string() + ".env");
    text = now_there ? *now_there : "";
    return text.ends_with("done\n");
  }));
  EXPECT_EQ(text.find("a-secret"), std::string::npos);
  EXPECT_EQ(text.find("OMPI_MCA_outer"), std::string::npos);
  EXPECT_NE(text.find("OMPI_MCA_inner=2\n"), std::string::npos);
  EXPECT_NE(text.find("PATH="), std::string::npos);
}

TEST_F(LaunchTest, WhatIsAskedOfAGangIsToldToThatOneOnly) {
  ASSERT_TRUE(say_hello(3));
  make_step(0);
  EXPECT_EQ(ask_to_drain(2).error().code, Code::kStale);
  EXPECT_EQ(ask_to_drain(4).error().code, Code::kStale);
  EXPECT_EQ(mapped_->requests().load() & kRequestDrain, 0u);
  ASSERT_TRUE(ask_to_drain(3));
  EXPECT_NE(mapped_->requests().load() & kRequestDrain, 0u);
  // A gang that was launched and has not said hello yet is told when it does.
  ASSERT_TRUE(launch(4));
  ASSERT_TRUE(ask_to_drain(4));
  ASSERT_TRUE(say_hello(4));
  EXPECT_NE(mapped_->requests().load() & kRequestDrain, 0u);
  ASSERT_TRUE(say_hello(5));
  EXPECT_EQ(mapped_->requests().load() & kRequestDrain, 0u);
}

// As in the moment in which a process begins another program, when nothing tells whose it is.
TEST(Launched, OneWhoseEnvironmentSaysNothingIsNotForgottenAtOnce) {
  // So that the leader is reaped by us at once, and its number is no longer its own.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const TemporaryFolder folder;
  LaunchBook book(folder.path(), "0123456789abcdef");
  service::Launch wanted;
  wanted.set_attempt(3);
  wanted.set_command("cd " + folder.path().string() +
                     " && { env -i sleep 1000 & echo $$ $! > new; mv new pids; }");
  wanted.set_log_folder((folder.path() / "logs").string());
  const Status launched = book.launch(wanted, Attempt{2});
  ASSERT_TRUE(launched) << launched.error().message;
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder.path() / "pids"); }));
  pid_t leader = 0, bare = 0;
  std::ifstream(folder.path() / "pids") >> leader >> bare;
  ASSERT_EQ(::waitpid(leader, nullptr, 0), leader);
  const auto process = process_of(bare);
  ASSERT_TRUE(process);
  ASSERT_TRUE(eventually([&] {
    const auto name = read_file(fmt::format("/proc/{}/comm", bare));
    return name && *name == "sleep\n";
  }));
  const Time begun = now();
  const SessionProcesses found = book.processes_below(Attempt{4});
  EXPECT_TRUE(found.members.empty()) << "it may be a stranger, and is not to be ended";
  EXPECT_TRUE(found.maybe_more);
  EXPECT_TRUE(book.anything_runs());
  // That of a stranger stays as it is.
  EXPECT_TRUE(eventually([&] { return !book.anything_runs(); }));
  EXPECT_GE(now() - begun, 900ms);
  EXPECT_FALSE(book.processes_below(Attempt{4}).maybe_more);
  ASSERT_TRUE(end_processes({*process}, now() + kPatience));
  EXPECT_EQ(::waitpid(bare, nullptr, 0), bare);
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

// The test is the supervisor: it is silent for longer than the lease.
class LeaseTest : public LaunchTest {
 protected:
  void SetUp() override {
    recovery_ = "lease: 5s, supervisor_timeout: 1h";
    LaunchTest::SetUp();
  }
  bool look_in() {
    service::Request looking;
    looking.mutable_status();
    return supervisor_->call(looking, now() + kPatience).has_value();
  }
  [[nodiscard]] bool ended() const { return logged("ending the gang here"); }
  // A worker that is registered and does nothing.
  [[nodiscard]] ProcessId make_worker(std::int64_t attempt) {
    auto child = spawn({.argv = {"sleep", "1000"}, .detach = true});
    SUREFOOT_CHECK(child.has_value());
    RankLine& line = mapped_->line(0);
    line.attempt.store(attempt);
    line.rank.store(0);
    std::memcpy(static_cast<void*>(&line.process), &*child, sizeof *child);
    return *child;
  }
};

TEST_F(LeaseTest, EndsWhatWasLaunchedWhenNoSupervisorIsHeard) {
  ASSERT_TRUE(launch(3));
  // Until all are there it is heard; then it is silent.
  ASSERT_TRUE(eventually([&] { return look_in() && noted().size() >= 4; }));
  EXPECT_FALSE(ended());
  EXPECT_TRUE(eventually([&] { return all_are_gone(); }));
  EXPECT_TRUE(ended());
  ASSERT_FALSE(launch(3));
  EXPECT_EQ(launch(3).error().code, Code::kStale);
  ASSERT_TRUE(launch(4)) << "the next attempt";
}

TEST_F(LeaseTest, EndsTheWorkersWhenStepsStopAndNotWhileTheyGoOn) {
  service::Hello hello = hello_of(3, layout_);
  hello.set_supervised(true);
  ASSERT_TRUE(say(hello));
  join(3);
  make_step(0);
  const ProcessId worker = make_worker(3);
  std::int64_t step = 0;
  // A step now and then; nobody asks on the supervisor's side.
  for (const Time until = now() + 7s; now() < until; ::usleep(100000)) make_step(++step);
  EXPECT_TRUE(is_alive(worker));
  EXPECT_FALSE(ended());
  EXPECT_TRUE(eventually([&] { return !is_alive(worker); })) << "steps have stopped";
  EXPECT_TRUE(ended());
  EXPECT_EQ(status().ready_step(), step) << "nothing that was finished is lost";
}

TEST_F(LeaseTest, SparesAGangWhoseSupervisorIsHeardAndOneWithoutSupervisor) {
  service::Hello hello = hello_of(3, layout_);
  hello.set_supervised(true);
  ASSERT_TRUE(say(hello));
  join(3);
  make_step(0);
  const ProcessId worker = make_worker(3);
  for (const Time until = now() + 7s; now() < until; ::usleep(100000)) ASSERT_TRUE(look_in());
  EXPECT_TRUE(is_alive(worker));
  ASSERT_TRUE(end_gang(4));
  EXPECT_FALSE(is_alive(worker));

  hello.set_attempt(4);
  hello.set_supervised(false);
  ASSERT_TRUE(say(hello));
  join(4);
  const ProcessId other = make_worker(4);
  std::this_thread::sleep_for(7s);
  EXPECT_TRUE(is_alive(other));
  EXPECT_FALSE(ended());
  (void)end_processes({other}, now() + kPatience);
}

TEST_F(LaunchTest, WhatASupervisorOfAnOlderAttemptSaysIsStale) {
  ASSERT_TRUE(say_hello(4));
  make_step(0);
  service::Request shutdown;
  shutdown.mutable_shutdown()->set_attempt(3);
  EXPECT_EQ(supervisor_->call(shutdown, now() + kPatience).error().code, Code::kStale);
  service::Request finish;
  finish.mutable_finish()->set_step(max_steps_);
  finish.mutable_finish()->set_attempt(3);
  EXPECT_EQ(supervisor_->call(finish, now() + kPatience).error().code, Code::kStale);
  ASSERT_TRUE(end_gang(3));
  make_step(1);
  EXPECT_EQ(status().ready_step(), 1);
  shutdown.mutable_shutdown()->set_attempt(4);
  EXPECT_TRUE(supervisor_->call(shutdown, now() + kPatience));
  EXPECT_TRUE(eventually([&] { return !service_process(); }));
}

TEST_F(LaunchTest, TellsWhichLifeOfTheMachineItIs) {
  const std::string id = status().boot_id();
  EXPECT_EQ(id, fmt::format("{:016x}", self_process().boot));
  kill_service();
  start();
  EXPECT_EQ(status().boot_id(), id);
}

}  // namespace
}  // namespace surefoot
