// The memory of a rank's gradient buffers ("slots"), and views of those of other ranks on the same
// node.
//
// Shared slots lie in a memfd: memory without a name, gone with the last process that maps it,
// however that ends. A peer opens it as /proc/<pid>/fd/<fd>, read-only, and checks a random mark
// behind the slots, so that a pid of another namespace is not mistaken for a rank. Where that is
// not possible the rank is simply not a peer, and its roots come as messages.
//
// connect() talks to all ranks and blocks until its deadline; nothing else here does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/aligned_buffer.h"
#include "collectives/communicator.h"
#include "collectives/ranges.h"

namespace surefoot {

class SlotMemory {
 public:
  // Private memory, no peers.
  SlotMemory(int slots, std::int64_t elements_per_slot);
  // Shared with the ranks of this rank's node, as `places` says. All ranks must call it together.
  // kNoSpace when there is no memory; kRestart when a rank is missing.
  [[nodiscard]] static Result<SlotMemory> connect(Communicator& communicator,
                                                  const std::vector<Place>& places, int slots,
                                                  std::int64_t elements_per_slot, Time deadline);
  ~SlotMemory();
  SlotMemory(SlotMemory&&) noexcept;
  SlotMemory& operator=(SlotMemory&&) = delete;

  [[nodiscard]] std::span<float> slot(int index) const;
  // Whether this rank sees the slots of `rank` directly, and whether `rank` sees this one's.
  [[nodiscard]] bool sees(int rank) const;
  [[nodiscard]] bool is_seen_by(int rank) const;
  // Of a rank that this one sees.
  [[nodiscard]] const float* slot_of(int rank, int index) const;

 private:
  class Mapping;
  SlotMemory(std::int64_t elements_per_slot);
  std::int64_t elements_per_slot_;
  AlignedBuffer private_;
  std::unique_ptr<Mapping> shared_;
  std::vector<std::unique_ptr<Mapping>> peers_;  // by rank; empty where there is none
  std::vector<bool> seen_by_;                    // by rank
};

}  // namespace surefoot
