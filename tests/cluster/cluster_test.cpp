#include "tests/cluster/cluster.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

namespace surefoot::cluster {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

// A folder of the machine that hosts share. In /tmp, which is private to each of them.
class SharedFolder {
 public:
  SharedFolder() {
    std::string form = (fs::temp_directory_path() / "surefoot-cluster-test-XXXXXX").string();
    SUREFOOT_CHECK(::mkdtemp(form.data()) != nullptr);
    path_ = form;
  }
  ~SharedFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

std::string trimmed(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// What of this machine a cluster could leave something in.
struct Machine {
  std::set<std::string> mounts;
  std::set<std::string> devices;
  std::set<std::string> files;
  friend bool operator==(const Machine&, const Machine&) = default;

  static Machine look() {
    Machine machine;
    std::ifstream mounts("/proc/self/mounts");
    for (std::string line; std::getline(mounts, line);) machine.mounts.insert(line);
    for (const auto& entry : fs::directory_iterator("/sys/class/net"))
      machine.devices.insert(entry.path().filename());
    for (const char* folder : {"/run/netns", "/etc/ssh", "/root/.ssh"}) {
      std::error_code absent;
      for (const auto& entry : fs::directory_iterator(folder, absent))
        machine.files.insert(entry.path());
    }
    return machine;
  }
};

template <class Visit>
void for_each_process(Visit visit) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    if (std::isdigit(static_cast<unsigned char>(entry.path().filename().string()[0])) != 0)
      visit(entry.path());
  }
}
std::string namespace_of(const fs::path& process, const char* kind) {
  std::error_code gone;
  return fs::read_symlink(process / "ns" / kind, gone).string();
}
constexpr std::array kKinds = {"pid", "net", "mnt", "uts", "ipc"};

// Those that the keeper and the first processes of a cluster's hosts live in, but we do not.
// `name`: what the cluster's name begins with.
std::set<std::string> namespaces_of(const std::string& name) {
  std::set<std::string> found;
  for_each_process([&](const fs::path& process) {
    const auto line = read_file(process / "cmdline");
    if (!line || line->find("--cluster" + std::string(1, '\0') + name) == std::string::npos) return;
    for (const char* kind : kKinds) found.insert(namespace_of(process, kind));
  });
  for (const char* kind : kKinds) found.erase(namespace_of("/proc/self", kind));
  return found;
}
int processes_in(const std::set<std::string>& namespaces) {
  int count = 0;
  for_each_process([&](const fs::path& process) {
    for (const char* kind : kKinds) {
      if (namespaces.contains(namespace_of(process, kind))) {
        ++count;
        return;
      }
    }
  });
  return count;
}

class ClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cluster_unavailable(); !why.empty()) GTEST_SKIP() << why;
  }
  void make(int hosts, std::vector<std::string> shared = {}) {
    auto cluster = Cluster::start({hosts, std::move(shared)});
    ASSERT_TRUE(cluster) << cluster.error().message;
    cluster_ = std::move(*cluster);
  }
  Host host(int number) { return cluster_->host(number); }
  // Standard output of a program that must succeed.
  std::string said(int number, const std::vector<std::string>& argv) {
    const CommandResult result = host(number).run(argv);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return trimmed(result.output);
  }
  bool reaches(int from, int to) {
    const CommandResult result = host(from).run(
        {"ssh", "-o", "ConnectTimeout=1", host(to).name(), "true"}, {.patience = 3s});
    return result.exit_code == 0;
  }

  std::unique_ptr<Cluster> cluster_;
};

TEST_F(ClusterTest, HostsHaveNamesOfTheirOwnAndReachEachOtherBySsh) {
  make(2);
  EXPECT_EQ(said(0, {"hostname"}), "host0");
  EXPECT_EQ(said(0, {"ssh", "host1", "hostname"}), "host1");
  EXPECT_EQ(said(1, {"ssh", host(0).address(), "hostname"}), "host0");
}

TEST_F(ClusterTest, AHostSeesItsOwnProcessesAndMemoryOnly) {
  make(2);
  EXPECT_EQ(said(0, {"sh", "-c", "echo mine > /dev/shm/a; echo mine > /tmp/a; ls /dev/shm /tmp"}),
            "/dev/shm:\na\n\n/tmp:\na");
  EXPECT_EQ(said(1, {"sh", "-c", "ls /dev/shm /tmp"}), "/dev/shm:\n\n/tmp:");
  // Its first process, the shell, and what that starts.
  EXPECT_LE(std::stoi(said(0, {"sh", "-c", "ls -d /proc/[0-9]* | wc -l"})), 4);
  EXPECT_NE(said(0, {"cat", "/proc/sys/kernel/random/boot_id"}),
            said(1, {"cat", "/proc/sys/kernel/random/boot_id"}));
  EXPECT_NE(host(0).run({"sh", "-c", "kill -0 " + std::to_string(::getpid())}).exit_code, 0);
}

