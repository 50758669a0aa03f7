// The finished model on the supervisor's machine, where the machine that stored the last step has
// no job directory in common with it: exported from the store.
//
// Blocks until the deadline at the longest. Errors as of export_checkpoint (checkpoint/export.h).
#pragma once

#include <string>

#include "checkpoint/export.h"
#include "launcher/verbs/verbs.h"

namespace surefoot {

// Into <job directory>/final. kCorrupt: the store holds other bits than `weights_sha256`.
[[nodiscard]] Result<Exported> bring_model(const StoreOpener& open_store, const FoundJob& job,
                                           Step step, const std::string& weights_sha256,
                                           Time deadline);

}  // namespace surefoot
