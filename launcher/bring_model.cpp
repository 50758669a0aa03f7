#include "launcher/bring_model.h"

#include "checkpoint/key_file.h"

namespace surefoot {

Result<Exported> bring_model(const StoreOpener& open_store, const FoundJob& job, Step step,
                             const std::string& weights_sha256, Time deadline) {
  SUREFOOT_ASSIGN(const auto store, open_store(job, /*write=*/false));
  SUREFOOT_ASSIGN(const Keys keys, read_keys(job.job.checkpoint()));
  CheckpointStore checkpoints(*store, job.id, keys);
  Control control;
  control.deadline = deadline;
  SUREFOOT_ASSIGN(const Manifest manifest, checkpoints.read_manifest(step, control));
  SUREFOOT_ASSIGN(Exported exported, export_checkpoint(checkpoints, manifest, job.job,
                                                       job.directory.final_model(), control));
  if (exported.weights_sha256 != weights_sha256) {
    return error(Code::kCorrupt, "{} holds other weights of step {} than were finished: {}",
                 store->url(), step, exported.weights_sha256);
  }
  return exported;
}

}  // namespace surefoot
