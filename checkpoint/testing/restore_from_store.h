// Restoring as the service does it: plan, load, next candidate when a copy is refused.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint_store.h"
#include "checkpoint/restore.h"

namespace surefoot::testing {

struct Restored {
  std::optional<Step> step;  // nothing: no good copy
  Attempt attempt;
  std::vector<std::byte> bytes;
  std::vector<std::string> refusals;  // which was refused and why
  std::string error;
};

inline Restored restore_from_store(CheckpointStore& checkpoints, Step known) {
  Restored restored;
  const auto entries = checkpoints.list({});
  if (!entries) {
    restored.error = entries.error().message;
    return restored;
  }
  RestoreInventory inventory;
  inventory.known_step = known;
  for (const StepEntry& entry : *entries) {
    if (entry.inventory.state == StepState::kWhole) {
      inventory.candidates.push_back({Candidate::Source::kStore, entry.inventory.step,
                                      entry.inventory.attempt, entry.manifest->state_digest, 0});
    } else {
      restored.refusals.push_back(fmt::format("step {}: {}", entry.inventory.step, entry.reason));
    }
  }
  for (;;) {
    const auto plan = plan_restore(inventory);
    if (!plan) {
      restored.error = plan.error().message;
      return restored;
    }
    if (!plan->source) return restored;
    const auto manifest = checkpoints.read_manifest(plan->source->step, {});
    if (manifest) {
      restored.bytes.assign(static_cast<std::size_t>(manifest->identity.layout.bytes),
                            std::byte{0xee});
      const auto loaded = checkpoints.load(*manifest, restored.bytes, {});
      if (loaded) {
        restored.step = plan->source->step;
        restored.attempt = plan->source->attempt;
        return restored;
      }
      restored.refusals.push_back(loaded.error().message);
    } else {
      restored.refusals.push_back(manifest.error().message);
    }
    inventory.failed.push_back(*plan->source);
  }
}

}  // namespace surefoot::testing
