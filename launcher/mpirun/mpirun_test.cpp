#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>

#include "common/file.h"
#include "launcher/mpirun/command.h"
#include "launcher/mpirun/gang.h"

namespace surefoot {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

GangSpec spec() {
  GangSpec spec;
  spec.program = "/opt/bin/surefoot-worker";
  spec.job_file = "/jobs/runs/a/job.yaml";
  spec.job_directory = "/jobs/runs/a";
  spec.arena_folder = "/dev/shm/surefoot-0123456789abcdef";
  spec.attempt = Attempt{3};
  spec.workers = 4;
  spec.faults = "kill:rank=1,step=20;kill:all,step=30";
  spec.supervisor_pid = 42;
  spec.known_step = Step{17};
  return spec;
}

TEST(MpirunCommand, NamesTheWorkerWithItsJobLast) {
  const auto argv = mpirun_command(spec()).argv;
  EXPECT_THAT(
      argv,
      ElementsAre("mpirun", "--oversubscribe", "--bind-to", "none", "-np", "4", "--mca",
                  "mpi_yield_when_idle", "1", "--mca", "odls_base_sigkill_timeout", "0", "--mca",
                  "pml", "ob1", "--mca", "btl", "self,vader,tcp", "--mca",
                  "btl_vader_backing_directory", "/dev/shm/surefoot-0123456789abcdef/attempt-3",
                  "--mca", "orte_tmpdir_base", "/dev/shm/surefoot-0123456789abcdef/attempt-3",
                  "/opt/bin/surefoot-worker", "/jobs/runs/a/job.yaml", "--dir", "/jobs/runs/a"));
}

// Two machines and the one that mpirun runs on, which is named second.
GangSpec spec_over_machines() {
  GangSpec over = spec();
  over.nodes = {{"10.0.0.5", 2, "tcp://10.0.0.5:4000", false},
                {"here", 1, "tcp://127.0.0.1:4001", true},
                {"10.0.0.6", 1, "tcp://10.0.0.6:4002", false}};
  over.network = "10.0.0.0/29";
  over.ports = "4000-4099";
  over.rsh = "/opt/bin/surefoot-rsh";
  over.job_id = "0123456789abcdef";
  return over;
}

std::string joined(const std::vector<std::string>& argv) {
  std::string text;
  for (const std::string& word : argv) text += word + " ";
  return text;
}

TEST(MpirunCommand, OverMachinesNamesThemInTheOrderOfTheirRanksAndTheirOwnFiles) {
  const auto argv = mpirun_command(spec_over_machines()).argv;
  const std::string text = joined(argv);
  EXPECT_THAT(text, HasSubstr("--host here:1,10.0.0.5:2,10.0.0.6:1 --map-by slot "));
  EXPECT_THAT(argv, Contains("/opt/bin/surefoot-rsh /jobs/runs/a/logs/attempt-003/nodes.json"));
  for (const char* parameter : {"plm_rsh_no_tree_spawn 1", "orte_leave_session_attached 1",
                                "oob_tcp_if_include 10.0.0.0/29", "btl_tcp_if_include 10.0.0.0/29",
                                "oob_tcp_dynamic_ipv4_ports 4000-4099", "btl_tcp_port_min_v4 4000",
                                "btl_tcp_port_range_v4 100"})
    EXPECT_THAT(text, HasSubstr(std::string("--mca ") + parameter + " "));
  EXPECT_THAT(text, HasSubstr("-x SUREFOOT_ATTEMPT -x SUREFOOT_JOB_DIR -x SUREFOOT_LOG_DIR "
                              "-x SUREFOOT_FAULTS -x SUREFOOT_KNOWN_STEP -x SUREFOOT_WORKERS "
                              "-x SUREFOOT_NETWORK -x MASTER_ADDR "
                              "/dev/shm/surefoot-0123456789abcdef/bin/surefoot-worker "
                              "/dev/shm/surefoot-0123456789abcdef/job.yaml --dir /jobs/runs/a "));
  EXPECT_THAT(text, Not(HasSubstr("orte_launch_agent")));
  GangSpec bundled = spec_over_machines();
  bundled.has_bundle = true;
  EXPECT_THAT(joined(mpirun_command(bundled).argv),
              HasSubstr("orte_launch_agent /dev/shm/surefoot-0123456789abcdef/bin/orted "));
}

TEST(MpirunCommand, NamesTheMachineOfTheFirstRankAsTheMasterAndNeverLocalhost) {
  GangSpec spec = spec_over_machines();
  spec.own_address = "10.0.0.4";
  EXPECT_THAT(mpirun_command(spec).environment, Contains("MASTER_ADDR=10.0.0.4"));
  std::erase_if(spec.nodes, [](const GangNode& node) { return node.local; });
  EXPECT_THAT(mpirun_command(spec).environment, Contains("MASTER_ADDR=10.0.0.5"));
}

TEST(MpirunCommand, OnThisMachineAloneIsTheSameWhetherItIsNamedOrNot) {
  GangSpec named = spec_over_machines();
  named.nodes = {{"here", 4, "tcp://127.0.0.1:4001", true}};
  EXPECT_EQ(mpirun_command(named).argv, mpirun_command(spec()).argv);
}

TEST(MpirunCommand, ListsTheMachinesForItsRemoteShell) {
  const NodeList list = node_list(spec_over_machines());
  ASSERT_EQ(list.nodes.size(), 3u);
  EXPECT_EQ(list.nodes[0].name, "here");
  EXPECT_EQ(list.nodes[1].endpoint, "tcp://10.0.0.5:4000");
  EXPECT_EQ(list.keys_file, "/jobs/runs/a/service.keys");
  EXPECT_EQ(list.log_folder, "/jobs/runs/a/logs/attempt-003");
}

TEST(MpirunCommand, AllowsRootOnlyToRoot) {
  GangSpec as_root = spec();
  as_root.root = true;
  EXPECT_THAT(mpirun_command(as_root).argv, Contains("--allow-run-as-root"));
  EXPECT_THAT(mpirun_command(spec()).argv, Not(Contains("--allow-run-as-root")));
}

TEST(MpirunCommand, HandsTheAttemptToTheWorkers) {
  const SpawnOptions options = mpirun_command(spec());
  EXPECT_THAT(
      options.environment,
      ElementsAre("SUREFOOT_ATTEMPT=3", "SUREFOOT_JOB_DIR=/jobs/runs/a",
                  "SUREFOOT_LOG_DIR=/jobs/runs/a/logs/attempt-003", "SUREFOOT_SUPERVISOR=42",
                  "SUREFOOT_FAULTS=kill:rank=1,step=20;kill:all,step=30", "SUREFOOT_KNOWN_STEP=17",
                  "SUREFOOT_WORKERS=4"));
  EXPECT_EQ(options.output, "/jobs/runs/a/logs/attempt-003/mpirun.log");
  EXPECT_FALSE(options.detach);  // its exit code is wanted
}

TEST(MpirunCommand, PassesChangesOnOnlyWhenTheyAreAccepted) {
  GangSpec accepting = spec();
  accepting.accept_changes = true;
  EXPECT_EQ(mpirun_command(accepting).argv.back(), "--accept-changes");
}

TEST(MpirunCommand, DropsWhatAnOuterMpirunHasLeftInTheEnvironment) {
  SpawnOptions options;
  options.argv = {"env"};
  options.dropped = mpirun_command(spec()).dropped;
  char output[] = "/tmp/surefoot-env-XXXXXX";
  ASSERT_GE(::mkstemp(output), 0);
  options.output = output;
  ::setenv("OMPI_COMM_WORLD_RANK", "3", 1);
  ::setenv("PMIX_NAMESPACE", "x", 1);
  ::setenv("SUREFOOT_TEST_KEPT", "1", 1);
  auto env = spawn(options);
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  ::unsetenv("PMIX_NAMESPACE");
  ASSERT_TRUE(env);
  while (!poll_exit(*env)) ::usleep(1000);
  const std::string text = *read_file(output);
  ::unlink(output);
  EXPECT_THAT(text, HasSubstr("SUREFOOT_TEST_KEPT=1"));
  EXPECT_THAT(text, Not(HasSubstr("OMPI_")));
  EXPECT_THAT(text, Not(HasSubstr("PMIX_")));
}

TEST(BelongsToGang, TellsJobsAndAttemptsApartByWholeEntries) {
  const std::string block =
      std::string("HOME=/root\0SUREFOOT_JOB_DIR=/jobs/a\0SUREFOOT_ATTEMPT=12\0", 60);
  EXPECT_TRUE(belongs_to_gang(block, "/jobs/a", Attempt{12}));
  EXPECT_TRUE(belongs_to_gang(block, "/jobs/a", Attempt{0}));
  EXPECT_FALSE(belongs_to_gang(block, "/jobs/a", Attempt{1}));
  EXPECT_FALSE(belongs_to_gang(block, "/jobs", Attempt{12}));
  EXPECT_FALSE(belongs_to_gang("", "/jobs/a", Attempt{0}));
}

// Real processes: a gang whose "mpirun" is a shell script in PATH, so that what it leaves behind is
// known.
class GangProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/surefoot-gang-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
    path_ = ::getenv("PATH");
    ::setenv("PATH", (root_ / "bin").string().append(":").append(path_).c_str(), 1);
    fs::create_directories(root_ / "bin");
    spec_ = spec();
    spec_.job_directory = root_ / "job";
    spec_.arena_folder = root_ / "arena";
    fs::create_directories(spec_.job_directory);
  }
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    fs::remove_all(root_);
  }
  Gang start(const std::string& script) {
    std::ofstream(root_ / "bin/mpirun") << "#!" << interpreter_ << "\n" << script;
    fs::permissions(root_ / "bin/mpirun", fs::perms::owner_all);
    auto gang = Gang::start(spec_);
    EXPECT_TRUE(gang);
    return *gang;
  }
  static ExitStatus await_exit(Gang& gang) {
    while (!gang.poll()) ::usleep(1000);
    return *gang.poll();
  }
  void await_file(const char* name) {
    while (!fs::exists(root_ / name)) ::usleep(1000);
  }

  fs::path root_;
  std::string path_;
  GangSpec spec_;
  std::string interpreter_ = "/bin/sh";
};

