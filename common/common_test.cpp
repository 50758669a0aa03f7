#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <thread>

#include "common/address.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/file.h"
#include "common/ids.h"
#include "common/process.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;

TEST(Addresses, AreNumbersAndTheirPortIsApart) {
  EXPECT_EQ(parse_address("10.0.0.2")->host(), "10.0.0.2");
  EXPECT_EQ(parse_address("fd00:0::2")->host(), "fd00::2");
  for (const std::string text :
       {"", "localhost", "10.0.0", "[fd00::2]", "fe80::1%eth0", "1.2.3.4 ", "10.0.0.2:1"})
    EXPECT_FALSE(parse_address(text)) << text;
  const auto v6 = parse_tcp_endpoint("tcp://[fd00::2]:65535");
  ASSERT_TRUE(v6);
  EXPECT_TRUE(v6->is_v6());
  EXPECT_EQ(v6->host(), "fd00::2");
  EXPECT_EQ(v6->port(), 65535);
  EXPECT_EQ(parse_address_and_port("10.0.0.2:4000")->port(), 4000);
  for (const std::string text :
       {"", ":", ":4000", "10.0.0.2", "10.0.0.2:", "10.0.0.2:0", "10.0.0.2:65536", "10.0.0.2:40x",
        "10.0.0.2: 4", "10.0.0.2:-4", "fd00::2:4000", "[10.0.0.2]:4000", "[fd00::2:4000", "[]:4000",
        "node:4000"})
    EXPECT_FALSE(parse_address_and_port(text)) << text;
  EXPECT_FALSE(parse_address(std::string("10.0.0.2\0x", 10)));
  EXPECT_FALSE(parse_tcp_endpoint("ipc://10.0.0.2:4000"));
}

TEST(Digest, ReadsItsOwnHexAndRefusesAnyOther) {
  const Digest made = digest("surefoot");
  EXPECT_EQ(Digest::from_hex(made.hex()), made);
  EXPECT_FALSE(Digest::from_hex(made.hex().substr(1)));
  EXPECT_FALSE(Digest::from_hex("G" + made.hex().substr(1)));
  EXPECT_FALSE(Digest::from_hex("A" + made.hex().substr(1)));
}

