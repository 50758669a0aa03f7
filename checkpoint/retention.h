// Rule (delete), as a pure function: what may be removed from a store, and in which order.
//
// Nothing of the newest verified step or of a later one is ever touched. Below it: the `keep` - 1
// newest whole checkpoints stay, and so does, for ever, the first whole one at or after each
// multiple of `every` (checkpoints are made by time, so few stand on a multiple); other published
// steps go, manifest first, as do those with a damaged manifest or missing parts; sets without
// manifest go when nobody has touched them for ten minutes (their writer may still be at work on
// them).
//
// Pure. The caller removes the names of a group in order and gives up the rest of the group when
// one fails: a manifest that may still stand must keep its parts.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/store.h"
#include "common/clock.h"
#include "common/ids.h"

namespace surefoot {

inline constexpr Duration kUnpublishedAge = std::chrono::minutes(10);

enum class StepState {
  kWhole,        // manifest parses, all its parts are there with their sizes
  kDamaged,      // manifest does not parse, or a part is missing or has another size: not offered
  kUnpublished,  // no manifest
  kUnknown,      // the store failed while looking: touch nothing
};

struct StepInventory {
  Step step;
  StepState state = StepState::kUnknown;
  Attempt attempt;  // of the set that the manifest names; kWhole, and kDamaged where it parses
  std::vector<ObjectInfo>
      objects;  // all of this step's folder, foreign ones too (those are left alone)
};

struct RemovalGroup {
  Step step;
  std::vector<std::string> names;  // remove in this order
  std::string_view reason;         // one static sentence
};

// What is to stay.
struct Retention {
  Retention(int keep_newest, std::int64_t keep_every = 0)  // NOLINT: implicit by design
      : keep(keep_newest), every(keep_every) {}
  int keep;            // >= 1
  std::int64_t every;  // steps; 0: none
};

// `newest_verified`: a step of `steps` whose every byte has been read back past the page cache and
// found good.
[[nodiscard]] std::vector<RemovalGroup> plan_removal(const std::vector<StepInventory>& steps,
                                                     Step newest_verified,
                                                     const Retention& retention);

// The whole step, because a user says so.
[[nodiscard]] RemovalGroup plan_step_removal(const StepInventory& step);

}  // namespace surefoot
