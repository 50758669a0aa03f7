// The adapter to NVML (libnvidia-ml.so.1), the library of NVIDIA's driver that tells of GPUs. No
// context is made: no memory of a GPU is taken.
//
// Each call blocks for as long as the driver does, which after a hardware error may be for ever,
// and the library may crash: only to be called in a process that may be lost (doctor/run_checks.h,
// node/gpu_watch.h).
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <vector>

#include "checkpoint/service.pb.h"
#include "configs/devices.h"
#include "launcher/nvidia/gpu_facts.h"

namespace surefoot {

// NVIDIA GPUs on the PCI bus, below `root`/sys; drivers are not asked.
[[nodiscard]] int count_cards(const std::filesystem::path& root);
[[nodiscard]] GpuFacts look_at_gpus();

// What GPUs do while workers run on them.
class GpuSampler {
 public:
  GpuSampler();
  ~GpuSampler();
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;
  // One a device, in the order of the set; what cannot be known has a fault.
  [[nodiscard]] std::vector<service::GpuStatus> look(const std::set<DeviceName>& devices);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace surefoot
