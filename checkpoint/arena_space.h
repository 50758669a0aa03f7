// Is there room for an arena? Looked at before memory is taken: in a memory cgroup, too much shared
// memory is not an error code but the end of a process chosen by the kernel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/status.h"

namespace surefoot {

struct SpaceFacts {
  std::int64_t free_bytes = 0;     // of the file system
  bool memory = false;             // it is a tmpfs: its files are memory
  std::int64_t memory_bytes = 0;   // available on the machine, swap included; only with `memory`
  std::int64_t cgroup_bytes = -1;  // left in the tightest memory cgroup; -1: no limit
};

// Pure. kNoSpace names what is needed, what there is and the key to change.
Status check_space(std::int64_t needed_bytes, const std::string& folder, const SpaceFacts& facts);

[[nodiscard]] Result<SpaceFacts> look_at_space(const std::filesystem::path& folder);

// Before anything is launched: can the folder that arenas are made in (checkpoint.arena; empty:
// /dev/shm) be written, and does it have room for what Open MPI puts there for `workers` ranks?
// kNoSpace. The arena itself is looked at when its size is known.
Status check_arena_base(const std::string& base, int workers);

// Of the machine, swap included.
[[nodiscard]] Result<std::int64_t> available_memory();

// Bytes left in the tightest memory cgroup (version 1 or 2) of this process; -1: no limit. `root`
// is "/" but in tests.
[[nodiscard]] std::int64_t cgroup_room(const std::filesystem::path& root);

}  // namespace surefoot
