// The kinds of data, one opener each. Used by open_dataset and its tests only; see data.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "worker/data.h"

namespace surefoot {

// A flat file of tokens of `token_bytes` (1 or 2) each.
struct TokenFileOptions {
  std::filesystem::path path = {};
  std::filesystem::path eval_path = {};  // empty: `holdout` of `path`
  double holdout = 0;
  int token_bytes = 1;
  std::int64_t block_size = 128;
  std::int64_t vocab_size = 256;
};
[[nodiscard]] Result<std::unique_ptr<Dataset>> open_token_file(const TokenFileOptions& options);

struct IdxOptions {
  std::filesystem::path images = {};
  std::filesystem::path labels = {};
  std::filesystem::path eval_images = {};  // both or none
  std::filesystem::path eval_labels = {};
  std::int64_t classes = 10;
};
[[nodiscard]] Result<std::unique_ptr<Dataset>> open_idx(const IdxOptions& options);

// One IDX file of unsigned bytes, plain or gzip.
struct IdxFile {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> values;
};
// `dimensions`: how many it must have. kInvalid: names the byte and what is wrong there.
[[nodiscard]] Result<IdxFile> read_idx(const std::filesystem::path& path, int dimensions);

struct SyntheticOptions {
  std::uint64_t seed = 1;
  std::int64_t samples = 1024;
  std::int64_t classes = 10;             // values: number of patterns
  std::vector<std::int64_t> shape = {};  // values
  std::int64_t block_size = 0;           // above 0: tokens, not values
  std::int64_t vocab_size = 256;
};
[[nodiscard]] std::unique_ptr<Dataset> make_synthetic(const SyntheticOptions& options);

}  // namespace surefoot
