// Rules over made-up GPUs and libraries.
#include "launcher/doctor/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "launcher/doctor/gpu_checks.h"

namespace surefoot::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

GpuDevice healthy(int index = 0) {
  GpuDevice device;
  device.index = index;
  device.name = "NVIDIA H200";
  device.bus = "00000000:65:00.0";
  device.memory_bytes = std::int64_t{141} << 30;
  device.pcie_width = device.pcie_width_max = 16;
  device.ecc = true;
  device.corrected = 3;
  device.uncorrected = 0;
  device.uncorrected_ever = 0;
  device.clock_mhz = 1980;
  device.clock_max_mhz = 1980;
  device.reasons = 0;
  device.celsius = 40;
  device.watts = 80;
  device.watts_limit = 700;
  device.links_active = 18;
  return device;
}

GpuFacts with(const GpuDevice& device) {
  GpuFacts facts;
  facts.cards = 1;
  facts.driver = "580.82.07";
  facts.devices = {device};
  return facts;
}

Finding of(const std::vector<Finding>& findings, const std::string& check) {
  const auto at = std::find_if(findings.begin(), findings.end(),
                               [&](const Finding& finding) { return finding.check == check; });
  EXPECT_NE(at, findings.end()) << check;
  return at != findings.end() ? *at : Finding{};
}

Finding of(const GpuDevice& device, const std::string& check) {
  return of(check_gpus(with(device), {GpuUse::kUnknown}), check);
}

TEST(Gpus, ThatAreWellAreOkWithTheirFigures) {
  const auto findings = check_gpus(with(healthy()), {GpuUse::kUnknown});
  ASSERT_THAT(findings, SizeIs(5));
  for (const Finding& finding : findings)
    EXPECT_EQ(finding.verdict, Verdict::kOk) << line_of(finding);
  EXPECT_EQ(line_of(findings[0]), "ok           gpu driver         580.82.07, 1 GPU");
  EXPECT_EQ(line_of(findings[1]),
            "ok           gpu 0              NVIDIA H200 at 00000000:65:00.0, 141.0 GiB, PCIe x16");
  EXPECT_EQ(line_of(findings[3]),
            "ok           gpu clocks 0       1980 of 1980 MHz, 40 C, 80 of 700 W");
}

TEST(Gpus, ThatAreNotThereAreNotCheckedButOnTheBusWithoutADriverBad) {
  GpuFacts facts;
  facts.library_fault = "libnvidia-ml.so.1: cannot open shared object file";
  EXPECT_EQ(check_gpus(facts, {GpuUse::kUnknown})[0].verdict, Verdict::kNotChecked);
  EXPECT_EQ(check_gpus(facts, {GpuUse::kUnused})[0].verdict, Verdict::kNotChecked);
  EXPECT_EQ(check_gpus(facts, {GpuUse::kUsed})[0].verdict, Verdict::kBad);
  facts.cards = 2;
  EXPECT_EQ(check_gpus(facts, {GpuUse::kUnknown})[0].verdict, Verdict::kBad);
  EXPECT_EQ(check_gpus(facts, {GpuUse::kUnused})[0].verdict, Verdict::kWarn)
      << "the job does not use them";
}

TEST(Gpus, ADriverThatWasUpdatedUnderItsModuleNeedsAReboot) {
  GpuFacts facts;
  facts.nvml_code = kNvmlVersionMismatch;
  facts.nvml_fault = "NVML says 18: Driver/library version mismatch";
  const Finding finding = check_gpus(facts, {GpuUse::kUnknown})[0];
  EXPECT_EQ(finding.verdict, Verdict::kBad);
  EXPECT_THAT(finding.cure, HasSubstr("reboot"));
  facts.cards = 1;
  facts.nvml_code = kNvmlDriverNotLoaded;
  EXPECT_THAT(check_gpus(facts, {GpuUse::kUnknown})[0].cure, HasSubstr("modprobe nvidia"));
}

