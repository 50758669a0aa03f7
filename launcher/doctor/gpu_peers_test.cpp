// Which GPUs are measured together, and what the figure means.
#include "launcher/doctor/gpu_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "common/process.h"

namespace surefoot::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// With so many links up, each to each.
GpuFacts gpus(int count, int links) {
  GpuFacts facts;
  for (int i = 0; i < count; ++i) {
    GpuDevice device;
    device.index = i;
    device.uuid = "GPU-" + std::to_string(i);
    device.pcie_width = 16;
    device.links_active = links;
    for (int other = 0; links > 0 && other < count; ++other) {
      if (other != i) device.linked.push_back(other);
    }
    facts.devices.push_back(device);
  }
  return facts;
}

GpuNeed job(std::set<DeviceName> devices) {
  return {.use = GpuUse::kUsed, .workers = 2, .devices = std::move(devices)};
}

Measured measured(double gigabytes) {
  Measured facts;
  facts.ranks = 2;
  facts.bytes = 64 << 20;
  facts.seconds = 1;
  facts.bus_bandwidth = gigabytes * 1e9;
  return facts;
}

std::vector<std::string> names(const PeerPlan& plan) {
  std::vector<std::string> out;
  for (const DeviceName& device : plan.devices) out.push_back(device.text());
  return out;
}

TEST(Peers, AreTheJobsGpusOrAllThatAreShown) {
  EXPECT_THAT(names(plan_peers(gpus(4, 0), job({{.index = 1}, {.index = 3}}), {})),
              ElementsAre("1", "3"));
  EXPECT_THAT(names(plan_peers(gpus(3, 0), {}, {})), ElementsAre("0", "1", "2"));
  EXPECT_THAT(names(plan_peers(gpus(3, 0), {}, "2,GPU-0")), ElementsAre("2", "GPU-0"));
  EXPECT_EQ(names(plan_peers(gpus(20, 0), {}, {})).size(), kMostPeers);
}

TEST(Peers, AreShownToTheRanksAsTheWorkersWouldSeeThem) {
  const PeerPlan plan = plan_peers(gpus(3, 0), {}, "2,GPU-0");
  EXPECT_THAT(peer_environment(plan, "2,GPU-0"), ElementsAre("CUDA_VISIBLE_DEVICES=2,GPU-0"));
  EXPECT_THAT(peer_environment(plan, {}),
              ElementsAre("CUDA_VISIBLE_DEVICES=2,GPU-0", "CUDA_DEVICE_ORDER=PCI_BUS_ID"));
}

TEST(Peers, AreNotMeasuredWithAReason) {
  const auto why = [](const GpuFacts& facts, const GpuNeed& need) {
    const PeerPlan plan = plan_peers(facts, need, {});
    const Finding finding = check_peers(plan, {});
    EXPECT_EQ(finding.verdict, Verdict::kNotChecked);
    return finding.found;
  };
  EXPECT_THAT(why(gpus(2, 0), {.use = GpuUse::kUnused}), HasSubstr("does not run on GPUs"));
  EXPECT_THAT(why(GpuFacts(), {}), HasSubstr("gpu driver"));
  EXPECT_THAT(why(gpus(1, 0), {}), HasSubstr("one GPU"));
  EXPECT_THAT(why(gpus(4, 0), job({{.index = 2}})), HasSubstr("one GPU"));
  EXPECT_THAT(why(gpus(2, 0), job({{.index = 0}, {.index = 5}})), HasSubstr("no GPU 5"));
  EXPECT_THAT(why(gpus(2, 0), job({{.uuid = "MIG-1"}, {.uuid = "MIG-2"}})), HasSubstr("MIG"));
  GpuNeed faulty = job({});
  faulty.fault = "there is no GPU for local rank 1";
  EXPECT_THAT(why(gpus(2, 0), faulty), HasSubstr("local rank 1"));
  GpuFacts lost = gpus(2, 0);
  lost.devices[1].nvml_code = kNvmlGpuIsLost;
  lost.devices[1].fault = "GPU is lost";
  EXPECT_THAT(why(lost, {}), HasSubstr("GPU 1: GPU is lost"));
}

