// Real commands and files; what a list may hold is tested in configs/machines_test.cpp.
#include "launcher/nodes/discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "launcher/nodes/run_program.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
namespace fs = std::filesystem;
constexpr Duration kPatience = 20s;

class Folder : public testing::Test {
 protected:
  Folder() {
    std::string form = (fs::temp_directory_path() / "surefoot-discovery-XXXXXX").string();
    EXPECT_NE(::mkdtemp(form.data()), nullptr);
    root_ = form;
  }
  ~Folder() override { fs::remove_all(root_); }
  // In one piece, so that nobody reads half of it.
  void write(const std::string& name, const std::string& text) {
    EXPECT_TRUE(write_file_atomically(root_ / name, text));
  }
  static bool eventually(const std::function<bool()>& condition) {
    for (const Time end = now() + kPatience; !condition(); std::this_thread::sleep_for(2ms)) {
      if (now() > end) return false;
    }
    return true;
  }
  // Those in `pids`, once there are as many.
  [[nodiscard]] std::vector<ProcessId> processes_noted(std::size_t count) const {
    std::vector<ProcessId> found;
    (void)eventually([&] {
      found.clear();
      std::ifstream pids(root_ / "pids");
      for (pid_t pid = 0; pids >> pid;) {
        if (const auto process = process_of(pid)) found.push_back(*process);
      }
      return found.size() >= count;
    });
    return found;
  }
  // Killed; whoever has adopted them may still have to reap them.
  static bool all_end(const std::vector<ProcessId>& processes) {
    return eventually([&] {
      return std::none_of(processes.begin(), processes.end(),
                          [](const ProcessId& process) { return is_alive(process); });
    });
  }
  fs::path root_;
};

ProgramRun shell(const std::string& script) {
  ProgramRun run;
  run.argv = {"/bin/sh", "-c", script};
  run.deadline = now() + kPatience;
  return run;
}

// ---- programs ----

TEST(RunProgram, GivesInputAndTakesOutputAndErrorsApart) {
  ProgramRun run = shell("wc -c; echo bad >&2; exit 3");
  const std::string input(3'000'000, 'x');  // more than a pipe holds
  run.input = input;
  const auto end = run_program(run);
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_EQ(end->output, "3000000\n");
  EXPECT_EQ(end->errors, "bad\n");
  EXPECT_EQ(end->status.code, 3);
  EXPECT_FALSE(end->succeeded());
}

TEST(RunProgram, SurvivesAProgramThatReadsNothing) {
  ProgramRun run = shell("exec <&-; echo done");
  const std::string input(3'000'000, 'x');
  run.input = input;
  const auto end = run_program(run);
  ASSERT_TRUE(end && end->succeeded());
  EXPECT_EQ(end->output, "done\n");
}

TEST(RunProgram, KeepsNoMoreThanItsLimitOfWhatNeverEnds) {
  ProgramRun run = shell("head -c 5000000 /dev/zero; echo end >&2");
  const auto end = run_program(run);
  ASSERT_TRUE(end && end->succeeded());
  EXPECT_EQ(end->output.size(), kMaxOutputBytes);
  EXPECT_TRUE(end->cut);
  EXPECT_EQ(end->errors, "end\n");
}

TEST_F(Folder, RunProgramEndsTheWholeProcessGroupAtTheDeadline) {
  ProgramRun run = shell("sleep 1000 & echo $$ $! > new; mv new pids; exec sleep 1000");
  const std::string directory = root_.string();
  run.directory = directory;
  run.deadline = now() + 3s;  // longer than it takes to begin
  std::vector<ProcessId> begun;
  std::jthread looks([&] { begun = processes_noted(2); });
  const auto end = run_program(run);
  looks.join();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->why, ProgramEnd::Why::kDeadline);
  ASSERT_EQ(begun.size(), 2u);
  EXPECT_TRUE(all_end(begun));
}

TEST(RunProgram, DoesNotWaitForAChildThatHoldsThePipes) {
  const auto end = run_program(shell("setsid sleep 3 & echo said"));
  ASSERT_TRUE(end && end->succeeded());
  EXPECT_EQ(end->output, "said\n");
}

TEST(LastLine, IsWhatSomebodyCanRead) {
  EXPECT_EQ(last_line("a\nb\x1b[31m\r\n\n"), "b?[31m");
  EXPECT_EQ(last_line(""), "");
  EXPECT_EQ(last_line(std::string(1000, 'a')).size(), 300u);
}

