// Where a worker is. Written into its line of the arena header, named in logs, deadlines and
// faults.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace surefoot {

// Stands in shared memory: do not renumber.
enum class Phase : std::uint32_t {
  kStarting = 0,         // before the worker has its communicator and its model
  kRestoring = 1,        // hello, plan, filling the arena
  kData = 2,             // reading the micro-batches of a step
  kForwardBackward = 3,  // the model
  kReduction = 4,        // what of the reduction backward did not hide
  kUpdate = 5,           // clip, optimizer
  kSnapshot = 6,         // digests, and waiting for the slot to be READY
  kEvaluation = 7,
  kFinishing = 8,  // last checkpoint, export
  kDone = 9,       // left on purpose
};
inline constexpr std::size_t kPhaseCount = 10;
inline constexpr std::array<std::string_view, kPhaseCount> kPhaseNames = {
    "starting", "restoring", "data",       "forward_backward", "reduction",
    "update",   "snapshot",  "evaluation", "finishing",        "done"};

[[nodiscard]] constexpr std::string_view name(Phase phase) {
  const auto index = static_cast<std::size_t>(phase);
  return index < kPhaseCount ? kPhaseNames[index] : "?";
}
[[nodiscard]] constexpr std::optional<Phase> phase_named(std::string_view text) {
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    if (kPhaseNames[i] == text) return static_cast<Phase>(i);
  }
  return std::nullopt;
}

}  // namespace surefoot
