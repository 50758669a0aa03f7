#include "launcher/doctor/gpu_peers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "launcher/format.h"
#include "launcher/nvidia/nvml.h"

namespace surefoot::doctor {
namespace {

constexpr const char* kCheck = "peer bandwidth";

// One way, bytes/s. An NVLink of the third and fourth generation (A100, H100, H200; NVIDIA's data
// sheets: 600 GB/s both ways over 12, 900 over 18) has 25e9, one of the fifth twice that. The
// bridges of workstation cards have 14e9 (A40, RTX A6000: 112.5 GB/s both ways over 4), which the
// fraction below leaves room for.
constexpr double kNvlinkLane = 25e9;
// PCIe 3.0 (8 GT/s, 128b/130b), the slowest that a GPU for which this is built may hang on; NVML
// tells the lanes of now, but a generation that falls while nobody computes.
constexpr double kPcieLane = 0.985e9;
// Arbitrary. NCCL reaches half of the links' figure and more on a sound machine with 64 MiB;
// without NVLink it may have to go through the host's memory and between sockets, which halves it
// again. GPUs whose NVLink is not used, or which talk over TCP, are below.
constexpr double kFarBelow = 0.25;

const GpuDevice* find(const GpuFacts& facts, const DeviceName& name) {
  const auto at = std::find_if(facts.devices.begin(), facts.devices.end(),
                               [&](const GpuDevice& device) { return is_whole(device, name); });
  return at == facts.devices.end() ? nullptr : &*at;
}

std::vector<DeviceName> names_of(const GpuFacts& facts, const GpuNeed& need,
                                 const std::optional<std::string>& visible) {
  if (need.use == GpuUse::kUsed) return {need.devices.begin(), need.devices.end()};
  std::vector<DeviceName> names;
  for (std::size_t rank = 0; rank < facts.devices.size(); ++rank) {
    const auto name = device_of({}, visible, static_cast<int>(rank));
    if (name) names.push_back(*name);
  }
  return names;
}

// Empty: it can be measured.
std::string why_not(const GpuDevice* device, const DeviceName& name) {
  if (name.is_mig() || (device != nullptr && device->mig))
    return "instances of MIG have no links between them";  // NVIDIA's MIG user guide
  if (device == nullptr) return fmt::format("there is no GPU {} to be seen", name.text());
  if (device->nvml_code != 0) return fmt::format("GPU {}: {}", device->index, device->fault);
  // In a container those of others are not listed, but what they hold is.
  if (device->processes > 0 || device->memory_used_bytes >= kOthersBytes) {
    return fmt::format("GPU {} is in use ({}, {} held), and must not be disturbed", device->index,
                       count_text(device->processes, "process", "processes"),
                       bytes_text(device->memory_used_bytes));
  }
  return "";
}

bool are_linked(const GpuDevice& one, const GpuDevice& other) {
  return one.index == other.index ||
         std::find(one.linked.begin(), one.linked.end(), other.index) != one.linked.end();
}

// What the links of the worst of them are to carry.
void expect(const std::vector<const GpuDevice*>& devices, PeerPlan& plan) {
  bool linked = true;
  int links = devices.front()->links_active;
  int lanes = devices.front()->pcie_width;
  for (const GpuDevice* one : devices) {
    links = std::min(links, one->links_active);
    lanes = std::min(lanes, one->pcie_width);
    for (const GpuDevice* other : devices) linked = linked && are_linked(*one, *other);
  }
  plan.links = linked ? "NVLink" : "PCIe";
  plan.least = kFarBelow * (linked ? links * kNvlinkLane : lanes * kPcieLane);
}

}  // namespace

PeerPlan plan_peers(const GpuFacts& facts, const GpuNeed& need,
                    const std::optional<std::string>& visible) {
  PeerPlan plan;
  const auto without = [&](std::string why) {
    plan.unavailable = std::move(why);
    return plan;
  };
  if (need.use == GpuUse::kUnused) return without("the job does not run on GPUs");
  if (facts.devices.empty()) return without("no GPU is known of: see gpu driver");
  if (!need.fault.empty()) return without(need.fault);
  plan.devices = names_of(facts, need, visible);
  if (plan.devices.size() < 2) return without("one GPU, and no other that it would talk to");
  if (plan.devices.size() > kMostPeers) plan.devices.resize(kMostPeers);
  std::vector<const GpuDevice*> devices;
  for (const DeviceName& name : plan.devices) {
    devices.push_back(find(facts, name));
    if (auto why = why_not(devices.back(), name); !why.empty()) return without(std::move(why));
  }
  expect(devices, plan);
  return plan;
}

std::vector<std::string> peer_environment(const PeerPlan& plan,
                                          const std::optional<std::string>& visible) {
  std::vector<std::string> names;
  for (const DeviceName& device : plan.devices) names.push_back(device.text());
  std::vector<std::string> environment = {
      fmt::format("CUDA_VISIBLE_DEVICES={}", fmt::join(names, ","))};
  // As the workers would have it (worker/device_choice.cpp).
  if (!visible) environment.emplace_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
  return environment;
}

Finding check_peers(const PeerPlan& plan, const Measured& measured) {
  for (const std::string& why : {plan.unavailable, measured.unavailable}) {
    if (!why.empty()) return not_checked(kCheck, why);
  }
  constexpr const char* kCure =
      "NCCL_DEBUG=INFO mpirun -np 2 surefoot-gpu-links says which way NCCL takes; nvidia-smi topo "
      "-m "
      "and nvidia-smi nvlink -s, which there are; no NCCL_P2P_DISABLE; ACS off in PCIe bridges, "
      "IOMMU off or passed through; a fabric manager on machines with NVSwitch";
  if (!measured.fault.empty()) return bad(kCheck, measured.fault, kCure);
  if (!(measured.bus_bandwidth > 0) || !std::isfinite(measured.bus_bandwidth))
    return bad(kCheck, "surefoot-gpu-links prints nonsense", "build it anew (make cuda)");
  std::string found = fmt::format(
      "{} GPUs, all-reduce of {}: {:.3g} GB/s bus bandwidth", measured.ranks,
      bytes_text(static_cast<std::int64_t>(measured.bytes)), measured.bus_bandwidth / 1e9);
  if (measured.bus_bandwidth >= plan.least) return ok(kCheck, found);
  return warn(kCheck,
              fmt::format("{}, where their {} carries {:.3g} each way or more", found, plan.links,
                          plan.least / kFarBelow / 1e9),
              kCure);
}

Finding look_at_peers(const GpuNeed& need, const std::filesystem::path& programs,
                      const std::filesystem::path& scratch, const Asked& asked) {
  const auto visible = visible_devices();
  const PeerPlan plan = plan_peers(look_at_gpus(), need, visible);
  if (!plan.unavailable.empty()) return check_peers(plan, {});
  return check_peers(plan,
                     measure(programs / "surefoot-gpu-links", static_cast<int>(plan.devices.size()),
                             peer_environment(plan, visible), scratch, asked));
}

}  // namespace surefoot::doctor
