// Rules over made-up machines, and readers of /proc, /sys and /etc over made-up trees.
#include "launcher/doctor/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "launcher/doctor/links.h"

namespace surefoot::doctor {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

class Tree : public ::testing::Test {
 protected:
  Tree() {
    std::string form = (fs::temp_directory_path() / "surefoot-machine-XXXXXX").string();
    EXPECT_NE(::mkdtemp(form.data()), nullptr);
    root_ = form;
  }
  ~Tree() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  fs::path root_;
};

// ---- processors ----

TEST(Processors, AreEnoughForTheJobOrTheNumberThatFitsIsNamed) {
  const ProcessorFacts facts{.usable = 8, .cores = 4, .quota = {}, .load = 0.5};
  const Finding fits = check_processors(facts, {.workers = 4, .threads = 2});
  EXPECT_EQ(fits.verdict, Verdict::kOk);
  EXPECT_THAT(fits.found, HasSubstr("8 processors on 4 cores, load 0.5"));
  const Finding over = check_processors(facts, {.workers = 5, .threads = 2});
  EXPECT_EQ(over.verdict, Verdict::kWarn);
  EXPECT_EQ(over.cure, "resources.workers_per_node: 4");
  EXPECT_EQ(check_processors(facts, {}).verdict, Verdict::kOk) << "no job";
}

TEST(Processors, OfAControlGroupCountWhereTheyAreFewer) {
  const ProcessorFacts facts{.usable = 64, .cores = 32, .quota = 2.5, .load = 0};
  const Finding finding = check_processors(facts, {.workers = 3, .threads = 1});
  EXPECT_EQ(finding.verdict, Verdict::kWarn);
  EXPECT_THAT(finding.found, HasSubstr("held to 2.5"));
  EXPECT_EQ(finding.cure, "resources.workers_per_node: 2");
  EXPECT_THAT(check_processors(facts, {.workers = 1, .threads = 4}).cure,
              HasSubstr("threads_per_worker"));
}

TEST_F(Tree, TheTightestQuotaOfAllGroupsAboveIsRead) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  write("proc/loadavg", "1.25 0.5 0.1 1/100 4242\n");
  for (const char* cpu : {"cpu0", "cpu1"})
    write(std::string("sys/devices/system/cpu/") + cpu + "/topology/thread_siblings_list", "0-1\n");
  const ProcessorFacts facts = look_at_processors(root_);
  EXPECT_EQ(facts.quota, 1.5);
  EXPECT_EQ(facts.cores, 1);
  EXPECT_EQ(facts.load, 1.25);
}

// ---- memory ----

TEST_F(Tree, MemoryIsReadAndPressureIsAWarning) {
  write("proc/meminfo",
        "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\nSwapTotal:       2097152 kB\n"
        "SwapFree:        1048576 kB\n");
  write("proc/pressure/memory", "some avg10=0.00 avg60=12.50 avg300=1.00 total=1\nfull avg10=0\n");
  const MemoryFacts facts = look_at_memory(root_);
  EXPECT_EQ(facts.available_bytes, 8 * kGiB);
  EXPECT_EQ(facts.swap_used_bytes, 1 * kGiB);
  EXPECT_EQ(facts.cgroup_bytes, -1);
  const Finding finding = check_memory(facts);
  EXPECT_EQ(finding.verdict, Verdict::kWarn);
  EXPECT_THAT(finding.found, HasSubstr("8.0 GiB of 16.0 GiB available, 1.0 GiB of 2.0 GiB swap"));
  EXPECT_THAT(finding.found, HasSubstr("12.5 % of the last minute"));
}

TEST(Memory, WithoutPressureIsOk) {
  MemoryFacts facts;
  facts.stalled_percent = 0.2;
  EXPECT_EQ(check_memory(facts).verdict, Verdict::kOk);
}

// ---- shared memory ----

TEST(SharedMemory, OfAContainersDefaultSizeIsAWarningThatNamesTheOption) {
  SharedMemoryFacts facts;
  facts.folder = "/dev/shm";
  facts.memory = true;
  facts.total_bytes = facts.free_bytes = 64 << 20;
  const Finding tiny = check_shared_memory(facts);
  EXPECT_EQ(tiny.verdict, Verdict::kWarn);
  EXPECT_THAT(tiny.cure, HasSubstr("--shm-size"));
  facts.total_bytes = facts.free_bytes = 8 * kGiB;
  facts.arenas = 1;
  facts.arenas_bytes = kGiB;
  const Finding large = check_shared_memory(facts);
  EXPECT_EQ(large.verdict, Verdict::kOk);
  EXPECT_THAT(large.found, HasSubstr("8.0 GiB free, 1.0 GiB held by the snapshots of 1 job"));
}