TEST(Gpus, OneThatFellOffTheBusIsSeenByTheCountAndByItsCode) {
  GpuFacts facts = with(healthy());
  facts.cards = 2;
  EXPECT_EQ(check_gpus(facts, {GpuUse::kUnknown})[0].verdict, Verdict::kWarn);
  GpuDevice gone = healthy();
  gone.nvml_code = kNvmlGpuIsLost;
  const auto findings = check_gpus(with(gone), {GpuUse::kUnknown});
  ASSERT_THAT(findings, SizeIs(2)) << "nothing else is known of it";
  EXPECT_EQ(findings[1].verdict, Verdict::kBad);
  EXPECT_THAT(findings[1].cure, HasSubstr("surefoot drain"));
  facts.devices.clear();
  EXPECT_EQ(check_gpus(facts, {GpuUse::kUnknown})[0].verdict, Verdict::kBad);
}

TEST(Gpus, MemoryErrors) {
  GpuDevice device = healthy();
  device.uncorrected = 1;
  EXPECT_EQ(of(device, "gpu memory").verdict, Verdict::kBad);
  EXPECT_THAT(of(device, "gpu memory").cure, HasSubstr("--gpu-reset -i 0"));
  EXPECT_EQ(of(check_gpus(with(device), {GpuUse::kUnused}), "gpu memory").verdict, Verdict::kWarn);
  device = healthy();
  device.repair_pending = true;
  EXPECT_EQ(of(device, "gpu memory").verdict, Verdict::kWarn);
  device.repair_failed = true;
  EXPECT_EQ(of(device, "gpu memory").cure, "replace the GPU");
  device = healthy();
  device.ecc = false;
  EXPECT_EQ(of(device, "gpu memory").verdict, Verdict::kWarn);
  device.ecc.reset();
  EXPECT_EQ(of(device, "gpu memory").verdict, Verdict::kOk) << "a consumer's card";
}

TEST(Gpus, ThrottledByWhatHasTheVerdictOfTheCause) {
  const auto verdict = [](std::uint64_t reasons) {
    GpuDevice device = healthy();
    device.reasons = reasons;
    return of(device, "gpu clocks").verdict;
  };
  EXPECT_EQ(verdict(0x1), Verdict::kOk) << "idle";
  EXPECT_EQ(verdict(kSoftwarePowerCap), Verdict::kOk) << "as it is under load";
  EXPECT_EQ(verdict(kApplicationClocks), Verdict::kWarn);
  EXPECT_EQ(verdict(kSoftwareThermal), Verdict::kWarn);
  EXPECT_EQ(verdict(kHardwareThermal | kHardwareSlowdown), Verdict::kBad);
  EXPECT_EQ(verdict(kHardwareSlowdown), Verdict::kBad);
  EXPECT_EQ(verdict(kPowerBrake), Verdict::kBad);
  GpuDevice hot = healthy();
  hot.reasons = kHardwareThermal;
  EXPECT_THAT(of(hot, "gpu clocks").found, HasSubstr("too hot (hardware)"));
}

TEST(Gpus, LinksThatAreDownAmongOthersAreAWarningAsSomeCardsHaveFewer) {
  GpuDevice device = healthy();
  device.links_active = 16;
  device.links_inactive = 2;
  EXPECT_EQ(of(device, "nvlink").verdict, Verdict::kWarn);
  EXPECT_THAT(of(device, "nvlink").found, HasSubstr("16 of 18"));
  device.links_active = 0;
  EXPECT_EQ(of(device, "nvlink").verdict, Verdict::kOk) << "no bridge was ever put in";
  device.links_inactive = 0;
  EXPECT_EQ(of(device, "nvlink").found, "has none");
}

TEST(Gpus, OthersOnItMigAndANarrowSlotAreWarnings) {
  GpuDevice device = healthy();
  device.memory_used_bytes = std::int64_t{20} << 30;
  device.processes = 2;
  EXPECT_EQ(of(device, "gpu").verdict, Verdict::kWarn);
  EXPECT_THAT(of(device, "gpu").found, HasSubstr("20.0 GiB are held by 2 processes"));
  device = healthy();
  device.pcie_width = 4;
  EXPECT_THAT(of(device, "gpu").found, HasSubstr("PCIe x4 of x16"));
  device = healthy();
  device.mig = true;
  EXPECT_EQ(of(device, "gpu").verdict, Verdict::kWarn);
}

