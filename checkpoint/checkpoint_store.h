// The checkpoints of one job in a store: writing parts, publishing, verifying, loading, listing,
// removing.
//
// Performs what commit.h and retention.h decide. Several nodes (and the command line) may work on
// the same store at once, each with an object of its own; one thread per object. Memory: two chunks
// (8 MiB), never a buffer of the size of the state. Every call blocks on the store until
// control.deadline, or control.patience without progress, at the longest, or until control.stop()
// is true (asked once a chunk): then kRetry.
//
// With keys, parts are encrypted before they leave this object (seal.h), and what was encrypted
// with any of the keys can be read; what lies there in the clear from before can be read too. A
// checkpoint that would need another key is never offered, never taken for damaged, and never
// removed but at the user's word.
//
// Errors: kRetry, kNoSpace: nothing has changed for others, try again. kOutcomeUnknown: it may have
// happened; the same call again is safe. kCorrupt: the copy at hand must not be used; the message
// names step, part and chunk. kInvalid: the store cannot be used like this (permissions, ...).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/commit.h"
#include "checkpoint/manifest.h"
#include "checkpoint/part.h"
#include "checkpoint/retention.h"
#include "checkpoint/store.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/ids.h"
#include "common/status.h"

namespace surefoot {

struct Control {
  Time deadline = Time::max();
  // What each call of the store may take, beside what its bytes do: a big state may take as long as
  // it wants as long as it goes on.
  Duration patience = Duration::max();
  std::function<void(std::int64_t bytes)>
      progress;                // payload bytes done since the last call; may be empty
  std::function<bool()> stop;  // may be empty

  // Until when a call that begins now and moves `bytes` may last.
  [[nodiscard]] Time by(std::int64_t bytes = 0) const;
};

// One step as it lies in the store.
struct StepEntry {
  StepInventory inventory;
  std::optional<Manifest> manifest;  // where it parses
  bool locked = false;     // whole, but encrypted with a key that is not at hand; kUnknown
  std::string reason;      // kDamaged, kUnpublished, kUnknown: why it is not offered
  std::int64_t bytes = 0;  // of all its objects
  Duration age{};          // of its manifest, else of its youngest object
};

// A set without manifest.
struct UnpublishedSet {
  Step step;
  Attempt attempt;
  int of = 1;
  int parts_there = 0;
};

// Proof that every byte of a checkpoint has been read back and found good. Made by verify() only.
class Verified {
 public:
  [[nodiscard]] Step step() const { return step_; }
  [[nodiscard]] Attempt attempt() const { return attempt_; }

 private:
  friend class CheckpointStore;
  Verified(Step step, Attempt attempt) : step_(step), attempt_(attempt) {}
  Step step_;
  Attempt attempt_;
};

struct Removed {
  Step step;
  std::vector<std::string> names;
  std::string_view reason;
};
struct CleanReport {
  std::vector<Removed> removed;
  std::vector<std::string> failures;  // what could not be removed and why; tried again next time
};

class CheckpointStore {
 public:
  // Objects of another job id are refused everywhere. `store` must outlive this object. Without
  // keys nothing is encrypted.
  CheckpointStore(Store& store, std::string job_id, Keys keys = nullptr);

  // Marks the job's folder in the store with job.json. kInvalid: it is another job's, or its newest
  // checkpoint is encrypted and its key is not at hand: nothing in the clear, or under another key,
  // is to be written after it. Repeatable.
  Status claim(const std::string& job_name, const Control& control);

  // Writes part `part` of `of` of the state, streaming. Digests each chunk again on the way:
  // kCorrupt when the bytes do not match `chunk_digests` (one per chunk of the whole state). A part
  // of the same name and content that is there already is fine. Returns the object's size.
  [[nodiscard]] Result<std::int64_t> store_part(const CheckpointIdentity& identity, int part,
                                                int of, std::span<const std::byte> state,
                                                std::span<const Digest> chunk_digests,
                                                const Control& control);

  struct Publish {
    PublishOutcome outcome;
    std::string reason;  // a sentence, with names and the store's message where it failed
  };
  // Looks at the set once and does what Rule (commit) says. `newest_verified`: no set at or below
  // it is published any more. kWaiting, kFailed: call again at intervals, at start, and until
  // superseded.
  Publish try_publish(Step step, Attempt attempt, int own_part, int of,
                      std::optional<Step> newest_verified, const Control& control);

  // All steps, newest first. kRetry: the store failed. A step that cannot be looked at is in it as
  // kUnknown.
  [[nodiscard]] Result<std::vector<StepEntry>> list(const Control& control);
  // Sets without manifest of steps newer than `above`: to be tried at start.
  [[nodiscard]] Result<std::vector<UnpublishedSet>> unpublished(std::optional<Step> above,
                                                                const Control& control);

  // With its digests opened. kNotFound: no manifest. kCorrupt: it is damaged, or of another job or
  // step. kInvalid: it is encrypted with a key that is not at hand.
  [[nodiscard]] Result<Manifest> read_manifest(Step step, const Control& control);
  // Reads a whole state into `into` (of layout.bytes), every header and chunk checked; what is
  // encrypted is opened straight into its place. `manifest`: from read_manifest().
  Status load(const Manifest& manifest, std::span<std::byte> into, const Control& control);
  // Only these chunks of it, into their place in `into`.
  Status load(const Manifest& manifest, ChunkRange chunks, std::span<std::byte> into,
              const Control& control);
  // The same without keeping the bytes.
  [[nodiscard]] Result<Verified> verify(Step step, const Control& control);

  // Rule (delete). Errors of single objects are in the report.
  [[nodiscard]] Result<CleanReport> clean(const Verified& newest, const Retention& retention,
                                          const Control& control);
  // Takes back a part that this node itself has written and that is no good, so that it can be
  // written again: the manifest first where it is of this set, then this part; parts of others
  // stay. kExists: the part is as a standing manifest of this set says: nothing is removed.
  Status remove_own_part(Step step, Attempt attempt, int part, int of, const Control& control);
  // A user's word: the whole step, manifest first.
  Status remove_step(Step step, const Control& control);

 private:
  Status newest_can_be_read(const Control& control);
  Status is_same_part(const PartHeader& header, const ObjectInfo& object, const Control& control);
  StepEntry look_at(Step step, std::vector<ObjectInfo> objects, const Control& control);
  Status remove_group(const RemovalGroup& group, std::vector<std::string>& removed,
                      const Control& control);

  Store& store_;
  std::string job_id_;
  Keys keys_;
};

}  // namespace surefoot
