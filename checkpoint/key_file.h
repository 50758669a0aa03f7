// Reads the key files of a job.
//
// A key file holds 32 random bytes and nothing else, and may be read by its owner only. Blocks on
// the file system. No byte of a key gets into a message; paths do.
#pragma once

#include <filesystem>

#include "checkpoint/seal.h"
#include "common/status.h"
#include "configs/job.pb.h"

namespace surefoot {

// kInvalid: it cannot be read, others could read it, or it does not hold 32 bytes; the message says
// what to do.
[[nodiscard]] Result<SealKey> read_key_file(const std::filesystem::path& file);

// Nothing when the job does not encrypt its checkpoints.
[[nodiscard]] Result<Keys> read_keys(const config::Checkpoint& checkpoint);

}  // namespace surefoot
