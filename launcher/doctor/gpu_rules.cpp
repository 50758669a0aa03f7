#include <fmt/format.h>

#include <algorithm>

#include "launcher/doctor/gpu.h"
#include "launcher/format.h"

namespace surefoot::doctor {
namespace {

std::string index_of(const GpuDevice& device) {
  return std::to_string(device.index);
}

std::string reset_of(const GpuDevice& device) {
  return fmt::format("nvidia-smi --gpu-reset -i {} with nothing on it, or reboot", device.index);
}

Finding no_gpu(const std::string& fault, GpuUse use) {
  const std::string check = "gpu driver";
  const std::string found = "no NVIDIA GPU on the PCI bus, and " + fault;
  if (use != GpuUse::kUsed) return not_checked(check, found);
  return bad(check, "the job runs on GPUs: " + found,
             "a machine with GPUs, or resources.device: cpu (containers: --gpus all)");
}

Finding no_driver(const GpuFacts& facts, GpuUse use) {
  const std::string check = "gpu driver";
  if (facts.cards > 0) {
    return bad_only_if(
        use != GpuUse::kUnused,
        bad(check,
            fmt::format("{} on the PCI bus, but no driver: {}",
                        count_text(facts.cards, "NVIDIA GPU", "NVIDIA GPUs"), facts.library_fault),
            "install NVIDIA's driver (containers: --gpus all with NVIDIA's container "
            "toolkit)"));
  }
  return no_gpu(facts.library_fault, use);
}

Finding driver_fails(const GpuFacts& facts, GpuUse use) {
  const bool used = use != GpuUse::kUnused;
  // The driver's library is in many an image, and its kernel module is where there are GPUs.
  if (facts.nvml_code == kNvmlDriverNotLoaded && facts.cards == 0)
    return no_gpu(facts.nvml_fault, use);
  std::string cure = "nvidia-smi says more; dmesg | grep -i nvrm";
  if (facts.nvml_code == kNvmlVersionMismatch)
    cure =
        "the driver was updated under the loaded kernel module: reboot, or unload nvidia_uvm, "
        "nvidia_drm, nvidia_modeset and nvidia and load them again";
  if (facts.nvml_code == kNvmlDriverNotLoaded) cure = "modprobe nvidia; dkms status";
  if (facts.nvml_code == kNvmlOperatingSystem)
    cure = "let the container see /dev/nvidia* (--gpus all), or this user open them";
  return bad_only_if(used, bad("gpu driver", facts.nvml_fault, cure));
}

Finding check_driver(const GpuFacts& facts, bool used) {
  const int seen = static_cast<int>(facts.devices.size());
  const std::string found = fmt::format("{}, {}", facts.driver, count_text(seen, "GPU", "GPUs"));
  if (seen == 0) {
    return bad_only_if(used, bad("gpu driver", found, "nvidia-smi; containers: --gpus all"));
  }
  if (facts.cards > seen) {
    return warn("gpu driver", fmt::format("{}, but {} on the PCI bus", found, facts.cards),
                "one has gone, or is not given to this container: dmesg | grep -i xid");
  }
  return ok("gpu driver", found);
}

Finding lost(const GpuDevice& device) {
  if (device.nvml_code == kNvmlResetRequired) return bad("gpu", device.fault, reset_of(device));
  return bad("gpu", device.fault,
             device.nvml_code == kNvmlGpuIsLost
                 ? "drain this machine (surefoot drain) and reboot it; a second time: replace it"
                 : "nvidia-smi -q -i " + index_of(device));
}

// CUDA takes the beginning of a UUID for it.
bool is_called(const std::string& uuid, const DeviceName& name) {
  return name.index < 0 && !name.uuid.empty() && uuid.starts_with(name.uuid);
}
// Whether the job takes the GPU as a whole, or an instance of it.
bool takes_whole(const GpuNeed& need, const GpuDevice& device) {
  return std::any_of(need.devices.begin(), need.devices.end(),
                     [&](const DeviceName& name) { return is_whole(device, name); });
}
bool has_instance(const GpuDevice& device, const DeviceName& name) {
  return std::any_of(device.instances.begin(), device.instances.end(),
                     [&](const std::string& uuid) { return is_called(uuid, name); });
}
std::int64_t instances_taken(const GpuNeed& need, const GpuDevice& device) {
  return std::count_if(need.devices.begin(), need.devices.end(),
                       [&](const DeviceName& name) { return has_instance(device, name); });
}
bool is_used(const GpuNeed& need, const GpuDevice& device) {
  if (need.use != GpuUse::kUsed) return need.use == GpuUse::kUnknown;
  return takes_whole(need, device) || instances_taken(need, device) > 0;
}

Finding check_device(const GpuDevice& device, const GpuNeed& need) {
  std::string found =
      fmt::format("{} at {}, {}", device.name, device.bus, bytes_text(device.memory_bytes));
  if (device.pcie_width > 0) found += fmt::format(", PCIe x{}", device.pcie_width);
  if (const auto taken = instances_taken(need, device); taken > 0 && !takes_whole(need, device)) {
    return ok("gpu", fmt::format("{}, split by MIG, of which the job takes {}", found,
                                 count_text(taken, "instance", "instances")));
  }
  if (device.mig) {
    return warn("gpu", found + ", split by MIG: a worker sees one instance",
                "nvidia-smi -i " + index_of(device) + " -mig 0");
  }
  if (device.compute_mode == kProhibited) {
    return bad("gpu", found + ", and its compute mode keeps everybody off",
               "nvidia-smi -i " + index_of(device) + " -c DEFAULT");
  }
  if (device.compute_mode == kExclusiveProcess && need.shares()) {
    return warn("gpu", found + ", which one process at a time may use, and workers share it",
                "start NVIDIA's MPS, or nvidia-smi -i " + index_of(device) + " -c DEFAULT");
  }
  if (device.compute_mode == kExclusiveProcess && device.processes > 0) {
    return warn("gpu", found + ", which one process at a time may use, and one does",
                "nvidia-smi --query-compute-apps=pid,used_memory --format=csv; or nvidia-smi -i " +
                    index_of(device) + " -c DEFAULT");
  }
  if (device.memory_used_bytes >= kOthersBytes) {
    return warn(
        "gpu",
        fmt::format("{}, of which {} are held by {}", found, bytes_text(device.memory_used_bytes),
                    count_text(device.processes, "process", "processes")),
        "nvidia-smi --query-compute-apps=pid,used_memory --format=csv");
  }
  if (device.pcie_width > 0 && device.pcie_width < device.pcie_width_max) {
    return warn("gpu", fmt::format("{} of x{}", found, device.pcie_width_max),
                "reseat the card, or see what else hangs on its slot: lspci -vv");
  }
  return ok("gpu", found);
}

// Of what the job takes, what is not there.
void add_missing(const GpuFacts& facts, const GpuNeed& need, std::vector<Finding>& findings) {
  const auto gpus = static_cast<int>(facts.devices.size());
  if (!need.fault.empty()) return findings.push_back(bad("gpu", need.fault, ""));
  if (need.named_by.empty() && need.workers > gpus) {
    findings.push_back(
        bad("gpu",
            fmt::format("{} for {}, of which each takes one", count_text(gpus, "GPU", "GPUs"),
                        count_text(need.workers, "worker", "workers")),
            fmt::format("resources.workers_per_node: {}, or resources.devices, where an entry may "
                        "stand for several workers",
                        gpus)));
  }
  if (need.named_by.empty()) return;
  for (const DeviceName& name : need.devices) {
    const bool found =
        std::any_of(facts.devices.begin(), facts.devices.end(), [&](const GpuDevice& device) {
          return is_whole(device, name) || has_instance(device, name);
        });
    if (found) continue;
    findings.push_back(bad(
        "gpu",
        fmt::format("{} names {}, and this machine has {}{}", need.named_by, name.text(),
                    count_text(gpus, "GPU", "GPUs"),
                    name.index < 0 ? ", none of this UUID" : fmt::format(", 0 to {}", gpus - 1)),
        "nvidia-smi -L lists them"));
  }
}

Finding check_device_memory(const GpuDevice& device) {
  const std::string check = "gpu memory";
  if (!device.ecc) return ok(check, "has no ECC");
  if (!*device.ecc) {
    return warn(check, "ECC is off: a bit that flips is not seen",
                fmt::format("nvidia-smi -i {} -e 1, then reboot", device.index));
  }
  std::string found =
      fmt::format("ECC on, {} corrected and {} uncorrected errors since the driver was loaded",
                  device.corrected.value_or(0), device.uncorrected.value_or(0));
  if (device.uncorrected_ever)
    found += fmt::format(", {} uncorrected ever", *device.uncorrected_ever);
  if (device.repair_failed)
    return bad(check, found + ", and no spare row is left for the next one", "replace the GPU");
  if (device.uncorrected.value_or(0) > 0) return bad(check, found, reset_of(device));
  if (device.repair_pending)
    return warn(check, found + ", a repair waits for a reset", reset_of(device));
  return ok(check, found);
}

std::string reasons_text(std::uint64_t reasons) {
  const std::pair<std::uint64_t, const char*> names[] = {
      {kHardwareThermal, "too hot (hardware)"},
      {kPowerBrake, "power brake of the machine"},
      {kHardwareSlowdown, "hardware slowdown"},
      {kSoftwareThermal, "too hot (software)"},
      {kSoftwarePowerCap, "at its power limit"},
      {kApplicationClocks, "application clocks are set"}};
  std::string text;
  for (const auto& [bit, name] : names) {
    if ((reasons & bit) != 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  }
  return text;
}

Finding check_clocks(const GpuDevice& device) {
  const std::string check = "gpu clocks";
  std::string found =
      fmt::format("{} of {} MHz, {} C, {} of {} W", device.clock_mhz, device.clock_max_mhz,
                  device.celsius, device.watts, device.watts_limit);
  if (!device.reasons) return ok(check, found + "; why they are what they are is not told");
  const std::uint64_t reasons = *device.reasons;
  if (const std::string text = reasons_text(reasons); !text.empty()) found += ": " + text;
  // By NVML's reference both halve the clocks, or do worse.
  if ((reasons & kPowerBrake) != 0)
    return bad(check, found, "the machine's power supply asks for less: see its BMC");
  if ((reasons & (kHardwareThermal | kSoftwareThermal)) != 0) {
    constexpr const char* kCure = "fans, filters, room: nvidia-smi -q -d TEMPERATURE";
    return (reasons & kHardwareThermal) != 0 ? bad(check, found, kCure) : warn(check, found, kCure);
  }
  if ((reasons & kHardwareSlowdown) != 0)
    return bad(check, found, "nvidia-smi -q -d PERFORMANCE; power cables, BMC");
  if ((reasons & kApplicationClocks) != 0)
    return warn(check, found, fmt::format("nvidia-smi -i {} -rac", device.index));
  return ok(check, found);
}

Finding check_links(const GpuDevice& device) {
  const std::string check = "nvlink";
  if (device.links_active + device.links_inactive == 0) return ok(check, "has none");
  if (device.links_active == 0)
    return ok(check, fmt::format("none of {} connected", device.links_inactive));
  const std::string found = fmt::format("{} of {} links up", device.links_active,
                                        device.links_active + device.links_inactive);
  if (device.links_inactive == 0) return ok(check, found);
  // Some cards and clouds have less of them than the chip: nobody tells which are to be up.
  return warn(check, found,
              fmt::format("as many as nvidia-smi nvlink -s -i {} shows of others of its kind here? "
                          "Else {}",
                          device.index, reset_of(device)));
}

}  // namespace

bool is_whole(const GpuDevice& device, const DeviceName& name) {
  return device.index == name.index || is_called(device.uuid, name);
}

GpuNeed gpu_need_of(const config::Resources& resources, const std::optional<std::string>& visible,
                    int workers) {
  if (resources.device() != config::Resources::cuda) return {.use = GpuUse::kUnused};
  GpuNeed need{.use = GpuUse::kUsed, .workers = workers};
  if (visible) need.named_by = "CUDA_VISIBLE_DEVICES";
  if (resources.devices_size() > 0) need.named_by = "resources.devices";
  auto devices = devices_of(resources, visible, workers);
  if (devices) {
    need.devices = *std::move(devices);
  } else {
    need.fault = devices.error().message;
  }
  return need;
}

std::vector<Finding> check_gpus(const GpuFacts& facts, const GpuNeed& need) {
  if (!facts.library_fault.empty()) return {no_driver(facts, need.use)};
  if (facts.nvml_code != 0) return {driver_fails(facts, need.use)};
  std::vector<Finding> findings = {check_driver(facts, need.use != GpuUse::kUnused)};
  // Where there is none at all, that has been said.
  if (need.use == GpuUse::kUsed && !facts.devices.empty()) add_missing(facts, need, findings);
  for (const GpuDevice& device : facts.devices) {
    const bool used = is_used(need, device);
    std::vector<Finding> of_one;
    if (device.nvml_code != 0) {
      of_one = {lost(device)};
    } else {
      of_one = {check_device(device, need), check_device_memory(device), check_clocks(device),
                check_links(device)};
    }
    for (Finding& finding : of_one)
      findings.push_back(on(index_of(device), bad_only_if(used, std::move(finding))));
  }
  return findings;
}

}  // namespace surefoot::doctor
