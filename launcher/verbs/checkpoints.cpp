#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_store.h"
#include "checkpoint/export.h"
#include "checkpoint/key_file.h"
#include "checkpoint/service_history.h"
#include "launcher/format.h"
#include "launcher/verbs/verbs.h"

namespace surefoot {
namespace {

using nlohmann::json;

std::string_view text_of(StepState state) {
  switch (state) {
    case StepState::kWhole:
      return "whole";
    case StepState::kDamaged:
      return "damaged";
    case StepState::kUnpublished:
      return "unpublished";
    case StepState::kUnknown:
      break;
  }
  return "unknown";
}

// What the services that wrote it remember of a checkpoint.
struct Known {
  bool verified = false;
  double seconds = 0;  // the slowest node's; 0: not known
  int workers = 0;
};
using KnownCheckpoints = std::map<std::pair<Step, Attempt>, Known>;

struct Context {
  const CheckpointsArguments& arguments;
  const FoundJob& found;
  CheckpointStore& store;
  std::string url;
  Control control;
  KnownCheckpoints known;
};

std::string_view text_of(const StepEntry& entry) {
  return entry.locked ? "locked" : text_of(entry.inventory.state);
}

KnownCheckpoints read_known(const std::filesystem::path& folder) {
  KnownCheckpoints known;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const auto history = read_service_history(entry.path());
    if (!history) continue;
    for (const StoredCheckpoint& stored : history->checkpoints) {
      Known& checkpoint = known[{stored.step, stored.attempt}];
      checkpoint.verified = true;
      checkpoint.seconds = std::max(checkpoint.seconds, stored.seconds);
      checkpoint.workers += stored.workers;
    }
  }
  return known;
}

Known known_of(const KnownCheckpoints& known, const StepEntry& entry) {
  const auto found = known.find({entry.inventory.step, entry.inventory.attempt});
  const bool whole = entry.inventory.state == StepState::kWhole;
  return whole && found != known.end() ? found->second : Known{};
}

json entry_json(const StepEntry& entry, const Known& known) {
  json object = {{"step", entry.inventory.step.value},
                 {"state", text_of(entry)},
                 {"bytes", entry.bytes},
                 {"age_seconds", seconds(entry.age)}};
  if (entry.manifest) {
    object["attempt"] = entry.manifest->identity.attempt.value;
    object["parts"] = entry.manifest->parts.size();
    if (!entry.locked) object["digest"] = entry.manifest->state_digest.hex();
    if (entry.manifest->is_encrypted()) object["key_id"] = entry.manifest->key_id;
  }
  object["read_back"] = known.verified;
  if (known.workers > 0) object["workers"] = known.workers;
  if (known.seconds > 0) object["seconds"] = known.seconds;
  if (!entry.reason.empty()) object["reason"] = entry.reason;
  return object;
}

int list(Context& context, std::vector<StepEntry> entries) {
  // Newest first already; what was read back comes before what never was.
  std::stable_partition(entries.begin(), entries.end(), [&](const StepEntry& entry) {
    return known_of(context.known, entry).verified;
  });
  if (context.arguments.json) {
    json all = json::array();
    for (const StepEntry& entry : entries)
      all.push_back(entry_json(entry, known_of(context.known, entry)));
    std::printf("%s\n", json{{"checkpoints", all}}.dump().c_str());
    return kExitOk;
  }
  fmt::print("{:>12}  {:<11}  {:>7}  {:>10}  {:>5}  {:>7}  {:>10}  {:>12}  {}\n", "step", "state",
             "attempt", "size", "nodes", "workers", "took", "age", "digest");
  for (const StepEntry& entry : entries) {
    const Known known = known_of(context.known, entry);
    const auto or_dash = [](bool there, const std::string& text) { return there ? text : "-"; };
    const bool readable = entry.manifest.has_value();
    fmt::print(
        "{:>12}  {:<11}  {:>7}  {:>10}  {:>5}  {:>7}  {:>10}  {:>12}  {}\n", entry.inventory.step,
        known.verified && !entry.locked ? "verified" : text_of(entry),
        or_dash(readable, fmt::format("{}", entry.inventory.attempt)), bytes_text(entry.bytes),
        or_dash(readable, fmt::format("{}", readable ? entry.manifest->parts.size() : 0)),
        or_dash(known.workers > 0, fmt::format("{}", known.workers)),
        or_dash(known.seconds > 0, duration_text(known.seconds)), duration_text(seconds(entry.age)),
        readable && !entry.locked ? entry.manifest->state_digest.hex() : entry.reason);
  }
  std::fflush(stdout);
  return kExitOk;
}

int verify(Context& context, const std::vector<StepEntry>& entries) {
  json all = json::array();
  bool good = true;
  for (const StepEntry& entry : entries) {
    const Step step = entry.inventory.step;
    json object = entry_json(entry, known_of(context.known, entry));
    // What a running job is about to publish is no fault; it is one where it was asked for.
    if (entry.inventory.state == StepState::kUnpublished && !context.arguments.step) {
      object["verified"] = false;
      all.push_back(object);
      if (!context.arguments.json)
        std::printf("step %lld: unpublished\n", static_cast<long long>(step.value));
      continue;
    }
    auto verified = context.store.verify(step, context.control);
    good = good && verified;
    object["verified"] = verified.has_value();
    if (!verified) object["reason"] = verified.error().message;
    all.push_back(object);
    if (context.arguments.json) continue;
    std::printf("step %lld: %s\n", static_cast<long long>(step.value),
                verified ? "every byte is as it was written" : verified.error().message.c_str());
  }
  if (context.arguments.json) std::printf("%s\n", json{{"checkpoints", all}}.dump().c_str());
  if (!good) std::fprintf(stderr, "surefoot: not all checkpoints are good\n");
  return good ? kExitOk : kExitNotGood;
}

int export_newest(Context& context, const std::vector<StepEntry>& entries) {
  for (const StepEntry& entry : entries) {
    auto manifest = context.store.read_manifest(entry.inventory.step, context.control);
    auto exported = manifest ? export_checkpoint(context.store, *manifest, context.found.job,
                                                 context.arguments.to, context.control)
                             : Result<Exported>(manifest.error());
    if (exported) {
      const json object = {{"step", entry.inventory.step.value},
                           {"folder", exported->folder.string()},
                           {"weights_sha256", exported->weights_sha256},
                           {"state_sha256", exported->state_sha256}};
      if (context.arguments.json) {
        std::printf("%s\n", object.dump().c_str());
      } else {
        std::printf("step %lld is in %s\nsha256 %s\n",
                    static_cast<long long>(entry.inventory.step.value), exported->folder.c_str(),
                    exported->weights_sha256.c_str());
      }
      return kExitOk;
    }
    std::fprintf(stderr, "surefoot: step %lld is not exported: %s\n",
                 static_cast<long long>(entry.inventory.step.value),
                 exported.error().message.c_str());
    // A copy that is bad makes the next older one the best; anything else concerns them all.
    if (exported.error().code != Code::kCorrupt && exported.error().code != Code::kNotFound)
      return complain(exported.error());
  }
  return complain(error(Code::kNotFound, "no good checkpoint is left in {}", context.url));
}

int remove(Context& context, const std::vector<StepEntry>& entries) {
  for (const StepEntry& entry : entries) {
    if (Status removed = context.store.remove_step(entry.inventory.step, context.control); !removed)
      return complain(removed.error());
    std::fprintf(stderr, "step %lld is removed\n",
                 static_cast<long long>(entry.inventory.step.value));
  }
  if (context.arguments.json)
    std::printf("%s\n", json{{"removed", context.arguments.step->value}}.dump().c_str());
  return kExitOk;
}

}  // namespace

