// Which GPU a worker takes: `resources.devices`, or the environment's CUDA_VISIBLE_DEVICES. The
// worker chooses by it, and who looks at the GPUs looks at these. Pure.
//
//   INDEX                       as nvidia-smi counts (PCI bus order), from 0
//   GPU-UUID                    as `nvidia-smi -L` prints it
//   MIG-UUID, MIG-GPU-UUID/G/C  a MIG instance, as `nvidia-smi -L` prints it (new and old drivers)
//
// The worker of local rank r takes entry r modulo their number, so that an entry which stands
// there twice, or a list shorter than the workers, lets workers share a device. Without entries it
// takes entry r of CUDA_VISIBLE_DEVICES (a batch system's, say), without that GPU r. An INDEX
// counts within CUDA_VISIBLE_DEVICES where that is set, as it does for other programs.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "configs/job.pb.h"

namespace surefoot {

// One of `index` and `uuid`.
struct DeviceName {
  int index = -1;  // -1: by uuid
  // In lower case but for its prefix, as NVML and CUDA have it. From CUDA_VISIBLE_DEVICES it may
  // be the beginning of one, or anything else that CUDA refuses.
  std::string uuid;
  [[nodiscard]] bool is_mig() const { return uuid.starts_with("MIG-"); }
  [[nodiscard]] std::string text() const;  // as it would stand in the job file
  friend auto operator<=>(const DeviceName&, const DeviceName&) = default;
};

inline constexpr int kMaxDeviceIndex = 255;  // more GPUs than any machine has

// kInvalid: "found \"...\", allowed is ..."
[[nodiscard]] Result<DeviceName> parse_device(std::string_view entry);
// Of CUDA_VISIBLE_DEVICES, where anything may stand.
[[nodiscard]] DeviceName device_shown(const std::string& entry);

// What the worker of that local rank takes. `devices`: resources.devices of a job that has been
// checked; `visible`: CUDA_VISIBLE_DEVICES of the workers, or nothing. kInvalid: there is no such
// entry.
[[nodiscard]] Result<DeviceName> device_of(const std::vector<std::string>& devices,
                                           const std::optional<std::string>& visible,
                                           int local_rank);
// What `workers` workers of one machine take, each once.
[[nodiscard]] Result<std::set<DeviceName>> devices_of(const config::Resources& resources,
                                                      const std::optional<std::string>& visible,
                                                      int workers);

// CUDA_VISIBLE_DEVICES of this process, which the programs that it starts inherit.
[[nodiscard]] std::optional<std::string> visible_devices();

}  // namespace surefoot