TEST(SharedMemory, ThatCannotBeWrittenIsBadAndADiskAWarning) {
  SharedMemoryFacts facts;
  facts.total_bytes = facts.free_bytes = 100 * kGiB;
  EXPECT_EQ(check_shared_memory(facts).verdict, Verdict::kWarn) << "no tmpfs";
  facts.fault = "cannot write to /mnt: Read-only file system";
  EXPECT_EQ(check_shared_memory(facts).verdict, Verdict::kBad);
  EXPECT_FALSE(look_at_shared_memory("/does/not/exist", 1).fault.empty());
}

// ---- limits ----

LimitFacts generous() {
  LimitFacts facts;
  facts.open_files = {1024, 4096};
  facts.locked_bytes = {8 << 20, 8 << 20};
  facts.core_bytes = {0, kUnlimited};
  return facts;
}

TEST(Limits, OfAnOrdinaryMachineAreOk) {
  for (const Finding& finding : check_limits(generous(), 8))
    EXPECT_EQ(finding.verdict, Verdict::kOk) << line_of(finding);
}

TEST(Limits, OnOpenFilesGrowWithTheWorkersAndTheHardOneDecidesTheCure) {
  const Finding many = check_limits(generous(), 200)[0];
  EXPECT_EQ(many.verdict, Verdict::kBad);
  EXPECT_EQ(many.cure, "ulimit -n 1856");
  EXPECT_THAT(check_limits(generous(), 2000)[0].cure, HasSubstr("limits.conf"));
  LimitFacts few = generous();
  few.open_files.soft = 200;
  EXPECT_EQ(check_limits(few, 0)[0].verdict, Verdict::kBad);
}

TEST(Limits, OnLockedMemoryMatterWithRdmaOnly) {
  LimitFacts facts = generous();
  facts.rdma = true;
  EXPECT_EQ(check_limits(facts, 1)[1].verdict, Verdict::kWarn);
  EXPECT_THAT(check_limits(facts, 1)[1].cure, HasSubstr("memlock unlimited"));
  facts.locked_bytes = {kUnlimited, kUnlimited};
  EXPECT_EQ(check_limits(facts, 1)[1].verdict, Verdict::kOk);
}

TEST(Limits, CoreFilesToADiskAreAWarningAndToAProgramNot) {
  LimitFacts facts = generous();
  facts.core_bytes.soft = kUnlimited;
  facts.core_pattern = "core";
  EXPECT_EQ(check_limits(facts, 1)[2].verdict, Verdict::kWarn);
  EXPECT_EQ(check_limits(facts, 1)[2].cure, "ulimit -c 0");
  facts.core_pattern = "|/usr/lib/systemd/systemd-coredump %P";
  EXPECT_EQ(check_limits(facts, 1)[2].verdict, Verdict::kOk);
}

// ---- the log-in manager ----

LogindFacts ordinary_user() {
  LogindFacts facts;
  facts.runs = true;
  facts.uid = 1000;
  return facts;
}

TEST(Logind, RemovesTheSnapshotsOfAnOrdinaryUserByDefault) {
  const Finding finding = check_logind(ordinary_user());
  EXPECT_EQ(finding.verdict, Verdict::kWarn);
  EXPECT_THAT(finding.found, HasSubstr("RemoveIPC=yes"));
  EXPECT_THAT(finding.cure, HasSubstr("loginctl enable-linger"));
}

TEST(Logind, IsHarmlessForRootALingeringUserAnotherFolderAndRemoveIpcNo) {
  LogindFacts facts = ordinary_user();
  facts.uid = 0;
  EXPECT_EQ(check_logind(facts).verdict, Verdict::kOk);
  facts = ordinary_user();
  facts.lingers = true;
  EXPECT_EQ(check_logind(facts).verdict, Verdict::kOk);
  facts = ordinary_user();
  facts.arena_in_dev_shm = false;
  EXPECT_EQ(check_logind(facts).verdict, Verdict::kOk);
  facts = ordinary_user();
  facts.remove_ipc = false;
  EXPECT_EQ(check_logind(facts).verdict, Verdict::kOk);
  facts = ordinary_user();
  facts.runs = false;
  EXPECT_EQ(check_logind(facts).verdict, Verdict::kOk);
}

TEST(Logind, ThatEndsProcessesIsAWarningForLingeringUsersToo) {
  LogindFacts facts = ordinary_user();
  facts.kill_user_processes = facts.lingers = true;
  EXPECT_EQ(check_logind(facts).verdict, Verdict::kWarn);
}