TEST_F(GangProcesses, GivesTheExitCodeAndKeepsTheOutput) {
  Gang gang = start("echo out; echo err >&2; exit 75\n");
  EXPECT_EQ(await_exit(gang).code, 75);
  EXPECT_EQ(*read_file(spec_.job_directory / "logs/attempt-003/mpirun.log"), "out\nerr\n");
}

TEST_F(GangProcesses, EndsEveryProcessOfTheSessionAlsoStoppedOnesOfOtherGroups) {
  // setsid-less background processes in groups of their own, as mpirun's ranks are; one is stopped
  // and could not react to anything but SIGKILL.
  Gang gang = start(fmt::format(
      "set -m\nsleep 1000 &\nsleep 1000 &\nkill -STOP $!\ntouch {}/ready\nwait\n", root_.string()));
  await_file("ready");
  const auto before = gang.processes();
  EXPECT_EQ(before.size(), 3u);
  EXPECT_TRUE(fs::exists(root_ / "arena/attempt-3"));
  ASSERT_TRUE(gang.end(now() + std::chrono::seconds(10)));
  for (const ProcessId& process : before) EXPECT_FALSE(is_alive(process));
  EXPECT_FALSE(fs::exists(root_ / "arena/attempt-3"));
  EXPECT_EQ(await_exit(gang).signal, SIGKILL);  // end() does not take the exit away from poll()
}

