#include "checkpoint/checkpoint_store.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/set_publisher.h"
#include "checkpoint/store_reading.h"

namespace surefoot {
namespace {

constexpr std::int64_t kMaxJobBytes = 64 << 10;

void report(const Control& control, std::int64_t bytes) {
  if (control.progress) control.progress(bytes);
}

// A part in pieces: header, then chunk by chunk, each digested once more on its way out, and sealed
// piece by piece where there is a key.
class PartSource {
 public:
  PartSource(const PartHeader& header, std::string_view encoded, std::span<const std::byte> state,
             const SealKey* key, const Control& control)
      : header_(header),
        encoded_(encoded),
        chunk_(header.chunks.begin),
        state_(state),
        key_(key),
        sealed_(key != nullptr ? kSealPieceBytes + kSealExtraBytes : 0),
        control_(control) {}

  Result<std::span<const std::byte>> next() {
    if (!encoded_.empty()) {
      SUREFOOT_TRY(go_on(control_));
      const std::string_view piece = encoded_.substr(0, kMaxPieceBytes);
      encoded_.remove_prefix(piece.size());
      return as_bytes(piece);
    }
    report(control_, std::exchange(last_, 0));
    if (left_.empty()) {
      SUREFOOT_TRY(go_on(control_));
      if (chunk_ == header_.chunks.end) return std::span<const std::byte>();
      SUREFOOT_TRY(take_chunk());
    }
    const auto plain = left_.first(std::min<std::size_t>(
        left_.size(), key_ != nullptr ? kSealPieceBytes : std::int64_t{kMaxPieceBytes}));
    left_ = left_.subspan(plain.size());
    last_ = static_cast<std::int64_t>(plain.size());
    if (key_ == nullptr) return plain;
    const auto sealed = std::span(sealed_).first(plain.size() + kSealExtraBytes);
    key_->seal(piece_context(header_.identity, header_.part, header_.of, piece_++), plain, sealed);
    return std::span<const std::byte>(sealed);
  }

 private:
  Status take_chunk() {
    const ByteRange range =
        chunk_bytes({chunk_, chunk_ + 1}, static_cast<std::int64_t>(state_.size()));
    left_ = state_.subspan(range.begin, range.size());
    if (digest(left_) != header_.chunk_digests[chunk_ - header_.chunks.begin])
      return error(Code::kCorrupt,
                   "chunk {} of the snapshot does not match its digest: the memory has changed",
                   chunk_);
    ++chunk_;
    return {};
  }

  const PartHeader& header_;
  std::string_view encoded_;
  std::int64_t chunk_;
  std::int64_t piece_ = 0;
  std::int64_t last_ = 0;
  std::span<const std::byte> state_;
  std::span<const std::byte> left_;  // of the chunk in hand
  const SealKey* key_;
  std::vector<std::byte> sealed_;
  const Control& control_;
};

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

// Reads a state back and checks every byte of it.
class StateReader {
 public:
  // `manifest` is open. Reads what lies in `chunks`. `into`: the whole state, or empty: the bytes
  // are dropped.
  StateReader(Store& store, const Manifest& manifest, const SealKey* key, ChunkRange chunks,
              std::span<std::byte> into, const Control& control)
      : store_(store),
        manifest_(manifest),
        key_(key),
        chunks_(chunks),
        into_(into),
        control_(control),
        dropped_(into.empty() ? largest_chunk() : 0),
        sealed_(key != nullptr ? sealed_bytes(largest_chunk()) : 0) {}

  Status read_part(int part) {
    const PartEntry& entry = manifest_.parts[static_cast<std::size_t>(part)];
    // A part without chunks is looked at by everybody: its header counts too.
    const bool elsewhere = entry.chunks.end <= chunks_.begin || chunks_.end <= entry.chunks.begin;
    if (entry.chunks.size() > 0 && elsewhere) return {};
    const std::int64_t state_bytes = manifest_.identity.layout.bytes;
    const std::int64_t header_bytes =
        entry.bytes - stored_payload_bytes(entry.chunks, state_bytes, manifest_.is_encrypted());
    SUREFOOT_TRY(check_header(part, header_bytes));
    std::int64_t at = header_bytes;
    for (std::int64_t chunk = entry.chunks.begin; chunk < entry.chunks.end; ++chunk) {
      SUREFOOT_TRY(go_on(control_));
      const ByteRange range = chunk_bytes({chunk, chunk + 1}, state_bytes);
      const std::int64_t here =
          std::exchange(at, at + (key_ == nullptr ? range.size() : sealed_bytes(range.size())));
      if (chunk < chunks_.begin || chunk >= chunks_.end) continue;
      const auto bytes = into_.empty() ? std::span(dropped_).first(range.size())
                                       : into_.subspan(range.begin, range.size());
      if (key_ == nullptr) {
        SUREFOOT_TRY(store_.read(entry.name, here, bytes, control_.by()));
      } else {
        SUREFOOT_TRY(read_sealed(part, here, chunk - entry.chunks.begin, bytes));
      }
      if (digest(bytes) != manifest_.chunk_digests[chunk])
        return error(Code::kCorrupt, "chunk {} in part {} does not match its digest", chunk,
                     entry.name);
      report(control_, range.size());
    }
    return {};
  }

 private:
  [[nodiscard]] std::int64_t largest_chunk() const {
    return std::min(kChunkBytes, manifest_.identity.layout.bytes);
  }

  Status check_header(int part, std::int64_t header_bytes) {
    const PartEntry& entry = manifest_.parts[static_cast<std::size_t>(part)];
    std::string header(static_cast<std::size_t>(header_bytes), '\0');
    SUREFOOT_TRY(
        store_.read(entry.name, 0, std::as_writable_bytes(std::span(header)), control_.by()));
    if (digest(header) != entry.header_digest)
      return error(Code::kCorrupt,
                   "the header of part {} does not match its digest in the manifest", entry.name);
    // Anybody can make that digest anew; what was opened with the key is known to be as written.
    if (key_ != nullptr && header != encode_part_header(header_of(manifest_, part)))
      return error(Code::kCorrupt, "the header of part {} is not what the manifest says",
                   entry.name);
    return {};
  }

  // Opens the pieces of one chunk straight into their place. `number`: of the chunk in its part.
  Status read_sealed(int part, std::int64_t at, std::int64_t number, std::span<std::byte> bytes) {
    const PartEntry& entry = manifest_.parts[static_cast<std::size_t>(part)];
    auto sealed = std::span(sealed_).first(sealed_bytes(static_cast<std::int64_t>(bytes.size())));
    SUREFOOT_TRY(store_.read(entry.name, at, sealed, control_.by()));
    const int of = static_cast<int>(manifest_.parts.size());
    for (std::int64_t piece = number * (kChunkBytes / kSealPieceBytes); !bytes.empty(); ++piece) {
      const auto plain = bytes.first(std::min<std::size_t>(bytes.size(), kSealPieceBytes));
      const auto from = sealed.first(plain.size() + kSealExtraBytes);
      if (!key_->open(piece_context(manifest_.identity, part, of, piece), from, plain))
        return error(Code::kCorrupt, "piece {} of part {} is not what was written there", piece,
                     entry.name);
      bytes = bytes.subspan(plain.size());
      sealed = sealed.subspan(from.size());
    }
    return {};
  }

  Store& store_;
  const Manifest& manifest_;
  const SealKey* key_;
  ChunkRange chunks_;
  std::span<std::byte> into_;
  const Control& control_;
  std::vector<std::byte> dropped_;
  std::vector<std::byte> sealed_;
};

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