TEST_F(ClusterTest, NothingLeadsOutOfTheCluster) {
  make(1);
  EXPECT_EQ(said(0, {"sh", "-c", "ls /proc/sys/net/ipv4/conf | sort | tr '\\n' ' '"}),
            "all default eth0 lo ");
  // No default route; the only one is that of the cluster's own network (10.77.0.0, in hex).
  EXPECT_EQ(said(0, {"sh", "-c", "tail -n +2 /proc/net/route | cut -f2"}), "00004D0A");
}

TEST_F(ClusterTest, ASharedFolderIsTheSameForAll) {
  const SharedFolder folder;
  make(2, {folder.path()});
  EXPECT_EQ(said(0, {"sh", "-c", "echo hello > " + folder.path() + "/a"}), "");
  EXPECT_EQ(said(1, {"cat", folder.path() + "/a"}), "hello");
  EXPECT_TRUE(fs::exists(folder.path() + "/a"));
}

TEST_F(ClusterTest, MpirunOverSshMakesAGangOfTwoHosts) {
  make(2);
  const std::string hosts = said(0, {"mpirun", "--allow-run-as-root", "--host", "host0:1,host1:1",
                                     "--mca", "oob_tcp_if_include", "10.77.0.0/24", "hostname"});
  std::istringstream in(hosts);
  std::set<std::string> names;
  for (std::string line; std::getline(in, line);) names.insert(line);
  EXPECT_EQ(names, (std::set<std::string>{"host0", "host1"}));
}

TEST_F(ClusterTest, ACutHostIsReachedAgainWhenItIsHealed) {
  make(3);
  ASSERT_TRUE(host(1).cut());
  EXPECT_FALSE(reaches(0, 1));
  EXPECT_TRUE(reaches(0, 2));
  ASSERT_TRUE(host(1).heal());
  EXPECT_TRUE(reaches(0, 1));
  ASSERT_TRUE(host(0).cut(host(2)));
  EXPECT_FALSE(reaches(2, 0));
  EXPECT_TRUE(reaches(2, 1));
}

// A connection does not notice: no packet says that its other end is gone.
TEST_F(ClusterTest, ALostHostSaysNothingToAnyone) {
  make(2);
  auto connection = host(0).start({"ssh", "host1", "echo", "there;", "sleep", "1000"}, {});
  ASSERT_TRUE(connection);
  while (connection->output() != "there\n") std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(host(1).kill());
  EXPECT_TRUE(connection->wait(now() + 300ms).timed_out);
  EXPECT_FALSE(reaches(0, 1));
  EXPECT_NE(host(1).run({"true"}).exit_code, 0);
}

TEST_F(ClusterTest, ARebootEndsAllProcessesAndEmptiesTheMemory) {
  make(2);
  const std::string before = said(1, {"cat", "/proc/sys/kernel/random/boot_id"});
  said(1, {"sh", "-c", "echo a > /dev/shm/a; echo a > /tmp/a; sleep 1000 >/dev/null 2>&1 &"});
  ASSERT_TRUE(host(1).reboot());
  EXPECT_NE(said(1, {"cat", "/proc/sys/kernel/random/boot_id"}), before);
  EXPECT_EQ(said(1, {"sh", "-c", "ls /dev/shm /tmp"}), "/dev/shm:\n\n/tmp:");
  EXPECT_EQ(said(1, {"sh", "-c", "cat /proc/[0-9]*/comm | grep -c sleep || true"}), "0");
  EXPECT_TRUE(reaches(0, 1));
  ASSERT_TRUE(host(1).kill());
  ASSERT_TRUE(host(1).reboot());
  EXPECT_TRUE(reaches(0, 1));
}

TEST_F(ClusterTest, AFrozenHostDoesNothingUntilItIsThawed) {
  make(2);
  auto counting = host(1).start({"sh", "-c", "while true; do echo; done"}, {});
  ASSERT_TRUE(counting);
  while (counting->output().empty()) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(host(1).freeze());
  const std::size_t stopped_at = counting->output().size();
  EXPECT_FALSE(reaches(0, 1));  // takes a second
  EXPECT_EQ(counting->output().size(), stopped_at);
  EXPECT_TRUE(host(1).run({"true"}, {.patience = 100ms}).timed_out);
  ASSERT_TRUE(host(1).thaw());
  while (counting->output().size() == stopped_at) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(reaches(0, 1));
}

TEST_F(ClusterTest, ALostFrozenHostCanBeBroughtBack) {
  make(2);
  ASSERT_TRUE(host(1).freeze());
  ASSERT_TRUE(host(1).kill());
  ASSERT_TRUE(host(1).reboot());
  EXPECT_TRUE(reaches(0, 1));
}

