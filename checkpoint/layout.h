// What the training state consists of and where in its bytes everything lies.
//
// State = sections, each of one element type, one after the other: `parameters`, then one section
// per optimizer moment (same tensors at the same element offsets), then `buffers.<dtype>`. Tensors
// start at multiples of 64 bytes within their section, sections at multiples of 4096; gaps are
// zero. So a state is one flat range of `bytes`, the same on every node and for every number of
// workers.
//
// Digests: a fixed grid of kChunkBytes over that range, XXH3-128 of each chunk (the last is
// shorter); the state digest is the XXH3-128 of the chunk digests one after the other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/digest.h"
#include "common/status.h"

namespace surefoot {

inline constexpr std::int64_t kChunkBytes = 4 << 20;  // on disk: do not change
inline constexpr std::int64_t kTensorAlignment = 64;
inline constexpr std::int64_t kSectionAlignment = 4096;

// Names as in safetensors.
enum class DType { kF32, kF64, kI64, kI32, kI16, kI8, kU8, kBool };
[[nodiscard]] std::string_view name(DType type);  // "F32"
[[nodiscard]] std::int64_t size_of(DType type);

struct TensorSpec {
  std::string name;                 // "transformer.h.0.attn.c_attn.weight"
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::int64_t offset = 0;          // bytes from the start of its section
  [[nodiscard]] std::int64_t elements() const;
};

struct SectionSpec {
  std::string
      name;  // "parameters", "exp_avg", "exp_avg_sq", "momentum", "buffers.F32", "buffers.I64", ...
  DType type = DType::kF32;
  std::int64_t offset = 0;  // bytes from the start of the state
  std::int64_t bytes = 0;
  std::vector<TensorSpec> tensors;
};

struct StateLayout {
  std::vector<SectionSpec> sections;
  std::int64_t bytes = 0;

  // Appends a section with these tensors (offsets are filled in).
  void add_section(std::string name, DType type, std::vector<TensorSpec> tensors);
  [[nodiscard]] const SectionSpec* find(std::string_view section) const;
  [[nodiscard]] std::int64_t chunks() const { return (bytes + kChunkBytes - 1) / kChunkBytes; }
  [[nodiscard]] std::string to_json() const;  // canonical: equal layouts give equal text
  [[nodiscard]] static Result<StateLayout> from_json(std::string_view json);
  [[nodiscard]] Digest digest() const;  // of to_json()
};

// Zeroes every byte of a state that belongs to no tensor. Who writes a state into memory that may
// hold anything (a slot that failed its digests) does this too, or the state's digests would differ
// from those of equal tensors elsewhere.
void clear_gaps(const StateLayout& layout, std::span<std::byte> state);

[[nodiscard]] Digest state_digest(std::span<const Digest> chunks);

}  // namespace surefoot