// ---- what a job takes ----

std::string uuid_of(int index) {
  return "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(index);
}
GpuFacts machine_with(int gpus) {
  GpuFacts facts;
  facts.cards = gpus;
  facts.driver = "580.82.07";
  for (int index = 0; index < gpus; ++index) {
    facts.devices.push_back(healthy(index));
    facts.devices.back().uuid = uuid_of(index);
  }
  return facts;
}
GpuNeed job_with(int workers, const std::vector<std::string>& devices = {},
                 const std::optional<std::string>& visible = {}) {
  config::Resources resources;
  resources.set_device(config::Resources::cuda);
  for (const std::string& device : devices) resources.add_devices(device);
  return gpu_need_of(resources, visible, workers);
}
std::vector<std::string> bad_lines(const GpuFacts& facts, const GpuNeed& need) {
  std::vector<std::string> lines;
  for (const Finding& finding : check_gpus(facts, need)) {
    if (finding.verdict == Verdict::kBad) lines.push_back(finding.found);
  }
  return lines;
}

TEST(GpusOfAJob, AreThoseOfItsLocalRanks) {
  EXPECT_THAT(bad_lines(machine_with(2), job_with(2)), SizeIs(0));
  EXPECT_THAT(bad_lines(machine_with(2), job_with(3)),
              ElementsAre("2 GPUs for 3 workers, of which each takes one"));
}

TEST(GpusOfAJob, ThatAreNamedMayBeSharedAndMustBeThere) {
  EXPECT_THAT(bad_lines(machine_with(1), job_with(4, {"0"})), SizeIs(0));
  EXPECT_THAT(bad_lines(machine_with(2), job_with(2, {uuid_of(1), "0"})), SizeIs(0));
  EXPECT_THAT(bad_lines(machine_with(2), job_with(2, {"0", "2"})),
              ElementsAre("resources.devices names 2, and this machine has 2 GPUs, 0 to 1"));
  EXPECT_THAT(bad_lines(machine_with(2), job_with(1, {uuid_of(7)})),
              ElementsAre(HasSubstr("none of this UUID")));
  EXPECT_THAT(bad_lines(machine_with(2), job_with(1, {"0", "2"})), SizeIs(0))
      << "one worker takes the first only";
}

TEST(GpusOfAJob, ThatItDoesNotTakeAreWarnedOfOnly) {
  GpuFacts facts = machine_with(2);
  facts.devices[0].nvml_code = kNvmlGpuIsLost;
  facts.devices[0].fault = "NVML says 15: GPU is lost";
  EXPECT_THAT(bad_lines(facts, job_with(1, {"1"})), SizeIs(0));
  EXPECT_THAT(bad_lines(facts, job_with(1, {uuid_of(1)})), SizeIs(0));
  EXPECT_THAT(bad_lines(facts, job_with(1)), ElementsAre("NVML says 15: GPU is lost"));
}

TEST(GpusOfAJob, AreAmongThoseThatABatchSystemShows) {
  GpuFacts facts = machine_with(4);
  facts.devices[0].nvml_code = kNvmlGpuIsLost;
  facts.devices[0].fault = "NVML says 15: GPU is lost";
  EXPECT_THAT(bad_lines(facts, job_with(2, {}, "2,3")), SizeIs(0)) << "0 is another job's";
  EXPECT_THAT(bad_lines(facts, job_with(1, {"1"}, "2,0")), ElementsAre(HasSubstr("lost")));
  EXPECT_THAT(bad_lines(facts, job_with(3, {}, "2,3")),
              ElementsAre(HasSubstr("CUDA_VISIBLE_DEVICES shows 2.")));
  EXPECT_THAT(bad_lines(facts, job_with(1, {}, "7")),
              ElementsAre("CUDA_VISIBLE_DEVICES names 7, and this machine has 4 GPUs, 0 to 3"));
  EXPECT_THAT(bad_lines(machine_with(1), job_with(1, {}, uuid_of(0).substr(0, 12))), SizeIs(0));
  EXPECT_THAT(bad_lines(machine_with(1), job_with(1, {}, "NoDevFiles")),
              ElementsAre(HasSubstr("names NoDevFiles")));
}

