// What a job trains on: numbered samples of fixed shape.
//
// Port `Dataset` with the kinds of job.proto:
//   text, tokens  a file of bytes or little-endian uint16 tokens, mapped. Sample w = the block_size
//   + 1 tokens from w * block_size on: inputs are the
//                 first block_size of them, targets the last, I64 [block_size] both. So windows do
//                 not overlap but for one token, every token is predicted once an epoch, and N =
//                 (tokens - 1) / block_size. Held out: `eval_path`, else the last `holdout` of the
//                 file.
//   idx           images and labels of the MNIST family, gzip or plain, read into memory. Input F32
//   [1, rows, columns] = (pixel / 255 - 0.5) / 0.5, target
//                 I64 scalar. Held out: eval_images and eval_labels, else nothing.
//   synthetic     made from the seed. Values: F32 of `shape`, a pattern of the sample's class plus
//   noise of twice its size; target I64 scalar. Tokens (for a
//                 language model): arithmetic sequences with a stride of the sample's class. Held
//                 out: a tenth as many, other noise.
//
// Immutable after opening: any number of threads may fill. fill() touches memory and mapped files
// only, no locks. Files must not be changed while they are in use (a mapped file cut short ends the
// process with SIGBUS). Errors: kInvalid, naming file, byte and what is wrong. open() reads
// headers, sizes, and all of idx; tokens are checked as they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/layout.h"  // DType
#include "common/status.h"
#include "configs/job.pb.h"

namespace surefoot {

// Shape and type of one sample's input or target, without the batch dimension.
struct ArraySpec {
  DType type = DType::kF32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] std::int64_t bytes() const;
};

enum class Split { kTrain, kEval };

class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::int64_t size(Split split) const = 0;  // samples; train: at least 1
  [[nodiscard]] virtual const ArraySpec& input() const = 0;
  [[nodiscard]] virtual const ArraySpec& target() const = 0;
  [[nodiscard]] virtual std::int64_t classes() const = 0;  // targets lie in [0, classes)
  // Writes sample `index` (0 <= index < size(split)) into exactly input().bytes() and
  // target().bytes() bytes.
  virtual Status fill(Split split, std::int64_t index, std::span<std::byte> input,
                      std::span<std::byte> target) const = 0;
};

// Opens the data of `job`: `data`, and of the rest what decides the samples' form (model kind,
// block_size, vocab_size, seed).
[[nodiscard]] Result<std::unique_ptr<Dataset>> open_dataset(const config::Job& job);

// Buffers for one micro-batch: `samples` inputs and targets one after the other.
class BatchBuffer {
 public:
  BatchBuffer(const Dataset& dataset, std::int64_t samples);
  // Fills place i with sample indices[i]; fewer indices than places are allowed. Stops at the first
  // error.
  Status fill(const Dataset& dataset, Split split, std::span<const std::int64_t> indices);
  [[nodiscard]] std::span<const std::byte> inputs() const { return inputs_; }
  [[nodiscard]] std::span<const std::byte> targets() const { return targets_; }
  [[nodiscard]] std::int64_t samples() const { return samples_; }  // as filled last

 private:
  std::int64_t input_bytes_;
  std::int64_t target_bytes_;
  std::vector<std::byte> inputs_;
  std::vector<std::byte> targets_;
  std::int64_t samples_ = 0;
};

}  // namespace surefoot
