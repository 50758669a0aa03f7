#include "checkpoint/set_publisher.h"

#include <utility>

#include "checkpoint/store_reading.h"

namespace surefoot {

CheckpointStore::Publish SetPublisher::run(PublishDecision decision) {
  for (;;) {
    if (const auto* done = std::get_if<PublishDone>(&decision.effect)) {
      std::string reason(decision.reason);
      if (!details_.empty()) reason += ": " + details_;
      return {done->outcome, std::move(reason)};
    }
    PublishEvent event = StoreFailed{};
    if (auto going = go_on(control_); going) {
      event = std::visit([this](const auto& effect) { return perform(effect); }, decision.effect);
    } else {
      details_ = going.error().message;
    }
    decision = decide(decision.next, event);
  }
}

PublishEvent SetPublisher::failed(Error why) {
  details_ = std::move(why.message);
  return StoreFailed{};
}

PublishEvent SetPublisher::perform(const ListSet&) {
  auto objects = store_.list(step_folder(step_), control_.by());
  if (!objects) return failed(std::move(objects).error());
  SetListed listed{std::vector<bool>(static_cast<std::size_t>(of_)), false, false};
  parts_.assign(static_cast<std::size_t>(of_), {});
  for (const ObjectInfo& object : *objects) {
    const auto parsed = parse_name(object.name);
    if (!parsed) continue;
    if (parsed->manifest) listed.manifest = true;
    if (!parsed->manifest && goes_first(*parsed)) listed.goes_first = true;
    if (parsed->manifest || parsed->attempt != attempt_ || parsed->of != of_) continue;
    listed.parts[static_cast<std::size_t>(parsed->part)] = true;
    parts_[static_cast<std::size_t>(parsed->part)] = object;
  }
  return listed;
}

// Of several sets of a step only one may replace a damaged manifest: the one of the latest attempt,
// and of that the one with the fewest parts, as a whole state written by one node needs nobody
// else.
bool SetPublisher::goes_first(const ParsedName& part) const {
  if (part.attempt != attempt_) return part.attempt > attempt_;
  return part.of < of_;
}

PublishEvent SetPublisher::perform(const ReadHeader& effect) {
  const auto part = static_cast<std::size_t>(effect.part);
  if (part == 0) stored_.clear();
  auto header = read_header(store_, parts_[part], control_.by());
  if (!header) {
    if (header.error().code == Code::kNotFound) return HeaderRead{HeaderRead::kAbsent};
    if (header.error().code != Code::kCorrupt) return failed(std::move(header).error());
    details_ = parts_[part].name + ": " + header.error().message;
    return HeaderRead{HeaderRead::kBad};
  }
  stored_.push_back({parts_[part].bytes, *std::move(header)});
  auto checked = check(part);
  if (checked) return HeaderRead{HeaderRead::kGood};
  details_ = checked.error().message;
  return HeaderRead{HeaderRead::kBad};
}

// Headers are checked against each other once the last has come.
Status SetPublisher::check(std::size_t part) {
  if (part + 1 < static_cast<std::size_t>(of_)) return {};
  SUREFOOT_ASSIGN(Manifest manifest, make_manifest(stored_));
  const CheckpointIdentity& identity = manifest.identity;
  if (identity.job_id != job_id_ || identity.step != step_ || identity.attempt != attempt_) {
    return error(Code::kCorrupt, "the parts say they are of job {}, step {}, attempt {}",
                 identity.job_id, identity.step, identity.attempt);
  }
  manifest_ = encode_manifest(manifest);
  return {};
}

PublishEvent SetPublisher::perform(const PutManifest&) {
  const auto put = put_if_absent(store_, manifest_name(step_), manifest_, control_.by());
  if (put) return ManifestPut{ManifestPut::kDone};
  if (put.error().code == Code::kExists) return ManifestPut{ManifestPut::kExists};
  if (put.error().code == Code::kOutcomeUnknown) return ManifestPut{ManifestPut::kUnknown};
  return failed(put.error());
}

PublishEvent SetPublisher::perform(const ReadManifest&) {
  auto manifest = read_any_manifest(store_, step_, control_.by());
  if (!manifest) {
    if (manifest.error().code == Code::kNotFound) return ManifestRead{ManifestRead::kAbsent};
    if (manifest.error().code != Code::kCorrupt) return failed(std::move(manifest).error());
    details_ = manifest.error().message;
    return ManifestRead{ManifestRead::kDamaged};
  }
  // Another job's folder: nothing in it is ours to judge or to replace.
  if (manifest->identity.job_id != job_id_)
    return failed(error(Code::kInvalid, "{} holds checkpoints of job {}", store_.url(),
                        manifest->identity.job_id));
  // Several nodes and one alone may write sets of one attempt: they differ in their number of
  // parts.
  const bool ours = manifest->identity.attempt == attempt_ &&
                    manifest->parts.size() == static_cast<std::size_t>(of_);
  return ManifestRead{ours ? ManifestRead::kOurs : ManifestRead::kOther};
}

PublishEvent SetPublisher::perform(const VerifyOther&) {
  const auto verified = checkpoints_.verify(step_, control_);
  if (verified) return OtherVerified{true};
  const Code code = verified.error().code;
  if (code != Code::kCorrupt && code != Code::kNotFound) return failed(verified.error());
  details_ = verified.error().message;
  return OtherVerified{false};
}

PublishEvent SetPublisher::perform(const RemoveManifest&) {
  auto removed = store_.remove(manifest_name(step_), control_.by());
  if (!removed) return failed(std::move(removed).error());
  return ManifestRemoved{};
}

}  // namespace surefoot