TEST(GpusOfAJob, MustLetItsWorkersIn) {
  GpuFacts facts = machine_with(2);
  facts.devices[1].compute_mode = kProhibited;
  EXPECT_THAT(bad_lines(facts, job_with(1)), SizeIs(0)) << "the job does not take it";
  EXPECT_THAT(bad_lines(facts, job_with(2)), ElementsAre(HasSubstr("keeps everybody off")));
  const auto of_first = [](const GpuFacts& facts, const GpuNeed& need) {
    return of(check_gpus(facts, need), "gpu");
  };
  facts = machine_with(1);
  facts.devices[0].compute_mode = kExclusiveProcess;
  EXPECT_EQ(of_first(facts, job_with(1)).verdict, Verdict::kOk);
  EXPECT_THAT(of_first(facts, job_with(2, {"0"})).found, HasSubstr("workers share it"));
  EXPECT_THAT(of_first(facts, job_with(2, {"0"})).cure, HasSubstr("MPS"));
  facts.devices[0].processes = 1;
  EXPECT_THAT(of_first(facts, job_with(1)).found, HasSubstr("and one does"));
}

TEST(GpusOfAJob, InstancesOfASplitGpuAreFoundByTheirUuid) {
  const std::string instance = "MIG-00000000-0000-0000-0000-000000000000";
  GpuFacts facts = machine_with(1);
  facts.devices[0].mig = true;
  facts.devices[0].instances = {instance};
  const auto findings = check_gpus(facts, job_with(1, {instance}));
  EXPECT_EQ(of(findings, "gpu").verdict, Verdict::kOk);
  EXPECT_THAT(of(findings, "gpu").found,
              HasSubstr("split by MIG, of which the job takes 1 instance"));
  EXPECT_EQ(of(check_gpus(facts, job_with(1)), "gpu").verdict, Verdict::kWarn);
}

TEST(GpusOfAJob, WithoutACardAndADriverThatIsNotLoadedAreNoGpu) {
  GpuFacts facts;
  facts.nvml_code = kNvmlDriverNotLoaded;
  facts.nvml_fault = "NVML says 9: Driver Not Loaded";
  EXPECT_THAT(bad_lines(facts, job_with(1)),
              ElementsAre(HasSubstr("no NVIDIA GPU on the PCI bus")));
  facts.cards = 1;
  EXPECT_THAT(bad_lines(facts, job_with(1)), ElementsAre("NVML says 9: Driver Not Loaded"));
  EXPECT_EQ(check_gpus(facts, {GpuUse::kUnused})[0].verdict, Verdict::kWarn);
}

// ---- before a launch ----

TEST(BeforeALaunch, WhatIsBadIsAFaultAndTheFirstIsSaidInOneLine) {
  const LaunchCheck check = judge_before_launch(check_gpus({}, job_with(1)));
  EXPECT_THAT(check.faults, SizeIs(1));
  GpuFacts none;
  none.library_fault = "libnvidia-ml.so.1: cannot open shared object file";
  EXPECT_EQ(
      first_fault(judge_before_launch(check_gpus(none, job_with(1)))),
      "resources.device: cuda: gpu driver: the job runs on GPUs: no NVIDIA GPU on the PCI bus, "
      "and libnvidia-ml.so.1: cannot open shared object file -> a machine with GPUs, or "
      "resources.device: cpu (containers: --gpus all)");
  EXPECT_EQ(first_fault({}), "");
  EXPECT_THAT(first_fault({{"a", "b", "c"}, {}}), HasSubstr("and 2 more"));
}