TEST(Digest, OfPiecesAndOfACopyEqualsTheDigestOfTheWhole) {
  std::string text(100'003, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 24);
  Digester digester;
  digester.update(std::string_view(text).substr(0, 17));
  digester.update(std::string_view(text).substr(17));
  EXPECT_EQ(digester.finish(), digest(text));
  std::string copy(text.size(), '\0');
  EXPECT_EQ(copy_and_digest(as_bytes(text), std::as_writable_bytes(std::span(copy))), digest(text));
  EXPECT_EQ(copy, text);
}

TEST(Digest, Sha256OfAKnownText) {
  EXPECT_EQ(sha256(as_bytes("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(File, IsReplacedWholeAndReadBack) {
  const auto path = std::filesystem::temp_directory_path() / ("surefoot-file-" + make_job_id());
  ASSERT_TRUE(write_file_atomically(path, "one"));
  ASSERT_TRUE(write_file_atomically(path, "two"));
  EXPECT_EQ(*read_file(path), "two");
  std::filesystem::remove(path);
  EXPECT_EQ(read_file(path).error().code, Code::kNotFound);
}

TEST(Process, KnowsItselfAndNotAReusedPid) {
  ProcessId self = self_process();
  EXPECT_TRUE(is_alive(self));
  self.start_ticks += 1;
  EXPECT_FALSE(is_alive(self));
  EXPECT_EQ(send_signal(self, 0).error().code, Code::kNotFound);
}

TEST(Process, ChildReportsItsExitCode) {
  auto child = spawn({.argv = {"/bin/sh", "-c", "exit 7"}});
  ASSERT_TRUE(child);
  std::optional<ExitStatus> exit;
  while (!(exit = poll_exit(*child))) std::this_thread::yield();
  EXPECT_EQ(exit->code, 7);
}

TEST(Process, MissingProgramIsAnError) {
  EXPECT_EQ(spawn({.argv = {"/nonexistent/program"}}).error().code, Code::kInvalid);
  EXPECT_EQ(spawn({.argv = {"/nonexistent/program"}, .detach = true}).error().code, Code::kInvalid);
}

TEST(Process, DetachedChildHasASessionOfItsOwnAndIsEnded) {
  auto child = spawn({.argv = {"sleep", "60"}, .detach = true});
  ASSERT_TRUE(child);
  EXPECT_TRUE(is_alive(*child));
  EXPECT_EQ(::getsid(child->pid), child->pid);
  ASSERT_TRUE(end_processes({*child, ProcessId{}}, now() + 5s));
  EXPECT_FALSE(is_alive(*child));
}

TEST(Process, BeginsOnlyWhenTheCallerHasAgreed) {
  const auto path = std::filesystem::temp_directory_path() / ("surefoot-gate-" + make_job_id());
  for (const bool detach : {false, true}) {
    SpawnOptions options{.argv = {"/bin/sh", "-c", "echo begun"}, .output = path.string()};
    options.detach = detach;
    ProcessId seen;
    options.before = [&](const ProcessId& process) -> Status {
      seen = process;
      EXPECT_EQ(::getsid(process.pid), process.pid);
      std::this_thread::sleep_for(10ms);
      EXPECT_EQ(*read_file(path), "");
      return error(Code::kStale, "no");
    };
    EXPECT_EQ(spawn(options).error().code, Code::kStale);
    while (is_alive(seen)) std::this_thread::yield();
    EXPECT_EQ(*read_file(path), "");
  }
  SpawnOptions options{.argv = {"/bin/sh", "-c", "echo begun"}, .output = path.string()};
  options.before = [](const ProcessId&) { return Status(); };
  auto child = spawn(options);
  ASSERT_TRUE(child);
  while (!poll_exit(*child)) std::this_thread::yield();
  EXPECT_EQ(*read_file(path), "begun\n");
  std::filesystem::remove(path);
}

TEST(Process, ChildrenHaveTheLimitOfDescriptorsThatThisOneHad) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{std::min<rlim_t>(200, before.rlim_max), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(raise_descriptor_limit(), before.rlim_max);
  EXPECT_EQ(raise_descriptor_limit(), before.rlim_max) << "again";
  rlimit raised{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &raised), 0);
  EXPECT_EQ(raised.rlim_cur, before.rlim_max);
  const auto path =
      std::filesystem::temp_directory_path() / fmt::format("surefoot-limit-{}", ::getpid());
  const auto child =
      spawn({.argv = {"/bin/sh", "-c", "ulimit -S -n; ulimit -H -n"}, .output = path.string()});
  ASSERT_TRUE(child);
  while (!poll_exit(*child)) std::this_thread::yield();
  const std::string said = *read_file(path);
  EXPECT_EQ(said.substr(0, said.find('\n')), std::to_string(low.rlim_cur));
  std::filesystem::remove(path);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(Process, ASessionIsFoundWhenItsLeaderHasEndedByItsMarkOnly) {
  auto leader = spawn({.argv = {"/bin/sh", "-c", "sleep 60 & exit 0"},
                       .environment = {"SUREFOOT_X=mine"},
                       .detach = true});
  ASSERT_TRUE(leader);
  for (const Time deadline = now() + 10s; process_of(leader->pid) && now() < deadline;)
    std::this_thread::yield();
  const bool reaped = !process_of(leader->pid);
  std::vector<ProcessId> found;
  while ((found = session_of(*leader, "SUREFOOT_X=mine").members).empty())
    std::this_thread::yield();
  EXPECT_EQ(found.size(), 1u);
  // Where nobody reaps its number stays its own, and the mark is not needed.
  EXPECT_EQ(session_of(*leader, "SUREFOOT_X=min").members.empty(), reaped);
  EXPECT_FALSE(session_of(*leader, "SUREFOOT_X=min").maybe_more) << "a stranger for certain";
  ProcessId before_reboot = *leader;
  before_reboot.boot += 1;
  EXPECT_TRUE(session_of(before_reboot, "SUREFOOT_X=mine").members.empty());
  ASSERT_TRUE(end_processes(found, now() + 5s));
  EXPECT_TRUE(session_of(*leader, "SUREFOOT_X=mine").members.empty());
}

// As in the moment in which a process begins another program.
TEST(Process, OneOfASessionThatHasNoEnvironmentMayBelongToIt) {
  const auto path =
      std::filesystem::temp_directory_path() / fmt::format("surefoot-bare-{}", ::getpid());
  const auto leader = spawn({.argv = {"/bin/sh", "-c", "env -i sleep 60 & echo $!"},
                             .environment = {"SUREFOOT_X=mine"},
                             .output = path.string()});
  ASSERT_TRUE(leader);
  while (!poll_exit(*leader)) std::this_thread::yield();
  const auto bare = process_of(std::stoi(*read_file(path)));
  ASSERT_TRUE(bare);
  const auto is_sleep = [&] {
    const auto name = read_file(fmt::format("/proc/{}/comm", bare->pid));
    return name && *name == "sleep\n";
  };
  for (const Time late = now() + 10s; !is_sleep() && now() < late;) std::this_thread::yield();
  const SessionProcesses session = session_of(*leader, "SUREFOOT_X=mine");
  EXPECT_TRUE(session.members.empty());
  EXPECT_TRUE(session.maybe_more);
  ASSERT_TRUE(end_processes({*bare}, now() + 5s));
  EXPECT_FALSE(session_of(*leader, "SUREFOOT_X=mine").maybe_more);
  std::filesystem::remove(path);
}

TEST(Clock, MakesADurationOfAnyNumber) {
  using namespace std::chrono_literals;
  EXPECT_EQ(from_seconds(1.5), 1500ms);
  EXPECT_EQ(from_seconds(-2), -2s);
  EXPECT_EQ(from_seconds(std::nan("")), 0s);
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_GT(from_seconds(infinite), std::chrono::years(200));
  EXPECT_GT(now() + from_seconds(infinite), now());
  EXPECT_LT(now() + from_seconds(-infinite), now());
}

TEST(Process, ChildInheritsNoDescriptorAndSeesItsEnvironment) {
  const auto path = std::filesystem::temp_directory_path() / ("surefoot-fds-" + make_job_id());
  Fd leak(::dup(1));
  auto child = spawn({.argv = {"/bin/sh", "-c", "ls /proc/self/fd | wc -l; echo $SUREFOOT_X"},
                      .environment = {"SUREFOOT_X=yes"},
                      .output = path.string()});
  ASSERT_TRUE(child);
  while (!poll_exit(*child)) std::this_thread::yield();
  // 0, 1, 2 and the folder that ls itself has open.
  EXPECT_EQ(*read_file(path), "4\nyes\n");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace surefoot
