// Step 0 from weights that are there already: `model.from`.
//
// Reads a safetensors file as Hugging Face and our own exports write it: 8 bytes little-endian
// length, a JSON object of that length (name -> dtype, shape, data_offsets from the end of the
// JSON), the tensors' bytes. Every tensor of the model (parameters and buffers) must be there with
// its shape; F32 tensors are also taken from F16, BF16 and F64 (rounded to nearest even), others
// from their own type only. For `gpt` a missing or extra prefix "transformer." is no difference, an
// `lm_head.weight` must equal the token embedding it is tied to, and the masks that old versions
// stored ("h.0.attn.bias", "attn.masked_bias") are passed over. Anything else that the model has no
// place for is refused: the file is of a larger model.
//
// The file is mapped, so nothing of its size is allocated. No length in it is trusted. Blocks on
// the disk. Errors: kInvalid, naming the file, the tensor, what was found and what is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/layout.h"
#include "common/status.h"

namespace surefoot {

struct StoredTensor {
  std::string type;  // "F32", "BF16", ... as written
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // bytes from the start of the file
  std::int64_t end = 0;
};
// The tensors of a whole file. kInvalid: it is no safetensors file, or says something that cannot
// be. Pure.
[[nodiscard]] Result<std::map<std::string, StoredTensor>> parse_safetensors(std::string_view file);

// Replaces parameters and buffers in `state` (of layout.bytes) by those in the file; moments and
// gaps stay. `path`: what starting_weights_file() gives.
Status load_starting_weights(const std::string& path, const StateLayout& layout,
                             std::span<std::byte> state);

}  // namespace surefoot