TEST_F(GangProcesses, AreFoundWhenOnlyTheWorkersOutlivedMpirun) {
  Gang gang = start(fmt::format("set -m\nsleep 1000 &\ntouch {}/ready\nexit 3\n", root_.string()));
  EXPECT_EQ(await_exit(gang).code, 3);
  EXPECT_EQ(gang.processes().size(), 1u);
  ASSERT_TRUE(gang.end(now() + std::chrono::seconds(10)));
  EXPECT_TRUE(gang.processes().empty());
}

TEST_F(GangProcesses, AreFoundByALaterSupervisorWithOrWithoutTheirNumber) {
  // Programs with the names that a real gang's have; a third process with the same environment is a
  // shell, and not of the gang.
  fs::copy_file(fs::canonical("/bin/sh"), root_ / "bin/orterun");
  fs::copy_file(fs::canonical("/bin/sleep"), root_ / "bin/surefoot-worker");
  interpreter_ = (root_ / "bin/orterun").string();
  Gang gang = start(fmt::format(
      "{0}/bin/surefoot-worker 1000 &\nsleep 1000 &\ntouch {0}/ready\nwait\n", root_.string()));
  await_file("ready");
  while (gang.processes().size() != 3u) ::usleep(1000);
  EXPECT_EQ(Gang::left_behind(gang.mpirun(), spec_).processes().size(), 3u);
  Gang unknown = Gang::left_behind(ProcessId{}, spec_);
  while (unknown.processes().size() != 2u)
    ::usleep(1000);  // between fork and exec the worker is still called orterun
  EXPECT_FALSE(unknown.poll());
  GangSpec other = spec_;
  other.attempt = Attempt{4};
  EXPECT_TRUE(Gang::left_behind(ProcessId{}, other).processes().empty());
  ASSERT_TRUE(unknown.end(now() + std::chrono::seconds(10)));
  EXPECT_TRUE(unknown.poll());
  EXPECT_EQ(await_exit(gang).signal, SIGKILL);
  EXPECT_EQ(gang.processes().size(), 1u);
  ASSERT_TRUE(gang.end(now() + std::chrono::seconds(10)));
}

