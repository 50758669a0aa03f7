#include "checkpoint/checkpoint_store.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/part_stream.h"
#include "checkpoint/set_publisher.h"
#include "checkpoint/store_reading.h"

namespace surefoot {
namespace {

constexpr std::int64_t kMaxJobBytes = 64 << 10;

// Are all parts among `objects`, with their sizes? Says which is not.
Status parts_there(const Manifest& manifest, const std::vector<ObjectInfo>& objects) {
  std::map<std::string_view, std::int64_t> sizes;
  for (const ObjectInfo& object : objects) sizes.emplace(object.name, object.bytes);
  for (const PartEntry& part : manifest.parts) {
    const auto found = sizes.find(part.name);
    if (found == sizes.end()) return error(Code::kCorrupt, "part {} is missing", part.name);
    if (found->second != part.bytes)
      return error(Code::kCorrupt, "part {} has {} bytes, not {}", part.name, found->second,
                   part.bytes);
  }
  return {};
}

}  // namespace

CheckpointStore::CheckpointStore(Store& store, std::string job_id, Keys keys)
    : store_(store), job_id_(std::move(job_id)), keys_(std::move(keys)) {}

Status CheckpointStore::claim(const std::string& job_name, const Control& control) {
  const std::string text = nlohmann::json{{"id", job_id_}, {"name", job_name}}.dump() + "\n";
  auto put = put_if_absent(store_, "job.json", text, control.by());
  if (put) return newest_can_be_read(control);
  if (put.error().code != Code::kExists) return put;
  SUREFOOT_ASSIGN(const std::string standing,
                  read_object(store_, "job.json", kMaxJobBytes, control.by()));
  const auto json = nlohmann::json::parse(standing, nullptr, false);
  if (!json.is_object() || !json.contains("id") || !json["id"].is_string())
    return error(Code::kInvalid, "{}/job.json is not readable: move the folder away", store_.url());
  const auto id = json["id"].get<std::string>();
  if (id == job_id_) return newest_can_be_read(control);
  return error(Code::kInvalid,
               "{} holds checkpoints of another job ({}, this one is {}): choose another name or "
               "checkpoint.to",
               store_.url(), id, job_id_);
}

Status CheckpointStore::newest_can_be_read(const Control& control) {
  SUREFOOT_ASSIGN(const auto objects, store_.list("step-", control.by()));
  std::set<Step, std::greater<>> published;
  for (const ObjectInfo& object : objects) {
    if (const auto parsed = parse_name(object.name); parsed && parsed->manifest)
      published.insert(parsed->step);
  }
  for (const Step step : published) {
    SUREFOOT_TRY(go_on(control));
    const auto manifest = read_any_manifest(store_, step, control.by());
    if (!manifest && manifest.error().code == Code::kRetry) return manifest.error();
    if (!manifest || manifest->identity.job_id != job_id_) continue;
    if (!manifest->is_encrypted()) return {};
    if (const auto key = key_for(keys_, manifest->key_id); !key)
      return error(key.error().code, "the checkpoint of step {} in {} is {}", step, store_.url(),
                   key.error().message);
    return {};
  }
  return {};
}

Result<std::int64_t> CheckpointStore::store_part(const CheckpointIdentity& identity, int part,
                                                 int of, std::span<const std::byte> state,
                                                 std::span<const Digest> chunk_digests,
                                                 const Control& control) {
  const StateLayout& layout = identity.layout;
  SUREFOOT_CHECK(identity.job_id == job_id_);
  SUREFOOT_CHECK(static_cast<std::int64_t>(state.size()) == layout.bytes);
  SUREFOOT_CHECK(static_cast<std::int64_t>(chunk_digests.size()) == layout.chunks());
  const ChunkRange chunks = part_chunks(layout.chunks(), part, of);
  const auto mine = chunk_digests.subspan(chunks.begin, chunks.size());
  PartHeader header{identity, part, of, chunks, {mine.begin(), mine.end()}, std::nullopt};
  const SealKey* const key = keys_ ? &keys_->current() : nullptr;
  if (key != nullptr) seal_digests(header, *key);
  const std::string encoded = encode_part_header(header);
  const std::string name = part_name(identity.step, identity.attempt, part, of);
  const std::int64_t bytes = static_cast<std::int64_t>(encoded.size()) + header.payload_bytes();

  PartSource source(header, encoded, state, key, control);
  auto put = store_.put_if_absent(
      name, bytes, [&source] { return source.next(); }, control.by(bytes));
  if (put) return bytes;
  if (put.error().code != Code::kExists) return std::move(put).error();
  // Written by an earlier life of this service.
  SUREFOOT_ASSIGN(const auto objects, store_.list(name, control.by()));
  if (objects.size() != 1)
    return error(Code::kRetry, "{}/{} was there and is gone", store_.url(), name);
  SUREFOOT_TRY(is_same_part(header, objects.front(), control));
  return objects.front().bytes;
}

// Headers hold the digests of all chunks, so equal headers mean equal parts. That one was made with
// another key, or before there was one, does not matter, as long as it can be read.
Status CheckpointStore::is_same_part(const PartHeader& header, const ObjectInfo& object,
                                     const Control& control) {
  const auto about = [&](const Error& why) {
    return error(why.code, "{}/{} is there already: {}", store_.url(), object.name, why.message);
  };
  const auto other = [&] { return about(error(Code::kCorrupt, "with other content")); };
  SUREFOOT_ASSIGN(const std::string text, read_header(store_, object, control.by()));
  auto standing = parse_part_header(text);
  if (!standing) return other();
  if (standing->sealed) {
    const auto key = key_for(keys_, standing->sealed->key_id);
    if (!key) return about(key.error());
    if (!open_digests(*standing, **key)) return other();
  }
  const bool same =
      same_set(standing->identity, header.identity) && standing->part == header.part &&
      standing->of == header.of && standing->chunk_digests == header.chunk_digests &&
      object.bytes == static_cast<std::int64_t>(text.size()) + standing->payload_bytes();
  if (!same) return other();
  return {};
}

CheckpointStore::Publish CheckpointStore::try_publish(Step step, Attempt attempt, int own_part,
                                                      int of, std::optional<Step> newest_verified,
                                                      const Control& control) {
  const bool superseded = newest_verified && *newest_verified >= step;
  return SetPublisher(*this, store_, job_id_, step, attempt, of, control)
      .run(start_publishing(of, own_part, superseded));
}

Result<Manifest> CheckpointStore::read_manifest(Step step, const Control& control) {
  SUREFOOT_ASSIGN(Manifest manifest, read_any_manifest(store_, step, control.by()));
  if (manifest.identity.job_id != job_id_)
    return error(Code::kCorrupt, "{}/{} is of job {}, not of job {}", store_.url(),
                 manifest_name(step), manifest.identity.job_id, job_id_);
  if (const auto opened = open_manifest(manifest, keys_); !opened)
    return error(opened.error().code, "{}/{}: {}", store_.url(), manifest_name(step),
                 opened.error().message);
  return manifest;
}

namespace {

Status check_parts(Store& store, const Manifest& manifest, const Keys& keys, ChunkRange chunks,
                   std::span<std::byte> into, const Control& control) {
  const Step step = manifest.identity.step;
  const auto about = [&](Error failed) {
    // What the manifest promises and is not there: this copy is not to be used.
    if (failed.code == Code::kNotFound) failed.code = Code::kCorrupt;
    if (failed.code == Code::kCorrupt)
      failed.message = fmt::format("checkpoint of step {} attempt {}: {}", step,
                                   manifest.identity.attempt, failed.message);
    return failed;
  };
  const SealKey* key = nullptr;
  if (manifest.is_encrypted()) {
    SUREFOOT_ASSIGN(key, key_for(keys, manifest.key_id));
  }
  SUREFOOT_ASSIGN(const auto objects, store.list(step_folder(step), control.by()));
  if (auto there = parts_there(manifest, objects); !there) return about(std::move(there).error());
  StateReader reader(store, manifest, key, chunks, into, control);
  for (int part = 0; part < static_cast<int>(manifest.parts.size()); ++part) {
    if (auto good = reader.read_part(part); !good) return about(std::move(good).error());
  }
  return {};
}

}  // namespace

Status CheckpointStore::load(const Manifest& manifest, std::span<std::byte> into,
                             const Control& control) {
  return load(manifest, {0, manifest.identity.layout.chunks()}, into, control);
}

Status CheckpointStore::load(const Manifest& manifest, ChunkRange chunks, std::span<std::byte> into,
                             const Control& control) {
  const StateLayout& layout = manifest.identity.layout;
  SUREFOOT_CHECK(static_cast<std::int64_t>(into.size()) == layout.bytes);
  SUREFOOT_CHECK(static_cast<std::int64_t>(manifest.chunk_digests.size()) == layout.chunks());
  return check_parts(store_, manifest, keys_, chunks, into, control);
}

Result<Verified> CheckpointStore::verify(Step step, const Control& control) {
  SUREFOOT_ASSIGN(const Manifest manifest, read_manifest(step, control));
  SUREFOOT_TRY(
      check_parts(store_, manifest, keys_, {0, manifest.identity.layout.chunks()}, {}, control));
  return Verified(step, manifest.identity.attempt);
}

StepEntry CheckpointStore::look_at(Step step, std::vector<ObjectInfo> objects,
                                   const Control& control) {
  StepEntry entry;
  entry.inventory.step = step;
  const ObjectInfo* manifest_object = nullptr;
  for (const ObjectInfo& object : objects) {
    entry.bytes += object.bytes;
    if (&object == &objects.front() || object.age < entry.age) entry.age = object.age;
    if (object.name == manifest_name(step)) manifest_object = &object;
  }
  if (manifest_object == nullptr) {
    entry.inventory.state = StepState::kUnpublished;
    entry.reason = "it has no manifest: it was never published";
  } else {
    entry.age = manifest_object->age;
    auto manifest = read_any_manifest(store_, step, control.by());
    if (!manifest) {
      const bool damaged = manifest.error().code == Code::kCorrupt;
      entry.inventory.state = damaged ? StepState::kDamaged : StepState::kUnknown;
      entry.reason = manifest.error().message;
    } else if (manifest->identity.job_id != job_id_) {
      entry.inventory.state = StepState::kUnknown;
      entry.reason =
          fmt::format("it is of job {}, not of job {}", manifest->identity.job_id, job_id_);
    } else {
      Status good = parts_there(*manifest, objects);
      if (good) good = open_manifest(*manifest, keys_);
      entry.locked = !good && good.error().code == Code::kInvalid;
      entry.inventory.state = good           ? StepState::kWhole
                              : entry.locked ? StepState::kUnknown
                                             : StepState::kDamaged;
      entry.inventory.attempt = manifest->identity.attempt;
      if (!good) entry.reason = good.error().message;
      entry.manifest = *std::move(manifest);
    }
  }
  entry.inventory.objects = std::move(objects);
  return entry;
}

Result<std::vector<StepEntry>> CheckpointStore::list(const Control& control) {
  SUREFOOT_ASSIGN(auto objects, store_.list("step-", control.by()));
  std::map<Step, std::vector<ObjectInfo>> steps;
  for (ObjectInfo& object : objects) {
    if (const auto parsed = parse_name(object.name))
      steps[parsed->step].push_back(std::move(object));
  }
  std::vector<StepEntry> entries;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    SUREFOOT_TRY(go_on(control));
    entries.push_back(look_at(step->first, std::move(step->second), control));
  }
  return entries;
}

