// Which GPU a worker takes: `resources.devices`. Pure.
//
//   INDEX                       as nvidia-smi counts (PCI bus order), from 0
//   GPU-UUID                    as `nvidia-smi -L` prints it
//   MIG-UUID, MIG-GPU-UUID/G/C  a MIG instance, as `nvidia-smi -L` prints it (new and old drivers)
//
// The worker of local rank r takes entry r modulo their number, so that an entry which stands
// there twice, or a list shorter than the workers, lets workers share a device. Without entries it
// takes the GPU of its local rank.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "common/status.h"
#include "configs/job.pb.h"

namespace surefoot {

// One of `index` and `uuid`.
struct DeviceName {
  int index = -1;    // -1: by uuid
  std::string uuid;  // in lower case but for its prefix, as NVML and CUDA have it
  [[nodiscard]] bool is_mig() const { return uuid.starts_with("MIG-"); }
  [[nodiscard]] std::string text() const;  // as it would stand in the job file
  friend auto operator<=>(const DeviceName&, const DeviceName&) = default;
};

inline constexpr int kMaxDeviceIndex = 255;  // more GPUs than any machine has

// kInvalid: "found \"...\", allowed is ..."
[[nodiscard]] Result<DeviceName> parse_device(std::string_view entry);

// What the worker of that local rank takes. The job has been checked.
[[nodiscard]] DeviceName device_of(const config::Resources& resources, int local_rank);
// What `workers` workers of one machine take, each once.
[[nodiscard]] std::set<DeviceName> devices_of(const config::Resources& resources, int workers);

}  // namespace surefoot