TEST(BeforeALaunch, MemoryErrorsThatWereAndLinksThatAreDownKeepNobodyFromTraining) {
  GpuFacts facts = machine_with(1);
  facts.devices[0].uncorrected = 1;
  facts.devices[0].links_active = 12;
  facts.devices[0].links_inactive = 6;
  const LaunchCheck check = judge_before_launch(check_gpus(facts, job_with(1)));
  EXPECT_THAT(check.faults, SizeIs(0));
  EXPECT_THAT(check.warnings,
              ElementsAre(HasSubstr("1 uncorrected errors"), HasSubstr("12 of 18 links up")));
}

TEST(BeforeALaunch, ClocksAndOldErrorsAreWarningsAndADriverThatHangsAFault) {
  GpuFacts hot = machine_with(1);
  hot.devices[0].reasons = kHardwareThermal;
  const LaunchCheck slow = judge_before_launch(check_gpus(hot, job_with(1)));
  EXPECT_THAT(slow.faults, SizeIs(0));
  EXPECT_THAT(slow.warnings, ElementsAre(HasSubstr("gpu clocks 0: ")));
  EXPECT_THAT(judge_before_launch({bad("xid", "Xid 79", "reboot")}).faults, SizeIs(0));
  EXPECT_THAT(judge_before_launch({not_checked("gpu driver", "no answer within 5 s")}).faults,
              ElementsAre("gpu driver: no answer within 5 s"));
  EXPECT_THAT(judge_before_launch({not_checked("nccl", "libnccl.so.2: no such file")}).faults,
              SizeIs(0));
  EXPECT_THAT(judge_before_launch(check_gpus(machine_with(1), job_with(1))).warnings, SizeIs(0));
}

// ---- the kernel's log ----

constexpr std::int64_t kUptime = 10'000'000'000;  // microseconds

TEST(Xid, IsReadFromARecordOfTheKernelsLog) {
  const auto error = parse_xid(
      "3,1234,9940000000,-;NVRM: Xid (PCI:0000:65:00): 79, pid=1896, GPU has fallen off the bus.",
      kUptime);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, 79);
  EXPECT_EQ(error->bus, "PCI:0000:65:00");
  EXPECT_EQ(error->age_seconds, 60);
  for (const char* other :
       {"", "6,1,2,-;usb 1-1: new device", "NVRM: Xid (", "6,1,2,-;NVRM: Xid (PCI:0): x",
        "NVRM: Xid (PCI:0): 79;", "6,1,2,-;NVRM: Xid (PCI:0000:65:00"})
    EXPECT_FALSE(parse_xid(other, kUptime)) << other;
}

TEST(Xid, GravityIsThatOfTheCodeAndItsAge) {
  const auto verdict = [](int code, std::int64_t age) {
    return check_xid({"", {{code, "PCI:0000:65:00", age}}}, true, true).verdict;
  };
  EXPECT_EQ(verdict(79, 60), Verdict::kBad);
  EXPECT_EQ(verdict(48, 60), Verdict::kBad);
  EXPECT_EQ(verdict(79, 2 * kFreshSeconds), Verdict::kWarn);
  EXPECT_EQ(verdict(63, 60), Verdict::kWarn);
  EXPECT_EQ(verdict(31, 60), Verdict::kOk) << "a program's own";
  EXPECT_EQ(check_xid({"", {}}, true, true).verdict, Verdict::kOk);
  EXPECT_EQ(check_xid({"Operation not permitted", {}}, true, true).verdict, Verdict::kNotChecked);
  EXPECT_EQ(check_xid({}, false, true).verdict, Verdict::kNotChecked);
  const Finding unused = check_xid({"", {{79, "PCI:0000:65:00", 60}}}, true, false);
  EXPECT_EQ(unused.verdict, Verdict::kWarn);
}

// ---- libraries ----

