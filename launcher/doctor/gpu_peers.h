// "peer bandwidth": what the GPUs of a job's workers on this machine move between each other, by a
// short all-reduce of surefoot-gpu-links. Plan and verdict are pure.
//
// The program computes on the GPUs for a moment, so it only runs where nobody else does; and only
// for `surefoot doctor`, not before a launch.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/gpu.h"
#include "launcher/doctor/programs.h"

namespace surefoot::doctor {

inline constexpr std::size_t kMostPeers = 16;  // more GPUs than most machines have; arbitrary
// NVML may take kGpuPatience, surefoot-gpu-links ends itself after 43 s, mpirun takes a moment.
inline constexpr Duration kPeerPatience = std::chrono::seconds(75);

struct PeerPlan {
  std::string unavailable;          // it is not measured, and why
  std::vector<DeviceName> devices;  // two at least
  std::string links;                // that they have: "NVLink", "PCIe"
  double least = 0;                 // bytes/s: less is far below what those carry; 0: not known
};
// Those that the job takes, without a job all that there are. `visible`: CUDA_VISIBLE_DEVICES.
[[nodiscard]] PeerPlan plan_peers(const GpuFacts& facts, const GpuNeed& need,
                                  const std::optional<std::string>& visible);
// What shows the ranks just these, one each.
[[nodiscard]] std::vector<std::string> peer_environment(const PeerPlan& plan,
                                                        const std::optional<std::string>& visible);
[[nodiscard]] Finding check_peers(const PeerPlan& plan, const Measured& measured);

// Asks NVML, then measures. `programs`: the folder of surefoot-gpu-links.
[[nodiscard]] Finding look_at_peers(const GpuNeed& need, const std::filesystem::path& programs,
                                    const std::filesystem::path& scratch, const Asked& asked);

}  // namespace surefoot::doctor