TEST(Peers, AreNotDisturbedButThoseThatTheJobDoesNotTakeMayBeBusy) {
  GpuFacts facts = gpus(3, 0);
  facts.devices[1].processes = 1;
  EXPECT_THAT(plan_peers(facts, {}, {}).unavailable, HasSubstr("GPU 1 is in use (1 process"));
  EXPECT_EQ(plan_peers(facts, job({{.index = 0}, {.index = 2}}), {}).unavailable, "");
  // Of another container: not listed, but held.
  facts.devices[1].processes = 0;
  facts.devices[1].memory_used_bytes = kOthersBytes;
  EXPECT_NE(plan_peers(facts, {}, {}).unavailable, "");
}

TEST(Peers, AreHeldAgainstTheirLinks) {
  const auto verdict = [](const GpuFacts& facts, double gigabytes) {
    return check_peers(plan_peers(facts, {}, {}), measured(gigabytes)).verdict;
  };
  // H100: 18 links of 25 GB/s.
  EXPECT_EQ(verdict(gpus(2, 18), 113), Verdict::kOk);
  EXPECT_EQ(verdict(gpus(2, 18), 112), Verdict::kWarn);
  // One with half of its links down holds the others up; the other line tells of it.
  GpuFacts half = gpus(2, 18);
  half.devices[1].links_active = 9;
  EXPECT_EQ(verdict(half, 60), Verdict::kOk);
  // PCIe of 16 lanes.
  EXPECT_EQ(verdict(gpus(2, 0), 4), Verdict::kOk);
  EXPECT_EQ(verdict(gpus(2, 0), 3.9), Verdict::kWarn);
  // NVLink between pairs only: what lies between the pairs counts.
  GpuFacts pairs = gpus(4, 12);
  for (GpuDevice& device : pairs.devices) device.linked = {device.index ^ 1};
  EXPECT_EQ(verdict(pairs, 10), Verdict::kOk);
  // Nothing is known of them.
  GpuFacts unknown = gpus(2, 0);
  unknown.devices[0].pcie_width = 0;
  EXPECT_EQ(verdict(unknown, 0.1), Verdict::kOk);
}

TEST(Peers, WhoseProgramDidNotEndAreNotChecked) {
  const PeerPlan plan = plan_peers(gpus(2, 18), {}, {});
  Measured facts;
  facts.unavailable = "no answer in time";
  EXPECT_EQ(check_peers(plan, facts).verdict, Verdict::kNotChecked);
  facts.unavailable.clear();
  facts.fault = "a sum is wrong";
  EXPECT_EQ(check_peers(plan, facts).verdict, Verdict::kBad);
}

TEST(Peers, WhoseProgramHangsIsEndedInTimeWithAllItsRanks) {
  std::string form = (std::filesystem::temp_directory_path() / "surefoot-peers-XXXXXX").string();
  ASSERT_NE(::mkdtemp(form.data()), nullptr);
  const std::filesystem::path root = form;
  // The ranks end with mpirun, as those of surefoot-gpu-links do.
  std::ofstream(root / "program") << "#!/bin/sh\necho $$ >> " << (root / "pids").string()
                                  << "\nexec setpriv --pdeathsig KILL sleep 1000\n";
  std::filesystem::permissions(root / "program", std::filesystem::perms::owner_all);
  Asked asked;
  asked.deadline = now() + std::chrono::seconds(2);
  const Time begin = now();
  const Measured facts = measure(root / "program", 2, {}, root, asked);
  EXPECT_LT(now() - begin, std::chrono::seconds(20));
  EXPECT_THAT(facts.unavailable, HasSubstr("no answer in time"));
  EXPECT_EQ(facts.fault, "");
  std::ifstream pids(root / "pids");
  int started = 0;
  for (pid_t pid; pids >> pid; ++started) {
    const auto alive = [&] {
      const auto process = process_of(pid);
      return process && is_alive(*process);
    };
    for (const Time end = now() + std::chrono::seconds(5); alive() && now() < end;)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(alive()) << "it is left behind";
  }
  EXPECT_EQ(started, 2);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace surefoot::doctor