CudaFacts fitting() {
  CudaFacts facts;
  facts.driver_version = 13000;
  facts.devices = {{0, "NVIDIA H200", 132, 90}};
  facts.runtime_file = "/lib/libcudart.so.13";
  facts.runtime_version = 13000;
  facts.nccl_file = "/lib/libnccl.so.2";
  facts.nccl_version = 22809;
  facts.nccl_cuda = 13000;
  return facts;
}

TEST(Cuda, VersionsThatFitAreOk) {
  const auto findings = check_cuda(fitting(), 1, true);
  ASSERT_THAT(findings, SizeIs(4));
  for (const Finding& finding : findings)
    EXPECT_EQ(finding.verdict, Verdict::kOk) << line_of(finding);
  EXPECT_EQ(findings[1].found, "NVIDIA H200, 132 SMs, compute capability 9.0");
  EXPECT_THAT(findings[3].found, HasSubstr("2.28.9 (/lib/libnccl.so.2), built with CUDA 13.0"));
}

TEST(Cuda, ARuntimeOfALaterMajorVersionThanTheDriversIsBadAndALaterMinorOneNot) {
  CudaFacts facts = fitting();
  facts.driver_version = 12040;
  const Finding runtime = of(check_cuda(facts, 1, true), "cuda runtime");
  EXPECT_EQ(runtime.verdict, Verdict::kBad);
  EXPECT_THAT(runtime.found, HasSubstr("the driver knows CUDA 12.4 only"));
  EXPECT_THAT(runtime.cure, HasSubstr("a driver from 580 on"));
  EXPECT_EQ(of(check_cuda(facts, 1, true), "nccl").verdict, Verdict::kBad);
  facts.runtime_version = facts.nccl_cuda = 12080;
  EXPECT_EQ(of(check_cuda(facts, 1, true), "cuda runtime").verdict, Verdict::kOk);
  facts.runtime_version = 11080;
  EXPECT_EQ(of(check_cuda(facts, 1, true), "cuda runtime").verdict, Verdict::kOk);
  EXPECT_EQ(of(check_cuda(facts, 1, true), "nccl").verdict, Verdict::kWarn) << "12 beside 11";
}

TEST(Cuda, CuInitsCodesNameTheirCures) {
  CudaFacts facts = fitting();
  facts.devices.clear();
  const auto cure = [&](int code) {
    facts.init_code = code;
    const Finding finding = of(check_cuda(facts, 1, true), "cuda driver");
    EXPECT_EQ(finding.verdict, Verdict::kBad);
    return finding.cure;
  };
  EXPECT_THAT(cure(kCudaSystemNotReady), HasSubstr("fabricmanager"));
  EXPECT_THAT(cure(kCudaDriverMismatch), HasSubstr("reboot"));
  EXPECT_THAT(cure(kCudaNoDevice), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(Cuda, WithoutAGpuItsLibrariesAreNotChecked) {
  CudaFacts facts;
  facts.driver_fault = facts.runtime_fault = facts.nccl_fault = "no such file";
  for (const Finding& finding : check_cuda(facts, 0, true))
    EXPECT_EQ(finding.verdict, Verdict::kNotChecked) << line_of(finding);
  EXPECT_EQ(check_cuda(facts, 1, true)[0].verdict, Verdict::kBad) << "a card without libcuda";
}

TEST(Cuda, VersionsAreReadAndWritten) {
  EXPECT_EQ(cuda_version_text(12040), "12.4");
  EXPECT_EQ(nccl_version_text(2804), "2.8.4");
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  using namespace std::string_view_literals;
  EXPECT_EQ(nccl_cuda_in("..\0NCCL version 2.28.9+cuda13.0\0.."sv), 13000);
  EXPECT_EQ(nccl_cuda_in("NCCL version mismatch\0NCCL version 2.21.5+cuda12.4"sv), 12040);
  EXPECT_EQ(nccl_cuda_in("NCCL version 2.21.5\0+cuda12.4"sv), 0);
  EXPECT_EQ(nccl_cuda_in("NCCL version 2.21.5+cuda12"), 0);
  EXPECT_EQ(nccl_cuda_in(""), 0);
}

}  // namespace
}  // namespace surefoot::doctor