int checkpoints_verb(const CheckpointsArguments& arguments, const StoreOpener& open_store) {
  using Action = CheckpointsArguments::Action;
  auto found = find_job(arguments.job);
  if (!found) return complain(found.error());
  auto store = open_store(*found, arguments.action == Action::kRemove);
  if (!store) return complain(store.error());
  auto keys = read_keys(found->job.checkpoint());
  if (!keys && arguments.action != Action::kList && arguments.action != Action::kRemove)
    return complain(keys.error());
  CheckpointStore checkpoints(**store, found->id, keys ? *keys : nullptr);
  Context context{arguments,       *found, checkpoints,
                  (*store)->url(), {},     read_known(found->directory.service_history())};
  auto all = checkpoints.list(context.control);
  if (!all) return complain(all.error());
  std::vector<StepEntry> entries = std::move(*all);
  if (arguments.step) {
    std::erase_if(entries,
                  [&](const StepEntry& entry) { return entry.inventory.step != *arguments.step; });
    if (entries.empty())
      return complain(error(Code::kNotFound, "there is no checkpoint of step {} in {}",
                            *arguments.step, (*store)->url()));
  }
  switch (arguments.action) {
    case Action::kVerify:
      return verify(context, entries);
    case Action::kExport:
      return export_newest(context, entries);
    case Action::kRemove:
      return remove(context, entries);
    case Action::kList:
      break;
  }
  return list(context, entries);
}

}  // namespace surefoot