TEST(Logind, OnlyWordsOfItsSectionCount) {
  LogindFacts facts;
  apply_logind_conf("RemoveIPC=no\n[Other]\nRemoveIPC=no\n", facts);
  EXPECT_TRUE(facts.remove_ipc);
  apply_logind_conf("[Login]\n#RemoveIPC=no\nRemoveIPC=perhaps\n", facts);
  EXPECT_TRUE(facts.remove_ipc);
  apply_logind_conf("[Login]\n  RemoveIPC = off \nKillUserProcesses=1", facts);
  EXPECT_FALSE(facts.remove_ipc);
  EXPECT_TRUE(facts.kill_user_processes);
}

TEST_F(Tree, DropInsOverruleTheMainFileByNameAndEtcHidesTheSameName) {
  write("run/systemd/seats/seat0", "");
  write("etc/systemd/logind.conf", "[Login]\nRemoveIPC=no\n");
  EXPECT_FALSE(look_at_logind(root_, "").remove_ipc);
  write("usr/lib/systemd/logind.conf.d/50-a.conf", "[Login]\nRemoveIPC=yes\n");
  EXPECT_TRUE(look_at_logind(root_, "").remove_ipc);
  write("etc/systemd/logind.conf.d/50-a.conf", "[Login]\nKillUserProcesses=yes\n");
  const LogindFacts facts = look_at_logind(root_, "/mnt/arena");
  EXPECT_TRUE(facts.runs);
  EXPECT_FALSE(facts.remove_ipc);
  EXPECT_TRUE(facts.kill_user_processes);
  EXPECT_FALSE(facts.arena_in_dev_shm);
}

// ---- RDMA and networks ----

TEST_F(Tree, RdmaPortsAreReadAndOneThatIsDownIsAWarning) {
  EXPECT_EQ(check_rdma(look_at_rdma(root_))[0].verdict, Verdict::kOk);
  const std::string port = "sys/class/infiniband/mlx5_0/ports/1/";
  write(port + "state", "4: ACTIVE\n");
  write(port + "rate", "400 Gb/sec (4X NDR)\n");
  write(port + "link_layer", "InfiniBand\n");
  write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
  const auto findings = check_rdma(look_at_rdma(root_));
  ASSERT_THAT(findings, SizeIs(2));
  EXPECT_EQ(line_of(findings[0]),
            "ok           rdma mlx5_0/1      ACTIVE, 400 Gb/sec (4X NDR), InfiniBand");
  EXPECT_EQ(findings[1].on, "mlx5_1/1");
  EXPECT_EQ(findings[1].verdict, Verdict::kWarn);
  EXPECT_TRUE(look_at_limits(root_).rdma);
}

NetworkFacts two_networks() {
  NetworkFacts facts;
  facts.interfaces = {{"lo", {"127.0.0.1", "::1"}, 0, 65536},
                      {"eth0", {"10.0.0.5", "fe80::1"}, 25000, 9000},
                      {"docker0", {"172.17.0.1"}, 0, 1500}};
  return facts;
}

TEST(Network, OfOneMachineIsTold) {
  const Finding finding = check_network(two_networks());
  EXPECT_EQ(finding.verdict, Verdict::kOk);
  EXPECT_THAT(finding.found,
              HasSubstr("eth0 10.0.0.5 (25000 Mb/s, MTU 9000), docker0 172.17.0.1 (MTU 1500);"));
}

TEST(Network, ThatTheJobAsksForIsUsedOrMissed) {
  NetworkFacts facts = two_networks();
  facts.many_machines = true;
  facts.wanted = "10.0.0.0/16";
  EXPECT_THAT(check_network(facts).found,
              HasSubstr("services listen on 10.0.0.5, MPI uses 10.0.0.0/16"));
  EXPECT_THAT(check_network(facts).found, Not(HasSubstr("NCCL")));
  facts.gpus = true;
  EXPECT_THAT(check_network(facts).found, HasSubstr("MPI uses 10.0.0.0/16, NCCL =eth0"));
  facts.nccl_interfaces = "docker0";
  EXPECT_THAT(check_network(facts).found, HasSubstr("; NCCL_SOCKET_IFNAME=docker0; services"));
  EXPECT_THAT(check_network(facts).found, Not(HasSubstr("NCCL =")));
  facts.wanted = "192.168.0.0/16";
  const Finding missed = check_network(facts);
  EXPECT_EQ(missed.verdict, Verdict::kBad);
  EXPECT_EQ(missed.cure, "resources.network");
}

TEST(Network, WithOthersAndOnlyLoopbackIsBad) {
  NetworkFacts facts;
  facts.interfaces = {{"lo", {"127.0.0.1"}, 0, 65536}};
  EXPECT_EQ(check_network(facts).verdict, Verdict::kOk);
  facts.many_machines = true;
  EXPECT_EQ(check_network(facts).verdict, Verdict::kBad);
}

}  // namespace
}  // namespace surefoot::doctor
