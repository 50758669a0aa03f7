// Loading a job file.
//
// A job file is YAML (anchors and merge keys included) checked against configs/job.proto. All
// faults of a file are found in one go; each names file, line, column, key, what was found and what
// is allowed. A file over 1 MB, or of more than 10,000 nodes after expansion of anchors, is refused
// before it is looked at further.
//
// Not thread-safe: the environment is read. Blocks on the file system only.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/digest.h"
#include "common/status.h"
#include "configs/job.pb.h"

namespace surefoot {

struct Fault {
  std::string file;  // as load_job was given it, or "--set KEY=VALUE"
  int line = 0;      // from 1; 0: not from the file (a --set, a missing key of the whole file)
  int column = 0;
  std::string key;      // "train.optimizer.lr"
  std::string message;  // what was found and what is allowed
  // "job.yaml:12:9: train.optimizer.lr: found \"fast\", allowed is a number above 0"
  [[nodiscard]] std::string text() const;
};

struct LoadOptions {
  std::vector<std::string> sets =
      {};                   // "train.max_steps=50", applied after the file, the last one wins
  bool check_files = true;  // missing data files are faults
};

struct LoadedJob {
  config::Job job;  // every key that applies is filled in (defaults too), others are zero; PATH
                    // keys are absolute
  std::filesystem::path file;  // absolute
};

struct LoadOutcome {
  LoadedJob job;              // meaningful only without faults
  std::vector<Fault> faults;  // in the order of the file
};

[[nodiscard]] LoadOutcome load_job(const std::filesystem::path& file, const LoadOptions& options);

// The whole job as YAML that load_job reads back to an equal message: what is written as job.yaml
// into the job directory.
[[nodiscard]] std::string to_yaml(const config::Job& job);

// What decides the bits of the weights.
struct TrainingIdentity {
  Digest hash;                     // over `lines`
  std::vector<std::string> lines;  // "train.seed: 1", one a training key that applies; "data.path:
                                   // <fingerprint>" for files
};
// Reads the data files for their fingerprints: files up to 1 GiB whole, larger ones by size and
// 1024 evenly spread 64 KiB blocks. `max_steps` is in it only where the schedule depends on it.
// kInvalid: a file cannot be read.
[[nodiscard]] Result<TrainingIdentity> training_identity(const config::Job& job);
// The lines that differ, as "train.seed: was 1, is 2".
[[nodiscard]] std::vector<std::string> differences(const std::vector<std::string>& was,
                                                   const std::vector<std::string>& is);

// The file with the weights that `model.from` names: itself, or model.safetensors in that folder.
[[nodiscard]] std::string starting_weights_file(const std::string& from);

// Made from the descriptors.
[[nodiscard]] std::string json_schema();     // JSON Schema (draft-07) for editors
[[nodiscard]] std::string reference_page();  // Markdown: docs/job-file.md

}  // namespace surefoot
