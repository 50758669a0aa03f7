#include "checkpoint/service_history.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/file.h"

namespace surefoot {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr double kMostSeconds = 3e9;  // a century: what is more is damage

bool is_number(const json& object, const char* key, double most) {
  return object.contains(key) && object[key].is_number() && object[key].get<double>() >= 0 &&
         object[key].get<double>() <= most;
}

bool is_checkpoint(const json& entry) {
  return entry.is_object() && is_number(entry, "step", 1e15) && is_number(entry, "attempt", 1e15) &&
         is_number(entry, "seconds", kMostSeconds) && is_number(entry, "workers", 1e6);
}

}  // namespace

void ServiceHistory::add(const StoredCheckpoint& checkpoint) {
  std::erase_if(checkpoints, [&](const StoredCheckpoint& known) {
    return known.step == checkpoint.step && known.attempt == checkpoint.attempt;
  });
  checkpoints.push_back(checkpoint);
  if (checkpoints.size() > kCheckpointsRemembered) checkpoints.erase(checkpoints.begin());
}

bool ServiceHistory::knows(Step step, Attempt attempt) const {
  return std::any_of(checkpoints.begin(), checkpoints.end(), [&](const StoredCheckpoint& known) {
    return known.step == step && known.attempt == attempt;
  });
}

std::string to_json(const ServiceHistory& history) {
  json checkpoints = json::array();
  for (const StoredCheckpoint& checkpoint : history.checkpoints) {
    checkpoints.push_back({{"step", checkpoint.step.value},
                           {"attempt", checkpoint.attempt.value},
                           {"seconds", checkpoint.seconds},
                           {"workers", checkpoint.workers}});
  }
  const json object = {{"version", kVersion},
                       {"watched_seconds", seconds(history.losses.watched)},
                       {"losses", history.losses.losses},
                       {"arena_open", history.arena_open},
                       {"checkpoints", std::move(checkpoints)}};
  return object.dump() + "\n";
}

Result<ServiceHistory> parse_service_history(std::string_view text) {
  const json object = json::parse(text, nullptr, false);
  const bool good =
      object.is_object() && is_number(object, "version", 1e9) && object["version"] == kVersion &&
      is_number(object, "watched_seconds", kMostSeconds) && is_number(object, "losses", 1e9) &&
      object.contains("arena_open") && object["arena_open"].is_boolean() &&
      object.contains("checkpoints") && object["checkpoints"].is_array() &&
      object["checkpoints"].size() <= kCheckpointsRemembered &&
      std::all_of(object["checkpoints"].begin(), object["checkpoints"].end(), is_checkpoint);
  if (!good) return error(Code::kCorrupt, "this is not what a service remembers of its job");
  ServiceHistory history;
  history.losses.watched = from_seconds(object["watched_seconds"].get<double>());
  history.losses.losses = object["losses"].get<int>();
  history.arena_open = object["arena_open"].get<bool>();
  for (const json& entry : object["checkpoints"]) {
    history.checkpoints.push_back({Step{entry["step"].get<std::int64_t>()},
                                   Attempt{entry["attempt"].get<std::int64_t>()},
                                   entry["seconds"].get<double>(), entry["workers"].get<int>()});
  }
  return history;
}

Result<ServiceHistory> read_service_history(const std::filesystem::path& file) {
  SUREFOOT_ASSIGN(const std::string text, read_file(file));
  auto history = parse_service_history(text);
  if (!history)
    return error(history.error().code, "{}: {}", file.string(), history.error().message);
  return history;
}

Status write_service_history(const std::filesystem::path& file, const ServiceHistory& history) {
  std::error_code failed;
  std::filesystem::create_directories(file.parent_path(), failed);
  return write_file_atomically(file, to_json(history));
}

}  // namespace surefoot
