// Machines are reached over ssh, and mpirun starts workers on them without it: real services, real
// mpirun, three hosts of a test cluster, and a fourth that only supervises. They share the programs
// and no job directory.
//
// Also a program that the fourth runs: `ssh_launch_test --supervise ROOT`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <thread>

#include "checkpoint/arena.h"
#include "common/file.h"
#include "common/test_paths.h"
#include "configs/job_directory.h"
#include "launcher/mpirun/gang.h"
#include "launcher/nodes/bootstrap.h"
#include "launcher/nodes/network.h"
#include "tests/cluster/cluster.h"

namespace surefoot::e2e {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int kHosts = 3;
constexpr const char* kJobId = "00000000e2e0a55b";
const std::string kJob = R"(
name: apart
model: {kind: mlp, hidden: [8]}
data: {kind: synthetic, samples: 10}
train: {max_steps: 10, global_batch_size: 12, micro_batch_size: 1, optimizer: {kind: sgd, lr: 0.1}}
resources: {hosts: ["host0:2", host1, "root@host2:2"], ports: 41000-41999}
)";
// Says who it is, has a child of its own, and never ends.
constexpr const char* kWorker = R"(#!/bin/sh
exec > "$SUREFOOT_LOG_DIR/rank-$OMPI_COMM_WORLD_RANK.log" 2>&1
echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname) attempt $SUREFOOT_ATTEMPT"
echo "arguments $*"
sleep 1000 &
wait
)";

// ---- what runs on the fourth host ----

struct Supervisor {
  explicit Supervisor(const fs::path& root) : directory{root / "run"} {
    settings.job_id = kJobId;
    settings.job = kJob;
    settings.directory = directory.root;
    settings.arena_folder = arena_folder("", kJobId);
    settings.programs = root / "bin";
    SUREFOOT_CHECK(directory.claim("apart", kJobId));
    settings.keys = *make_service_keys(directory.service_keys());
  }

  std::vector<GangNode> reach() {
    std::vector<GangNode> nodes(kHosts);
    std::vector<std::thread> threads;
    for (int host = 0; host < kHosts; ++host) {
      threads.emplace_back([this, host, &node = nodes[static_cast<std::size_t>(host)]] {
        const std::string name = host == 2 ? "root@host2" : fmt::format("host{}", host);
        const auto access = bootstrap(name, settings, now() + 30s);
        if (!access) return say("error", access.error().message);
        node = {access->address, host == 1 ? 1 : 2, access->endpoint, access->local};
      });
    }
    for (std::thread& thread : threads) thread.join();
    return nodes;
  }

  GangSpec gang(const std::vector<GangNode>& nodes, Attempt attempt) const {
    GangSpec spec;
    spec.program = settings.programs / "fake";
    spec.job_directory = directory.root;
    spec.arena_folder = settings.arena_folder;
    spec.attempt = attempt;
    spec.workers = 5;
    spec.nodes = nodes;
    std::vector<std::string> addresses = {*address_towards(nodes.front().name)};
    for (const GangNode& node : nodes) addresses.push_back(node.name);
    spec.network = mpi_network("", addresses);
    spec.ports = "41000-41999";
    spec.rsh = programs_folder() / "surefoot-rsh";
    spec.job_id = kJobId;
    spec.root = true;
    return spec;
  }

  Result<service::Reply> ask(const GangNode& node, service::Request request) const {
    ServiceClient client(ServiceAddress::elsewhere(node.endpoint, client_half(settings.keys)),
                         kJobId);
    return client.call(std::move(request), now() + 10s);
  }
  void end(const std::vector<GangNode>& nodes) const {
    for (const GangNode& node : nodes) {
      service::Request request;
      request.mutable_end_gang();
      const auto ended = ask(node, request);
      if (!ended) say("error", ended.error().message);
    }
  }
  void free(const std::vector<GangNode>& nodes) const {
    for (const GangNode& node : nodes) {
      service::Request request;
      request.mutable_shutdown()->set_remove(true);
      const auto freed = ask(node, request);
      if (!freed) say("error", freed.error().message);
    }
  }

  static void say(const std::string& what, const std::string& text) {
    std::cout << what << ' ' << text << std::endl;
  }

  JobDirectory directory;
  BootstrapSettings settings;
};

// Until the file appears, which the test makes: what follows is then to be done.
void await(const fs::path& file) {
  while (!fs::exists(file)) std::this_thread::sleep_for(2ms);
}

int supervise(const fs::path& root) {
  Supervisor supervisor(root);
  const Time begun = now();
  const auto nodes = supervisor.reach();
  Supervisor::say("reached", fmt::format("{:.2f}", seconds(now() - begun)));
  for (int number = 1; number <= 2; ++number) {
    auto gang = Gang::start(supervisor.gang(nodes, Attempt{number}));
    if (!gang) return Supervisor::say("error", gang.error().message), 1;
    Supervisor::say("launched", std::to_string(number));
    await(root / fmt::format("end-{}", number));
    // The first ends by its supervisor, the second by the death of mpirun alone.
    if (number == 1) supervisor.end(nodes);
    const Status ended = gang->end(now() + 10s);
    if (!ended) Supervisor::say("error", ended.error().message);
    Supervisor::say("ended", std::to_string(number));
    await(root / fmt::format("looked-{}", number));
    if (number == 2) supervisor.end(nodes);
  }
  supervisor.free(nodes);
  Supervisor::say("freed", "");
  return 0;
}

