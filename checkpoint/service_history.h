// What a service keeps of its job for longer than its arena lives: how often all memory was lost,
// and what its checkpoints took. `<job directory>/service/<host>.json`, one file a machine, as
// several may share the folder. Losing it costs nothing but that knowledge: the interval falls back
// to what is expected of a job nothing is known of.
//
// In the job directory, not in the store: objects there are written once, and this changes every
// minute. Not in the arena: what it counts is the loss of arenas. A job directory that is itself
// lost with the machine forgets the losses.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/interval.h"
#include "common/ids.h"
#include "common/status.h"

namespace surefoot {

inline constexpr std::size_t kCheckpointsRemembered = 1000;  // arbitrary; 100 bytes each

// A checkpoint that this service has read back and found good.
struct StoredCheckpoint {
  Step step;
  Attempt attempt;
  double seconds = 0;  // from its first byte until it was read back; 0: not known
  int workers = 0;     // of this machine
};

struct ServiceHistory {
  LossHistory losses;
  // There is an arena that was not freed in order: when none is found, it was lost.
  bool arena_open = false;
  std::vector<StoredCheckpoint> checkpoints;  // oldest first

  void add(const StoredCheckpoint& checkpoint);
  [[nodiscard]] bool knows(Step step, Attempt attempt) const;
};

[[nodiscard]] std::string to_json(const ServiceHistory& history);
// kCorrupt: it is damaged.
[[nodiscard]] Result<ServiceHistory> parse_service_history(std::string_view text);

// kNotFound: there is none.
[[nodiscard]] Result<ServiceHistory> read_service_history(const std::filesystem::path& file);
Status write_service_history(const std::filesystem::path& file, const ServiceHistory& history);

}  // namespace surefoot
