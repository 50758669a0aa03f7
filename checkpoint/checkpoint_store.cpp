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

// A state in pieces: header, then chunk by chunk, each digested once more on its way out.
class PartSource {
 public:
  PartSource(std::string_view header, ChunkRange chunks, std::span<const std::byte> state,
             std::span<const Digest> digests, const Control& control)
      : header_(header),
        chunk_(chunks.begin),
        end_(chunks.end),
        state_(state),
        digests_(digests),
        control_(control) {}

  Result<std::span<const std::byte>> next() {
    SUREFOOT_TRY(go_on(control_));
    if (!header_.empty()) {
      const std::string_view piece = header_.substr(0, kMaxPieceBytes);
      header_.remove_prefix(piece.size());
      return as_bytes(piece);
    }
    report(control_, std::exchange(last_, 0));
    if (chunk_ == end_) return std::span<const std::byte>();
    const ByteRange range =
        chunk_bytes({chunk_, chunk_ + 1}, static_cast<std::int64_t>(state_.size()));
    const auto bytes = state_.subspan(range.begin, range.size());
    if (digest(bytes) != digests_[chunk_])
      return error(Code::kCorrupt,
                   "chunk {} of the snapshot does not match its digest: the memory has changed",
                   chunk_);
    ++chunk_;
    last_ = range.size();
    return bytes;
  }

