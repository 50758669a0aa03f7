// The trained model for others to use: `final/` with model.safetensors and config.json.
//
// model.safetensors has the parameters and the model's buffers under their own names, from a header
// sorted by name; the same state gives the same bytes. config.json: for `gpt` what Hugging Face's
// GPT2LMHeadModel.from_pretrained wants (names are its own: transformer.wte.weight, ...); for other
// kinds the model's keys of the job file.
//
// Blocks on the disk; streams, so needs no memory of the state's size. Errors: kNoSpace, kInvalid
// (cannot be written there), kRetry.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "checkpoint/checkpoint_store.h"
#include "checkpoint/layout.h"
#include "common/status.h"
#include "configs/job.pb.h"

namespace surefoot {

struct Exported {
  std::string weights_sha256;  // == sha256sum model.safetensors
  std::string state_sha256;    // over all bytes of the state
  std::filesystem::path folder;
};

// Replaces the content of `folder` in one rename: readers see the old export or the new one, whole.
// Durable on return.
[[nodiscard]] Result<Exported> export_model(const StateLayout& layout,
                                            std::span<const std::byte> state,
                                            const config::Job& job,
                                            const std::filesystem::path& folder);

// The same from a stored checkpoint (`surefoot checkpoints export`). Every byte is verified before
// `folder` is touched. Needs disk space for the state beside `folder` while it runs.
[[nodiscard]] Result<Exported> export_checkpoint(CheckpointStore& store, const Manifest& manifest,
                                                 const config::Job& job,
                                                 const std::filesystem::path& folder,
                                                 const Control& control);

// The text of config.json.
[[nodiscard]] std::string model_config(const config::Model& model);

}  // namespace surefoot