// ---- the test ----

class SshLaunch : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cluster::cluster_unavailable(); !why.empty()) GTEST_SKIP() << why;
    std::string form = (fs::temp_directory_path() / "surefoot-apart-XXXXXX").string();
    ASSERT_NE(::mkdtemp(form.data()), nullptr);
    root_ = form;
    // Copied, so that the service's own folder is this one.
    for (const char* name : {"bin", "signs"}) fs::create_directory(root_ / name);
    fs::copy(programs_folder() / "surefoot-node", root_ / "bin");
    std::ofstream(root_ / "bin" / "fake") << kWorker;
    fs::permissions(root_ / "bin" / "fake", fs::perms::owner_all);
    auto made = cluster::Cluster::start(
        {kHosts + 1, {(root_ / "bin").string(), programs_folder().string()}});
    ASSERT_TRUE(made) << made.error().message;
    cluster_ = std::move(*made);
  }
  void TearDown() override {
    cluster_ = nullptr;
    if (!root_.empty()) fs::remove_all(root_);
  }

  std::string on(int host, const std::string& script) {
    return cluster_->host(host).run({"sh", "-c", script}).output;
  }
  bool eventually(const std::function<bool()>& condition) {
    for (const Time end = now() + 30s; !condition(); std::this_thread::sleep_for(20ms)) {
      if (now() > end) return false;
    }
    return true;
  }
  // Everything of Open MPI and of the workers, and their files.
  std::string left_on(int host) {
    return on(
        host,
        "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null | grep -E "
        "'^(orted|/usr/bin/orted|sleep 1000|/bin/sh .*fake)'; ls -d /dev/shm/*/attempt-* "
        "/dev/shm/vader* /tmp/ompi* 2>/dev/null; true");
  }
  std::string logs_on(int host, int attempt) {
    return on(host, fmt::format("cat {}/run/logs/attempt-{:03}/rank-*.log 2>/dev/null; true",
                                root_.string(), attempt));
  }
  void sign(const std::string& name) { on(kHosts, "touch " + (root_ / name).string()); }

  fs::path root_;
  std::unique_ptr<cluster::Cluster> cluster_;
};

TEST_F(SshLaunch, WorkersRunMachineByMachineAndNothingIsLeftWhicheverWayTheyEnd) {
  auto running = cluster_->host(kHosts).start(
      {(programs_folder() / "ssh_launch_test").string(), "--supervise", root_.string()}, {});
  ASSERT_TRUE(running) << running.error().message;
  const std::vector<std::vector<int>> ranks = {{0, 1}, {2}, {3, 4}};
  for (int attempt = 1; attempt <= 2; ++attempt) {
    for (int host = 0; host < kHosts; ++host) {
      std::string expected;
      for (const int rank : ranks[static_cast<std::size_t>(host)])
        expected += fmt::format(
            "rank {} of 5 on host{} attempt {}\n"
            "arguments /dev/shm/surefoot-{}/job.yaml --dir {}/run\n",
            rank, host, attempt, kJobId, root_.string());
      EXPECT_TRUE(eventually([&] { return logs_on(host, attempt) == expected; }))
          << logs_on(host, attempt) << running->output()
          << on(kHosts, "cat " + (root_ / "run/logs/attempt-001/mpirun.log").string());
      EXPECT_THAT(left_on(host), HasSubstr("orted"));
    }
    sign(fmt::format("end-{}", attempt));
    ASSERT_TRUE(eventually([&] {
      return running->output().find(fmt::format("ended {}", attempt)) != std::string::npos;
    })) << running->output();
    for (int host = 0; host <= kHosts; ++host) {
      // Daemons that lose mpirun end by themselves; their files go with the next EndGang.
      const bool by_itself = attempt == 2;
      EXPECT_TRUE(eventually([&] {
        const std::string left = left_on(host);
        return by_itself ? left.find("orted") == std::string::npos &&
                               left.find("sleep") == std::string::npos
                         : left.empty();
      })) << host
          << ": " << left_on(host);
    }
    sign(fmt::format("looked-{}", attempt));
  }
  const auto result = running->wait(now() + 30s);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output.find("error"), std::string::npos) << result.output;
  for (int host = 0; host <= kHosts; ++host) {
    EXPECT_TRUE(eventually([&] {
      return on(host, "ls /dev/shm; cat /proc/[0-9]*/comm | grep surefoot; true").empty();
    })) << on(host, "ls /dev/shm; cat /proc/[0-9]*/comm");
  }
}

}  // namespace
}  // namespace surefoot::e2e

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--supervise") return surefoot::e2e::supervise(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