// ---- discovery ----

TEST_F(Folder, OfHostsTheListComesOnce) {
  DiscoveryOptions options;
  options.hosts = {"a", "b:2"};
  Discovery discovery(options);
  EXPECT_THAT(*discovery.take(), ElementsAre(HostSpec{"a", 0}, HostSpec{"b", 2}));
  EXPECT_FALSE(discovery.take());
  EXPECT_FALSE(discovery.complaint());
  EXPECT_FALSE(Discovery(DiscoveryOptions{}).take()) << "no source: this machine only";
}

TEST_F(Folder, OfAHostfileEachChangeComesOnceAndABrokenOneChangesNothing) {
  DiscoveryOptions options;
  options.hostfile = root_ / "hosts";
  options.interval = 2ms;
  Discovery discovery(options);
  std::optional<std::string> said;
  ASSERT_TRUE(eventually([&] { return (said = discovery.complaint()).has_value(); }));
  EXPECT_THAT(*said, HasSubstr("hosts"));
  std::optional<std::vector<HostSpec>> list;
  write("hosts", "a slots=2\n");
  ASSERT_TRUE(eventually([&] { return (list = discovery.take()).has_value(); }));
  EXPECT_THAT(*list, ElementsAre(HostSpec{"a", 2}));
  write("hosts", "a slots=many\n");
  ASSERT_TRUE(eventually([&] { return (said = discovery.complaint()).has_value(); }));
  EXPECT_THAT(*said, HasSubstr("line 1: found \"slots=many\""));
  EXPECT_FALSE(discovery.take());
  write("hosts", "a slots=2\nb\n");
  ASSERT_TRUE(eventually([&] { return (list = discovery.take()).has_value(); }));
  EXPECT_EQ(list->size(), 2u);
}

TEST_F(Folder, OfACommandTheLastGoodListStandsAndAFailureIsToldOnce) {
  write("list", "a:2\n");
  DiscoveryOptions options;
  options.command =
      "echo x >> looks; cat list && ! test -e broken || { echo at $(date +%s.%N) no API key >&2; "
      "exit 7; }";
  options.directory = root_;
  options.interval = 2ms;
  Discovery discovery(options);
  std::optional<std::vector<HostSpec>> list;
  ASSERT_TRUE(eventually([&] { return (list = discovery.take()).has_value(); }));
  EXPECT_THAT(*list, ElementsAre(HostSpec{"a", 2}));
  write("broken", "");
  std::optional<std::string> said;
  ASSERT_TRUE(eventually([&] { return (said = discovery.complaint()).has_value(); }));
  EXPECT_THAT(*said, StartsWith("discovery_command left with exit code 7: at "));
  EXPECT_THAT(*said, EndsWith(" no API key"));
  const auto looks = fs::file_size(root_ / "looks");
  ASSERT_TRUE(eventually([&] { return fs::file_size(root_ / "looks") > looks + 10; }));
  EXPECT_FALSE(discovery.complaint()) << "though its words are others each time";
  EXPECT_FALSE(discovery.take());
  fs::remove(root_ / "broken");
  write("list", "a:2\nb\n");
  ASSERT_TRUE(eventually([&] { return (list = discovery.take()).has_value(); }));
  write("broken", "");
  EXPECT_TRUE(eventually([&] { return discovery.complaint().has_value(); })) << "told anew";
}

TEST_F(Folder, AHangingCommandIsEndedAtItsLimitAndWithTheObject) {
  DiscoveryOptions options;
  options.command = "sleep 1000 & echo $$ $! > new; mv new pids; wait";
  options.directory = root_;
  options.interval = 1h;
  options.patience = 3s;  // longer than it takes to begin
  {
    Discovery discovery(options);
    const auto begun = processes_noted(2);
    ASSERT_EQ(begun.size(), 2u);
    std::optional<std::string> said;
    ASSERT_TRUE(eventually([&] { return (said = discovery.complaint()).has_value(); }));
    EXPECT_THAT(*said, HasSubstr("did not end"));
    EXPECT_TRUE(all_end(begun));
  }
  fs::remove(root_ / "pids");
  options.patience = 1h;
  std::vector<ProcessId> begun;
  {
    Discovery discovery(options);
    begun = processes_noted(2);
    ASSERT_EQ(begun.size(), 2u);
  }
  EXPECT_TRUE(all_end(begun));
}

}  // namespace
}  // namespace surefoot
