#include "checkpoint/restore.h"

#include <algorithm>
#include <tuple>

namespace surefoot {
namespace {

// Greater is better.
auto rank(const Candidate& candidate) {
  return std::make_tuple(candidate.step, candidate.source == Candidate::Source::kArena,
                         candidate.attempt, -candidate.node);
}

bool same_copy(const Candidate& a, const Candidate& b) {
  const bool same_place = a.source == Candidate::Source::kStore || a.node == b.node;
  return a.source == b.source && a.step == b.step && a.attempt == b.attempt && same_place;
}

std::string_view reason(const RestoreInventory& inventory, const Candidate& chosen) {
  if (chosen.step < inventory.known_step) {
    return chosen.source == Candidate::Source::kArena
               ? "the newest good copy lies in memory and is older than the furthest finished step"
               : "the newest good copy lies in the store and is older than the furthest finished "
                 "step";
  }
  return chosen.source == Candidate::Source::kArena ? "the newest finished step lies in memory"
                                                    : "the newest finished step lies in the store";
}

}  // namespace

Result<RestorePlan> plan_restore(const RestoreInventory& inventory) {
  const Candidate* best = nullptr;
  for (const Candidate& candidate : inventory.candidates) {
    const bool failed =
        std::any_of(inventory.failed.begin(), inventory.failed.end(),
                    [&](const Candidate& other) { return same_copy(candidate, other); });
    // Initial weights are no copy of a job that has been further.
    const bool initial = candidate.step == Step{0} && inventory.known_step > Step{0};
    if (failed || initial) continue;
    if (best == nullptr || rank(candidate) > rank(*best)) best = &candidate;
  }
  if (best != nullptr) return RestorePlan{*best, reason(inventory, *best)};
  // A copy that was offered and failed is knowledge of its step too.
  Step known = inventory.known_step;
  for (const Candidate& candidate : inventory.candidates) known = std::max(known, candidate.step);
  for (const Candidate& candidate : inventory.failed) known = std::max(known, candidate.step);
  if (known == Step{0})
    return RestorePlan{std::nullopt, "no step is known to have been finished: starting at step 0"};
  if (inventory.restart_when_lost) {
    return RestorePlan{std::nullopt,
                       "the state is lost and on_lost_state is restart: starting again at step 0"};
  }
  return error(Code::kInvalid,
               "step {} was finished, but no good copy of any state is left in memory or in the "
               "store; bring back the "
               "checkpoints, or set checkpoint.on_lost_state: restart to begin again at step 0",
               known);
}

}  // namespace surefoot
