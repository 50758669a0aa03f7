// Opens the store that a job's `checkpoint.to` names, with the adapter that it takes. For main.cpp
// only: everything else knows the port (store.h).
//
//   FOLDER        <folder>/<job>/...                  checkpoint/store/file/
//   s3://...      s3://BUCKET/PREFIX/<job>/...        checkpoint/store/s3/
//
// Two jobs of one name and one `to` share that place; the second is refused by job.json
// (CheckpointStore::claim). Blocks on the store, a bucket's until `patience` is over. Errors as
// those of the adapters.
#pragma once

#include <memory>

#include "checkpoint/store.h"
#include "common/clock.h"
#include "common/status.h"
#include "configs/job.h"
#include "configs/job_directory.h"

namespace surefoot {

inline constexpr Duration kLongestOpening = std::chrono::minutes(1);

// `read_only`: nothing is made or cleared away.
[[nodiscard]] Result<std::unique_ptr<Store>> open_store(const config::Job& job,
                                                        const JobDirectory& directory,
                                                        bool read_only,
                                                        Duration patience = kLongestOpening);

}  // namespace surefoot
