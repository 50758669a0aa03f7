#include "checkpoint/store_side.h"

#include <algorithm>

#include "common/log.h"

namespace surefoot {

Result<CheckpointStore*> StoreSide::checkpoints() {
  if (!checkpoints_) {
    SUREFOOT_ASSIGN(store_, open_());
    checkpoints_ = std::make_unique<CheckpointStore>(*store_, job_id_, keys_);
  }
  return checkpoints_.get();
}

UploadResult StoreSide::failed(const Error& why) {
  // Opened anew next time: the folder may have been removed, or come back.
  checkpoints_.reset();
  store_.reset();
  claimed_ = false;
  return {UploadOutcome::kFailed, why.message, 0, {}};
}

Status StoreSide::claim(const Control& control) {
  SUREFOOT_ASSIGN(CheckpointStore* const all, checkpoints());
  if (claimed_) return {};
  SUREFOOT_TRY(all->claim(job_name_, control));
  claimed_ = true;
  return {};
}

Result<StoreView> StoreSide::look(const Control& control) {
  SUREFOOT_ASSIGN(CheckpointStore* const all, checkpoints());
  SUREFOOT_ASSIGN(const auto entries, all->list(control));
  StoreView view;
  for (const StepEntry& entry : entries) {
    const StepInventory& inventory = entry.inventory;
    // Whatever lies there was once written after that step.
    view.known = std::max(view.known, inventory.step);
    for (const ObjectInfo& object : inventory.objects) {
      if (const auto parsed = parse_name(object.name); parsed && !parsed->manifest)
        view.newest.last_attempt = std::max(view.newest.last_attempt, parsed->attempt);
    }
    if (inventory.state == StepState::kDamaged || inventory.state == StepState::kUnknown)
      view.refused.push_back(fmt::format("step {}: {}", inventory.step, entry.reason));
    if (!entry.manifest || inventory.state == StepState::kUnknown) continue;
    const CheckpointIdentity& identity = entry.manifest->identity;
    const Digest layout = identity.layout.digest();
    if (!view.newest.there) {
      view.newest.there = true;
      view.newest.layout = layout;
      view.newest.training_hash = identity.training_hash;
      view.newest.training_lines = identity.training_lines;
      view.newest.step = identity.step;
    }
    if (inventory.state != StepState::kWhole) continue;
    view.whole.push_back(
        {identity.step, identity.attempt, entry.manifest->state_digest, layout, entry.age});
  }
  return view;
}

std::vector<std::string> StoreSide::settle_left_overs(int part, int of, const Control& control) {
  std::vector<std::string> lines;
  auto all = checkpoints();
  if (!all) return lines;
  auto sets = (*all)->unpublished(verified_, control);
  if (!sets) return lines;
  for (const UnpublishedSet& set : *sets) {
    // Only the owner of part 0 may replace a damaged manifest; who does not know its part is not
    // it.
    const int own = set.of == 1 ? 0 : set.of == of ? part : set.of - 1;
    const auto tried = (*all)->try_publish(set.step, set.attempt, own, set.of, verified_, control);
    lines.push_back(
        fmt::format("set of step {} attempt {} ({} of {} parts) left by an earlier life: {}",
                    set.step, set.attempt, set.parts_there, set.of, tried.reason));
  }
  return lines;
}

void StoreSide::distrust(Step step) {
  if (verified_ && *verified_ <= step) verified_.reset();
}

UploadResult StoreSide::upload(const UploadTask& task, const Control& control) {
  if (verified_ && *verified_ >= task.identity.step)
    return {UploadOutcome::kNeedless, "this or a later step is in the store", 0, {}};
  auto all = checkpoints();
  if (!all) return failed(all.error());
  if (auto mine = claim(control); !mine) return failed(mine.error());
  if (task.look_first) {
    if (const auto good = (*all)->verify(task.identity.step, control)) {
      UploadResult result = durable(**all, *good, control);
      result.notes.push_back(fmt::format("step {} was stored by another node", good->step()));
      return result;
    }
  }
  UploadResult stored;
  if (auto put = store_part(**all, task, control, stored); !put) {
    if (put.error().code == Code::kCorrupt)
      return {UploadOutcome::kGivenUp, put.error().message, 0, {}};
    return failed(put.error());
  }
  UploadResult result = publish(**all, task, control);
  result.bytes_per_second = stored.bytes_per_second;
  return result;
}

Status StoreSide::store_part(CheckpointStore& checkpoints, const UploadTask& task,
                             const Control& control, UploadResult& result) {
  if (task.part_stored) return {};
  const Time begun = now();
  std::int64_t written = 0;
  Control counting = control;
  counting.progress = [&](std::int64_t bytes) {
    written += bytes;
    if (control.progress) control.progress(bytes);
  };
  SUREFOOT_TRY(checkpoints.store_part(task.identity, task.part, task.of,
                                      task.arena->bytes(task.slot),
                                      task.arena->chunk_digests(task.slot), counting));
  const double seconds_taken = seconds(now() - begun);
  if (written > 0 && seconds_taken > 0)
    result.bytes_per_second = static_cast<double>(written) / seconds_taken;
  return {};
}

UploadResult StoreSide::publish(CheckpointStore& checkpoints, const UploadTask& task,
                                const Control& control) {
  const Step step = task.identity.step;
  const auto tried =
      checkpoints.try_publish(step, task.identity.attempt, task.part, task.of, verified_, control);
  switch (tried.outcome) {
    case PublishOutcome::kPublished:
    // A later step, or another good set of this very step: that one counts.
    case PublishOutcome::kSuperseded:
      return verify_and_clean(checkpoints, task, control);
    case PublishOutcome::kWaiting:
      return {UploadOutcome::kWaiting, tried.reason, 0, true, {}};
    case PublishOutcome::kWithdrawn:
    case PublishOutcome::kRefused:
      return {UploadOutcome::kGivenUp, tried.reason, 0, true, {}};
    case PublishOutcome::kFailed:
      break;
  }
  UploadResult result = failed(error(Code::kRetry, "{}", tried.reason));
  result.part_stored = true;
  return result;
}

// Not what was written, it seems. One reader's bad read must not cost what others have written:
// read once more, and then only this node's own part is taken back, so that it is written again.
UploadResult StoreSide::does_not_read_back(const UploadTask& task, const Error& why,
                                           const Control& control) {
  UploadResult result = failed(why);
  result.part_stored = true;
  result.notes.push_back(fmt::format("the checkpoint of step {} does not read back: {}",
                                     task.identity.step, why.message));
  if (why.code != Code::kCorrupt) return result;
  const auto removed = remove_part(task, control);
  if (removed) {
    result.part_stored = false;
  } else if (removed.error().code == Code::kExists) {
    // Whoever has written the bad part sees it too.
    result.outcome = UploadOutcome::kWaiting;
  } else {
    result.notes.push_back(removed.error().message);
  }
  return result;
}

UploadResult StoreSide::verify_and_clean(CheckpointStore& checkpoints, const UploadTask& task,
                                         const Control& control) {
  const Step step = task.identity.step;
  auto verified = checkpoints.verify(step, control);
  if (!verified && verified.error().code == Code::kCorrupt)
    verified = checkpoints.verify(step, control);
  if (!verified) return does_not_read_back(task, verified.error(), control);
  return durable(checkpoints, *verified, control);
}

UploadResult StoreSide::durable(CheckpointStore& checkpoints, const Verified& newest,
                                const Control& control) {
  verified_ = std::max(verified_.value_or(newest.step()), newest.step());
  UploadResult result{UploadOutcome::kDurable, "published and verified", 0, true, {}};
  auto cleaned = checkpoints.clean(newest, retention_, control);
  if (!cleaned) {
    result.notes.push_back("old checkpoints stay for now: " + cleaned.error().message);
    return result;
  }
  for (const Removed& removed : cleaned->removed)
    result.notes.push_back(fmt::format("removed step {}: {}", removed.step, removed.reason));
  for (const std::string& failure : cleaned->failures) result.notes.push_back(failure);
  return result;
}

Status StoreSide::remove_part(const UploadTask& task, const Control& control) {
  SUREFOOT_ASSIGN(CheckpointStore* const all, checkpoints());
  return all->remove_own_part(task.identity.step, task.identity.attempt, task.part, task.of,
                              control);
}

Result<StoreSide::Filled> StoreSide::fill(const Candidate& candidate, int part, int of,
                                          Arena& arena, const Control& control) {
  SUREFOOT_ASSIGN(CheckpointStore* const all, checkpoints());
  auto manifest = all->read_manifest(candidate.step, control);
  if (!manifest && manifest.error().code == Code::kNotFound)
    return error(Code::kCorrupt, "{}", manifest.error().message);
  if (!manifest) return std::move(manifest).error();
  const CheckpointIdentity& identity = manifest->identity;
  if (identity.attempt != candidate.attempt || manifest->state_digest != candidate.digest) {
    return error(Code::kCorrupt, "the checkpoint of step {} is not the one that was offered",
                 candidate.step);
  }
  if (identity.layout.digest() != arena.spec().layout_digest)
    return error(Code::kCorrupt, "the checkpoint of step {} is of another model", candidate.step);
  SUREFOOT_ASSIGN(const int slot, arena.take(identity.attempt, identity.step));
  const auto table = arena.chunk_digests(slot);
  std::copy(manifest->chunk_digests.begin(), manifest->chunk_digests.end(), table.begin());
  const ChunkRange chunks = part_chunks(identity.layout.chunks(), part, of);
  Status loaded = all->load(*manifest, chunks, arena.bytes(slot), control);
  if (loaded && of == 1)
    loaded = arena.publish(slot, identity.attempt, identity.step, identity.samples, false);
  if (!loaded) {
    arena.discard(slot);
    return std::move(loaded).error();
  }
  return Filled{slot, identity.samples};
}

Result<Exported> StoreSide::export_step(Step step, const config::Job& job,
                                        const std::filesystem::path& folder,
                                        const Control& control) {
  SUREFOOT_ASSIGN(CheckpointStore* const all, checkpoints());
  SUREFOOT_ASSIGN(const Manifest manifest, all->read_manifest(step, control));
  return export_checkpoint(*all, manifest, job, folder, control);
}

}  // namespace surefoot