Result<std::vector<UnpublishedSet>> CheckpointStore::unpublished(std::optional<Step> above,
                                                                 const Control& control) {
  SUREFOOT_ASSIGN(const auto objects, store_.list("step-", control.by()));
  std::set<Step> published;
  std::map<std::tuple<Step, Attempt, int>, int> sets;
  for (const ObjectInfo& object : objects) {
    const auto parsed = parse_name(object.name);
    if (!parsed || (above && parsed->step <= *above)) continue;
    if (parsed->manifest) {
      published.insert(parsed->step);
    } else {
      ++sets[{parsed->step, parsed->attempt, parsed->of}];
    }
  }
  std::vector<UnpublishedSet> found;
  for (const auto& [set, there] : sets) {
    const auto& [step, attempt, of] = set;
    if (!published.contains(step)) found.push_back({step, attempt, of, there});
  }
  return found;
}

Status CheckpointStore::remove_group(const RemovalGroup& group, std::vector<std::string>& removed,
                                     const Control& control) {
  for (const std::string& name : group.names) {
    SUREFOOT_TRY(go_on(control));
    SUREFOOT_TRY(store_.remove(name, control.by()));
    removed.push_back(name);
  }
  return {};
}

Result<CleanReport> CheckpointStore::clean(const Verified& newest, const Retention& retention,
                                           const Control& control) {
  SUREFOOT_ASSIGN(const auto entries, list(control));
  std::vector<StepInventory> steps;
  bool stands = false;
  for (const StepEntry& entry : entries) {
    const StepInventory& step = entry.inventory;
    stands = stands || (step.step == newest.step() && step.attempt == newest.attempt() &&
                        step.state == StepState::kWhole);
    steps.push_back(step);
  }
  // Verified once, but somebody has removed or replaced it since: nothing vouches for deleting
  // others.
  if (!stands)
    return error(Code::kNotFound,
                 "the verified checkpoint of step {} is no longer whole: nothing is deleted",
                 newest.step());
  CleanReport report;
  for (const RemovalGroup& group : plan_removal(steps, newest.step(), retention)) {
    Removed done{group.step, {}, group.reason};
    if (auto removed = remove_group(group, done.names, control); !removed)
      report.failures.push_back(std::move(removed).error().message);
    if (!done.names.empty()) report.removed.push_back(std::move(done));
  }
  return report;
}

