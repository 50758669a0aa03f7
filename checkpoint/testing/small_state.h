// Small states for tests: layouts, seeded bytes with zero gaps, digests, identities.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/part.h"

namespace surefoot::testing {

// A model of two tensors with Adam's moments and two kinds of buffers. `rows` scales it: 72 bytes a
// row and section, three sections.
inline StateLayout small_layout(std::int64_t rows) {
  const std::vector<TensorSpec> parameters{{"layer.weight", {rows, 17}, 0},
                                           {"layer.bias", {rows}, 0}};
  StateLayout layout;
  layout.add_section("parameters", DType::kF32, parameters);
  layout.add_section("exp_avg", DType::kF32, parameters);
  layout.add_section("exp_avg_sq", DType::kF32, parameters);
  layout.add_section("buffers.F32", DType::kF32, {{"norm.running_mean", {5}, 0}});
  layout.add_section("buffers.I64", DType::kI64, {{"norm.num_batches_tracked", {}, 0}});
  return layout;
}

struct SmallState {
  StateLayout layout;
  std::vector<std::byte> bytes;
  std::vector<Digest> digests;
};

inline SmallState small_state(std::int64_t rows, std::uint64_t seed) {
  SmallState state{small_layout(rows), {}, {}};
  state.bytes.assign(static_cast<std::size_t>(state.layout.bytes), std::byte{0});
  std::mt19937_64 random(seed);
  for (const SectionSpec& section : state.layout.sections) {
    for (const TensorSpec& tensor : section.tensors) {
      const auto begin = static_cast<std::size_t>(section.offset + tensor.offset);
      const auto end = begin + static_cast<std::size_t>(tensor.elements() * size_of(section.type));
      for (std::size_t i = begin; i < end; i += 8) {
        const std::uint64_t word = random();
        std::memcpy(state.bytes.data() + i, &word, std::min<std::size_t>(8, end - i));
      }
    }
  }
  for (std::int64_t chunk = 0; chunk < state.layout.chunks(); ++chunk) {
    const ByteRange range = chunk_bytes({chunk, chunk + 1}, state.layout.bytes);
    state.digests.push_back(
        digest(std::span<const std::byte>(state.bytes).subspan(range.begin, range.size())));
  }
  return state;
}

inline CheckpointIdentity identity_of(const SmallState& state, std::int64_t step,
                                      std::int64_t attempt) {
  return {"0123456789abcdef",
          Step{step},
          Attempt{attempt},
          step * 32,
          state.layout,
          digest("training"),
          {"train.seed: 1", "train.optimizer.lr: 0.001"},
          "numerics-1"};
}

}  // namespace surefoot::testing
