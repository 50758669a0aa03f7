#include "checkpoint/retention.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "checkpoint/part.h"

namespace surefoot {
namespace {

struct Sets {
  std::vector<std::string> published;  // parts of the attempt the manifest names
  std::vector<std::string> abandoned;  // of other sets, untouched for long
  std::optional<std::string> manifest;
};

Sets sets_of(const StepInventory& step) {
  Sets sets;
  std::map<std::pair<Attempt, int>, std::vector<const ObjectInfo*>> others;
  const bool named = step.state == StepState::kWhole || step.state == StepState::kDamaged;
  for (const ObjectInfo& object : step.objects) {
    const auto parsed = parse_name(object.name);
    if (!parsed || parsed->step != step.step) continue;
    if (parsed->manifest) {
      sets.manifest = object.name;
    } else if (named && parsed->attempt == step.attempt) {
      sets.published.push_back(object.name);
    } else {
      others[{parsed->attempt, parsed->of}].push_back(&object);
    }
  }
  for (const auto& [set, objects] : others) {
    // One young part shows that somebody is at work on the set.
    const bool old = std::all_of(objects.begin(), objects.end(), [](const ObjectInfo* object) {
      return object->age >= kUnpublishedAge;
    });
    if (!old) continue;
    for (const ObjectInfo* object : objects) sets.abandoned.push_back(object->name);
  }
  return sets;
}

// Manifest first: were a part removed before it, a half checkpoint would stand there between.
RemovalGroup whole_step(const StepInventory& step, std::string_view reason) {
  Sets sets = sets_of(step);
  RemovalGroup group{step.step, {}, reason};
  if (sets.manifest) group.names.push_back(*std::move(sets.manifest));
  for (auto* list : {&sets.published, &sets.abandoned}) {
    group.names.insert(group.names.end(), list->begin(), list->end());
  }
  return group;
}

// The first whole step of each range [n * every, (n + 1) * every), n > 0.
std::set<Step> kept_forever(const std::vector<StepInventory>& steps, std::int64_t every) {
  std::map<std::int64_t, Step> first;
  for (const StepInventory& step : steps) {
    if (every <= 0 || step.state != StepState::kWhole || step.step.value < every) continue;
    const auto [entry, fresh] = first.try_emplace(step.step.value / every, step.step);
    if (!fresh) entry->second = std::min(entry->second, step.step);
  }
  std::set<Step> kept;
  for (const auto& [range, step] : first) kept.insert(step);
  return kept;
}

}  // namespace

std::vector<RemovalGroup> plan_removal(const std::vector<StepInventory>& steps,
                                       Step newest_verified, const Retention& retention) {
  const std::set<Step> forever = kept_forever(steps, retention.every);
  std::vector<const StepInventory*> below;
  for (const StepInventory& step : steps) {
    if (step.step < newest_verified) below.push_back(&step);
  }
  std::sort(below.begin(), below.end(),
            [](const StepInventory* a, const StepInventory* b) { return a->step > b->step; });
  int kept = 1;  // the verified one itself
  std::vector<RemovalGroup> groups;
  for (const StepInventory* step : below) {
    RemovalGroup group{step->step, {}, {}};
    if (step->state == StepState::kUnknown) continue;
    const bool among_newest = step->state == StepState::kWhole && kept < retention.keep;
    kept += among_newest ? 1 : 0;
    if (among_newest || forever.contains(step->step)) {
      group.names = sets_of(*step).abandoned;
      group.reason = "parts of a set that was never published";
    } else if (step->state == StepState::kWhole) {
      group = whole_step(*step, "older than the checkpoints to keep");
    } else if (step->state == StepState::kDamaged) {
      group = whole_step(*step, "damaged, and a newer checkpoint is verified");
    } else {
      group.names = sets_of(*step).abandoned;
      group.reason = "parts of a set that was never published";
    }
    if (!group.names.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

RemovalGroup plan_step_removal(const StepInventory& step) {
  RemovalGroup group{step.step, {}, "removed at the user's word"};
  for (const ObjectInfo& object : step.objects) {
    const auto parsed = parse_name(object.name);
    if (!parsed || parsed->step != step.step) continue;
    group.names.insert(parsed->manifest ? group.names.begin() : group.names.end(), object.name);
  }
  return group;
}

}  // namespace surefoot
