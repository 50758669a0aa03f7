#include <algorithm>
#include <cstring>

#include "worker/data_kinds.h"
#include "worker/order.h"  // mix

namespace surefoot {
namespace {

// One stream of random words per purpose.
enum Stream : std::uint64_t { kClass = 1, kPattern = 2, kNoise = 3, kStart = 4, kEval = 1 << 8 };

std::uint64_t word(std::uint64_t seed, std::uint64_t stream, std::int64_t a, std::int64_t b) {
  return mix(mix(mix(seed ^ mix(stream)) + static_cast<std::uint64_t>(a)) +
             static_cast<std::uint64_t>(b));
}

// In [-1, 1): 24 bits, exact in float.
float uniform(std::uint64_t random) {
  return static_cast<float>(random >> 40) * 0x1p-23f - 1.0f;
}

template <class T>
void put(std::span<std::byte> to, std::int64_t index, T value) {
  std::memcpy(to.data() + static_cast<std::size_t>(index) * sizeof value, &value, sizeof value);
}

class SyntheticDataset : public Dataset {
 public:
  explicit SyntheticDataset(const SyntheticOptions& options) : options_(options) {}
  std::int64_t size(Split split) const override {
    return split == Split::kTrain ? options_.samples
                                  : std::max<std::int64_t>(1, options_.samples / 10);
  }

 protected:
  [[nodiscard]] std::uint64_t random(Split split, std::uint64_t stream, std::int64_t a,
                                     std::int64_t b) const {
    return word(options_.seed, split == Split::kEval ? stream | kEval : stream, a, b);
  }
  [[nodiscard]] std::int64_t class_of(Split split, std::int64_t index) const {
    return static_cast<std::int64_t>(random(split, kClass, index, 0) %
                                     static_cast<std::uint64_t>(options_.classes));
  }
  SyntheticOptions options_;
};

class SyntheticValues final : public SyntheticDataset {
 public:
  explicit SyntheticValues(const SyntheticOptions& options)
      : SyntheticDataset(options),
        input_{.type = DType::kF32, .shape = options.shape},
        target_{.type = DType::kI64, .shape = {}} {}
  const ArraySpec& input() const override { return input_; }
  const ArraySpec& target() const override { return target_; }
  std::int64_t classes() const override { return options_.classes; }
  Status fill(Split split, std::int64_t index, std::span<std::byte> input,
              std::span<std::byte> target) const override {
    SUREFOOT_CHECK(index >= 0 && index < size(split));
    SUREFOOT_CHECK(input.size() == static_cast<std::size_t>(input_.bytes()) &&
                   target.size() == sizeof(std::int64_t));
    const std::int64_t label = class_of(split, index);
    for (std::int64_t e = 0; e < input_.elements(); ++e) {
      // Patterns are those of the training data in both splits.
      const float pattern = uniform(word(options_.seed, kPattern, label, e));
      put(input, e, pattern + 2.0f * uniform(random(split, kNoise, index, e)));
    }
    put(target, 0, label);
    return {};
  }

 private:
  ArraySpec input_;
  ArraySpec target_;
};

class SyntheticTokens final : public SyntheticDataset {
 public:
  explicit SyntheticTokens(const SyntheticOptions& options)
      : SyntheticDataset(options), spec_{.type = DType::kI64, .shape = {options.block_size}} {}
  const ArraySpec& input() const override { return spec_; }
  const ArraySpec& target() const override { return spec_; }
  std::int64_t classes() const override { return options_.vocab_size; }
  Status fill(Split split, std::int64_t index, std::span<std::byte> input,
              std::span<std::byte> target) const override {
    SUREFOOT_CHECK(index >= 0 && index < size(split));
    SUREFOOT_CHECK(input.size() == static_cast<std::size_t>(spec_.bytes()) &&
                   target.size() == input.size());
    const std::int64_t stride = 1 + class_of(split, index);
    std::int64_t token = static_cast<std::int64_t>(random(split, kStart, index, 0) %
                                                   static_cast<std::uint64_t>(options_.vocab_size));
    for (std::int64_t t = 0; t <= options_.block_size;
         ++t, token = (token + stride) % options_.vocab_size) {
      if (t < options_.block_size) put(input, t, token);
      if (t > 0) put(target, t - 1, token);
    }
    return {};
  }

 private:
  ArraySpec spec_;
};

}  // namespace

std::unique_ptr<Dataset> make_synthetic(const SyntheticOptions& options) {
  SUREFOOT_CHECK(options.samples >= 1 && options.classes >= 1);
  SUREFOOT_CHECK(options.block_size == 0 || options.vocab_size >= 1);
  if (options.block_size > 0) return std::make_unique<SyntheticTokens>(options);
  return std::make_unique<SyntheticValues>(options);
}

}  // namespace surefoot