TEST_F(ClusterTest, PacketsAreDelayedAndDroppedAsAskedFor) {
  make(2);
  ASSERT_TRUE(host(1).impair(50ms, 0));
  const CommandResult slow = host(0).run({"ssh", "host1", "true"});
  EXPECT_EQ(slow.exit_code, 0) << slow.output;
  EXPECT_GT(slow.seconds, 0.3);  // ssh needs more than three round trips
  ASSERT_TRUE(host(1).impair(Duration::zero(), 1.0));
  EXPECT_FALSE(reaches(0, 1));
  ASSERT_TRUE(host(1).impair(Duration::zero(), 0));
  EXPECT_TRUE(reaches(0, 1));
}

TEST_F(ClusterTest, ANewHostIsKnownToTheOthers) {
  make(1);
  auto fresh = cluster_->add();
  ASSERT_TRUE(fresh) << fresh.error().message;
  EXPECT_EQ(fresh->name(), "host1");
  EXPECT_TRUE(reaches(0, 1));
  EXPECT_TRUE(reaches(1, 0));
}

TEST_F(ClusterTest, AHostCanHaveOneMoreAddressThatNoOtherSees) {
  make(2);
  ASSERT_TRUE(host(0).add_address("192.0.2.1"));
  EXPECT_EQ(said(0, {"ssh", "-o", "StrictHostKeyChecking=no", "192.0.2.1", "hostname"}), "host0");
  EXPECT_NE(host(1).run({"ssh", "-o", "ConnectTimeout=1", "192.0.2.1", "true"}).exit_code, 0);
}

TEST_F(ClusterTest, WhatRunsTooLongIsEndedWithEverythingSaidSoFar) {
  make(1);
  const CommandResult result =
      host(0).run({"sh", "-c", "echo begun; exec sleep 1000"}, {.patience = 300ms});
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.output, "begun\n");
  EXPECT_EQ(said(0, {"sh", "-c", "cat /proc/[0-9]*/comm | grep -c sleep || true"}), "0");
}

TEST_F(ClusterTest, ExitCodesAndSignalsComeThrough) {
  make(1);
  EXPECT_EQ(host(0).run({"sh", "-c", "exit 7"}).exit_code, 7);
  EXPECT_EQ(host(0).run({"sh", "-c", "kill -9 $$"}).exit_code, 128 + 9);
  auto waiting = host(0).start({"sh", "-c", "trap 'exit 3' USR1; echo x; while :; do :; done"}, {});
  ASSERT_TRUE(waiting);
  while (waiting->output().empty()) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(waiting->signal(SIGUSR1));
  EXPECT_EQ(waiting->wait(now() + kPatience).exit_code, 3);
}

TEST_F(ClusterTest, NothingIsLeftOfIt) {
  const Machine before = Machine::look();
  make(3);
  said(0, {"ssh", "host1", "nohup sleep 1000 >/dev/null 2>&1 &"});
  ASSERT_TRUE(host(2).freeze());
  const std::set<std::string> namespaces = namespaces_of(cluster_->name());
  EXPECT_EQ(namespaces.size(), 2 + 3 * kKinds.size());  // the keeper has two of its own
  EXPECT_GE(processes_in(namespaces), 5);
  cluster_.reset();
  EXPECT_EQ(processes_in(namespaces), 0);
  EXPECT_EQ(Machine::look(), before);
}

TEST_F(ClusterTest, NothingIsLeftOfItWhenItsOwnerIsKilled) {
  const Machine before = Machine::look();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t owner = ::fork();
  if (owner == 0) {
    auto cluster = Cluster::start({3, {}});
    auto running = cluster ? (*cluster)->host(1).start({"sleep", "1000"}, {})
                           : error(Code::kRetry, "no cluster");
    const char word = running ? 'y' : 'n';
    if (::write(ready[1], &word, 1) == 1) ::pause();
    ::_exit(1);
  }
  char word = 0;
  ASSERT_EQ(::read(ready[0], &word, 1), 1);
  ASSERT_EQ(word, 'y');
  const std::set<std::string> namespaces = namespaces_of(std::to_string(owner) + "-");
  EXPECT_GE(processes_in(namespaces), 5);
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  const Time deadline = now() + kPatience;
  while (processes_in(namespaces) > 0 && now() < deadline) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(processes_in(namespaces), 0);
  EXPECT_EQ(Machine::look(), before);
}

TEST_F(ClusterTest, TwoClustersDoNotSeeEachOther) {
  make(2);
  auto other = Cluster::start({2, {}});
  ASSERT_TRUE(other);
  said(0, {"sh", "-c", "echo mine > /tmp/a"});
  EXPECT_NE((*other)->host(0).run({"ls", "/tmp/a"}).exit_code, 0);
  // Same addresses, other keys and other wires.
  EXPECT_EQ(trimmed((*other)->host(0).run({"ssh", "host1", "hostname"}).output), "host1");
}

}  // namespace
}  // namespace surefoot::cluster