 private:
  std::string_view header_;
  std::int64_t chunk_;
  std::int64_t end_;
  std::int64_t last_ = 0;
  std::span<const std::byte> state_;
  std::span<const Digest> digests_;
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

CheckpointStore::CheckpointStore(Store& store, std::string job_id)
    : store_(store), job_id_(std::move(job_id)) {}

Status CheckpointStore::claim(const std::string& job_name, const Control& control) {
  const std::string text = nlohmann::json{{"id", job_id_}, {"name", job_name}}.dump() + "\n";
  auto put = put_if_absent(store_, "job.json", text, control.deadline);
  if (put || put.error().code != Code::kExists) return put;
  SUREFOOT_ASSIGN(const std::string standing,
                  read_object(store_, "job.json", kMaxJobBytes, control.deadline));
  const auto json = nlohmann::json::parse(standing, nullptr, false);
  if (!json.is_object() || !json.contains("id") || !json["id"].is_string())
    return error(Code::kInvalid, "{}/job.json is not readable: move the folder away", store_.url());
  const auto id = json["id"].get<std::string>();
  if (id == job_id_) return {};
  return error(Code::kInvalid,
               "{} holds checkpoints of another job ({}, this one is {}): choose another name or "
               "checkpoint.to",
               store_.url(), id, job_id_);
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
  const std::string header =
      encode_part_header({identity, part, of, chunks, {mine.begin(), mine.end()}});
  const std::string name = part_name(identity.step, identity.attempt, part, of);
  const std::int64_t bytes =
      static_cast<std::int64_t>(header.size()) + chunk_bytes(chunks, layout.bytes).size();

  PartSource source(header, chunks, state, chunk_digests, control);
  auto put = store_.put_if_absent(
      name, bytes, [&source] { return source.next(); }, control.deadline);
  if (put) return bytes;
  if (put.error().code != Code::kExists) return std::move(put).error();
  // Written by an earlier life of this service. Headers hold the digests of all chunks, so equal
  // headers mean equal parts.
  SUREFOOT_ASSIGN(const auto objects, store_.list(name, control.deadline));
  if (objects.size() != 1)
    return error(Code::kRetry, "{}/{} was there and is gone", store_.url(), name);
  SUREFOOT_ASSIGN(const std::string standing,
                  read_header(store_, objects.front(), control.deadline));
  if (standing != header || objects.front().bytes != bytes)
    return error(Code::kCorrupt, "{}/{} is there already with other content", store_.url(), name);
  return bytes;
}

CheckpointStore::Publish CheckpointStore::try_publish(Step step, Attempt attempt, int own_part,
                                                      int of, std::optional<Step> newest_verified,
                                                      const Control& control) {
  const bool superseded = newest_verified && *newest_verified >= step;
  return SetPublisher(*this, store_, job_id_, step, attempt, of, control)
      .run(start_publishing(of, own_part, superseded));
}

Result<Manifest> CheckpointStore::read_manifest(Step step, const Control& control) {
  SUREFOOT_ASSIGN(Manifest manifest, read_any_manifest(store_, step, control.deadline));
  if (manifest.identity.job_id != job_id_)
    return error(Code::kCorrupt, "{}/{} is of job {}, not of job {}", store_.url(),
                 manifest_name(step), manifest.identity.job_id, job_id_);
  return manifest;
}

namespace {

// Reads and checks one part. `into`: the whole state, or empty: the bytes are dropped.
Status check_part(Store& store, const Manifest& manifest, const PartEntry& part,
                  std::span<std::byte> into, std::vector<std::byte>& scratch,
                  const Control& control) {
  const std::int64_t state_bytes = manifest.identity.layout.bytes;
  const std::int64_t header_bytes = part.bytes - chunk_bytes(part.chunks, state_bytes).size();
  std::string header(static_cast<std::size_t>(header_bytes), '\0');
  SUREFOOT_TRY(
      store.read(part.name, 0, std::as_writable_bytes(std::span(header)), control.deadline));
  if (digest(header) != part.header_digest)
    return error(Code::kCorrupt, "the header of part {} does not match its digest in the manifest",
                 part.name);
  std::int64_t at = header_bytes;
  for (std::int64_t chunk = part.chunks.begin; chunk < part.chunks.end; ++chunk) {
    SUREFOOT_TRY(go_on(control));
    const ByteRange range = chunk_bytes({chunk, chunk + 1}, state_bytes);
    auto bytes = into.empty() ? std::span(scratch).first(range.size())
                              : into.subspan(range.begin, range.size());
    SUREFOOT_TRY(store.read(part.name, at, bytes, control.deadline));
    if (digest(bytes) != manifest.chunk_digests[chunk])
      return error(Code::kCorrupt, "chunk {} in part {} does not match its digest", chunk,
                   part.name);
    at += range.size();
    report(control, range.size());
  }
  return {};
}

Status check_parts(Store& store, const Manifest& manifest, std::span<std::byte> into,
                   const Control& control) {
  const Step step = manifest.identity.step;
  const auto about = [&](Error failed) {
    // What the manifest promises and is not there: this copy is not to be used.
    if (failed.code == Code::kNotFound) failed.code = Code::kCorrupt;
    if (failed.code == Code::kCorrupt)
      failed.message = fmt::format("checkpoint of step {} attempt {}: {}", step,
                                   manifest.identity.attempt, failed.message);
    return failed;
  };
  SUREFOOT_ASSIGN(const auto objects, store.list(step_folder(step), control.deadline));
  if (auto there = parts_there(manifest, objects); !there) return about(std::move(there).error());
  std::vector<std::byte> scratch(into.empty() ? kChunkBytes : 0);
  for (const PartEntry& part : manifest.parts) {
    if (auto good = check_part(store, manifest, part, into, scratch, control); !good)
      return about(std::move(good).error());
  }
  return {};
}

}  // namespace

Status CheckpointStore::load(const Manifest& manifest, std::span<std::byte> into,
                             const Control& control) {
  SUREFOOT_CHECK(static_cast<std::int64_t>(into.size()) == manifest.identity.layout.bytes);
  return check_parts(store_, manifest, into, control);
}

Result<Verified> CheckpointStore::verify(Step step, const Control& control) {
  SUREFOOT_ASSIGN(const Manifest manifest, read_manifest(step, control));
  SUREFOOT_TRY(check_parts(store_, manifest, {}, control));
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
    auto manifest = read_any_manifest(store_, step, control.deadline);
    if (!manifest) {
      const bool damaged = manifest.error().code == Code::kCorrupt;
      entry.inventory.state = damaged ? StepState::kDamaged : StepState::kUnknown;
      entry.reason = manifest.error().message;
    } else if (manifest->identity.job_id != job_id_) {
      entry.inventory.state = StepState::kUnknown;
      entry.reason =
          fmt::format("it is of job {}, not of job {}", manifest->identity.job_id, job_id_);
    } else {
      const auto there = parts_there(*manifest, objects);
      entry.inventory.state = there ? StepState::kWhole : StepState::kDamaged;
      entry.inventory.attempt = manifest->identity.attempt;
      if (!there) entry.reason = there.error().message;
      entry.manifest = *std::move(manifest);
    }
  }
  entry.inventory.objects = std::move(objects);
  return entry;
}

Result<std::vector<StepEntry>> CheckpointStore::list(const Control& control) {
  SUREFOOT_ASSIGN(auto objects, store_.list("step-", control.deadline));
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
  SUREFOOT_ASSIGN(const auto objects, store_.list("step-", control.deadline));
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
    SUREFOOT_TRY(store_.remove(name, control.deadline));
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

Status CheckpointStore::remove_step(Step step, const Control& control) {
  StepInventory inventory;
  inventory.step = step;
  SUREFOOT_ASSIGN(inventory.objects, store_.list(step_folder(step), control.deadline));
  const RemovalGroup group = plan_step_removal(inventory);
  if (group.names.empty())
    return error(Code::kNotFound, "{} has no checkpoint of step {}", store_.url(), step);
  std::vector<std::string> removed;
  return remove_group(group, removed, control);
}

}  // namespace surefoot
