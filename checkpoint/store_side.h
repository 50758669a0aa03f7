// The service's dealings with its store: what it has, writing a slot as a checkpoint, filling a
// slot from one, the export.
//
// Opens the store when it is first needed and again after a failure. One thread per object; calls
// block on the store, until control.stop() or its deadline at the longest. Errors as in
// checkpoint_store.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/arena.h"
#include "checkpoint/checkpoint_store.h"
#include "checkpoint/export.h"
#include "checkpoint/restore.h"
#include "checkpoint/service_core.h"

namespace surefoot {

using OpenStore = std::function<Result<std::unique_ptr<Store>>()>;

// What a store has, in short.
struct StoreView {
  struct Entry {
    Step step;
    Attempt attempt;
    Digest state;
    Digest layout;
    Duration age{};
  };
  std::vector<Entry> whole;  // newest first
  HelloFacts::Stored newest;
  Step known;                        // the furthest step of which there is anything
  std::vector<std::string> refused;  // "step 7: part ... is missing"
};

// A READY, pinned slot that is to become a checkpoint.
struct UploadTask {
  std::shared_ptr<Arena> arena;
  int slot = 0;
  CheckpointIdentity identity;
  int part = 0;
  int of = 1;
  bool part_stored = false;  // this node's part is in the store: only others are waited for
  bool look_first = false;   // another node may have stored the very step
};
enum class UploadOutcome {
  kDurable,   // published, read back and verified
  kNeedless,  // this or a later step has been verified already
  kWaiting,   // the part is stored, others are missing: look again later
  kGivenUp,   // it will never be one
  kFailed,    // the store failed: try again
};
struct UploadResult {
  UploadOutcome outcome = UploadOutcome::kFailed;
  std::string reason;
  double bytes_per_second = 0;     // of the part; 0: it was there already
  bool part_stored = false;        // this node's part is in the store
  std::vector<std::string> notes;  // what else the log should say
};

class StoreSide {
 public:
  StoreSide(OpenStore open, std::string job_id, std::string job_name, const Retention& retention,
            Keys keys)
      : open_(std::move(open)),
        job_id_(std::move(job_id)),
        job_name_(std::move(job_name)),
        retention_(retention),
        keys_(std::move(keys)) {}

  [[nodiscard]] Result<StoreView> look(const Control& control);
  // Marks the folder as this job's, so that a store that cannot be written is known before
  // training.
  Status claim(const Control& control);
  // That checkpoint has turned out bad: what is made from here on is needed again.
  void distrust(Step step);
  // Tries to publish what an earlier life of the service has left without manifest, unless a later
  // step has been read back in this life: that a newer one is whole does not say that it is good.
  // Returns what it did, a line each.
  [[nodiscard]] std::vector<std::string> settle_left_overs(int part, int of,
                                                           const Control& control);
  [[nodiscard]] UploadResult upload(const UploadTask& task, const Control& control);
  // What stands under the name of this task's part and is no good, see remove_own_part().
  Status remove_part(const UploadTask& task, const Control& control);
  // A slot, and the samples that its state has seen.
  struct Filled {
    int slot = -1;
    std::int64_t samples = 0;
  };
  // Brings a checkpoint into a slot of the arena, READY; `of` above 1: only part `part` of it,
  // WRITING, with the digests of all chunks. kCorrupt: not this one.
  [[nodiscard]] Result<Filled> fill(const Candidate& candidate, int part, int of, Arena& arena,
                                    const Control& control);
  [[nodiscard]] Result<Exported> export_step(Step step, const config::Job& job,
                                             const std::filesystem::path& folder,
                                             const Control& control);

 private:
  [[nodiscard]] Result<CheckpointStore*> checkpoints();
  UploadResult publish(CheckpointStore& checkpoints, const UploadTask& task,
                       const Control& control);
  Status store_part(CheckpointStore& checkpoints, const UploadTask& task, const Control& control,
                    UploadResult& result);
  UploadResult verify_and_clean(CheckpointStore& checkpoints, const UploadTask& task,
                                const Control& control);
  UploadResult durable(CheckpointStore& checkpoints, const Verified& newest,
                       const Control& control);
  UploadResult does_not_read_back(const UploadTask& task, const Error& why, const Control& control);
  UploadResult failed(const Error& why);

  OpenStore open_;
  std::string job_id_;
  std::string job_name_;
  Retention retention_;
  Keys keys_;
  bool claimed_ = false;
  std::optional<Step> verified_;  // the newest that was read back in this life
  std::unique_ptr<Store> store_;
  std::unique_ptr<CheckpointStore> checkpoints_;
};

}  // namespace surefoot