Status CheckpointStore::remove_own_part(Step step, Attempt attempt, int part, int of,
                                        const Control& control) {
  const std::string name = part_name(step, attempt, part, of);
  const auto manifest = read_manifest(step, control);
  if (!manifest && manifest.error().code != Code::kNotFound &&
      manifest.error().code != Code::kCorrupt)
    return manifest.error();
  if (manifest && manifest->identity.attempt == attempt &&
      manifest->parts.size() == static_cast<std::size_t>(of)) {
    const ChunkRange chunks = part_chunks(manifest->identity.layout.chunks(), part, of);
    const auto good = check_parts(store_, *manifest, keys_, chunks, {}, control);
    if (good) return error(Code::kExists, "{} is as it was written", name);
    if (good.error().code != Code::kCorrupt) return good;
    SUREFOOT_TRY(store_.remove(manifest_name(step), control.by()));
  }
  return store_.remove(name, control.by());
}

Status CheckpointStore::remove_step(Step step, const Control& control) {
  StepInventory inventory;
  inventory.step = step;
  SUREFOOT_ASSIGN(inventory.objects, store_.list(step_folder(step), control.by()));
  const RemovalGroup group = plan_step_removal(inventory);
  if (group.names.empty())
    return error(Code::kNotFound, "{} has no checkpoint of step {}", store_.url(), step);
  std::vector<std::string> removed;
  return remove_group(group, removed, control);
}

}  // namespace surefoot