TEST_F(GangProcesses, DoNotIncludeAnotherJobsProcessesInTheSameSession) {
  // The service that a worker starts has a session of its own; a process of another job directory
  // is never touched.
  Gang gang = start(fmt::format(
      "SUREFOOT_JOB_DIR=/elsewhere sleep 1000 &\necho $! > {0}/other\ntouch {0}/ready\nexit 0\n",
      root_.string()));
  await_exit(gang);
  const auto other = process_of(std::stoi(*read_file(root_ / "other")));
  ASSERT_TRUE(other);
  while (read_file(fmt::format("/proc/{}/comm", other->pid)) &&
         *read_file(fmt::format("/proc/{}/comm", other->pid)) != "sleep\n")
    ::usleep(1000);
  ASSERT_TRUE(gang.end(now() + std::chrono::seconds(10)));
  EXPECT_TRUE(is_alive(*other));
  ASSERT_TRUE(end_processes({*other}, now() + std::chrono::seconds(10)));
}

TEST_F(GangProcesses, SaysWhatToInstallWhenThereIsNoMpirun) {
  ::setenv("PATH", (root_ / "bin").c_str(), 1);
  auto gang = Gang::start(spec_);
  ASSERT_FALSE(gang);
  EXPECT_EQ(gang.error().code, Code::kInvalid);
  EXPECT_THAT(gang.error().message, HasSubstr("openmpi-bin"));
  EXPECT_FALSE(fs::exists(attempt_folder(spec_.arena_folder, spec_.attempt))) << "left behind";
}

}  // namespace
}  // namespace surefoot
