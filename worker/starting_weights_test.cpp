// model.from: which files a job may start from, and which are refused.
#include "worker/starting_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

namespace surefoot {
namespace {

using ::testing::HasSubstr;

std::string bytes_of(const void* data, std::size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return bytes_of(values.data(), values.size() * sizeof(T));
}

// A safetensors file, made without the code under test.
class FileMaker {
 public:
  FileMaker& add(const std::string& name, const std::string& type,
                 const std::vector<std::int64_t>& shape, const std::string& bytes) {
    header_[name] = {{"dtype", type},
                     {"shape", shape},
                     {"data_offsets", {payload_.size(), payload_.size() + bytes.size()}}};
    payload_ += bytes;
    return *this;
  }
  [[nodiscard]] std::string text() const {
    const std::string json = header_.dump();
    std::string length(8, '\0');
    for (std::size_t i = 0; i < 8; ++i)
      length[i] = static_cast<char>(static_cast<std::uint64_t>(json.size()) >> (8 * i));
    return length + json + payload_;
  }

 private:
  nlohmann::json header_ = {{"__metadata__", {{"format", "pt"}}}};
  std::string payload_;
};

class StartingWeights : public ::testing::Test {
 protected:
  StartingWeights() {
    std::string folder = (std::filesystem::temp_directory_path() / "weights-XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    layout_.add_section("parameters", DType::kF32,
                        {{"transformer.wte.weight", {3, 2}, 0}, {"transformer.ln_f.bias", {2}, 0}});
    layout_.add_section("exp_avg", DType::kF32,
                        {{"transformer.wte.weight", {3, 2}, 0}, {"transformer.ln_f.bias", {2}, 0}});
    layout_.add_section("buffers.I64", DType::kI64, {{"count", {}, 0}});
    state_.assign(static_cast<std::size_t>(layout_.bytes), std::byte{7});
  }
  ~StartingWeights() override { std::filesystem::remove_all(folder_); }

  Status load(const std::string& text) {
    const std::filesystem::path file = folder_ / "model.safetensors";
    std::ofstream(file, std::ios::binary) << text;
    return load_starting_weights(file.string(), layout_, state_);
  }
  std::string refusal(const FileMaker& file) {
    const Status loaded = load(file.text());
    return loaded ? "accepted" : loaded.error().message;
  }
  [[nodiscard]] std::vector<float> floats(const char* section, std::size_t tensor) const {
    const SectionSpec& in = *layout_.find(section);
    std::vector<float> values(static_cast<std::size_t>(in.tensors[tensor].elements()));
    std::memcpy(values.data(), state_.data() + in.offset + in.tensors[tensor].offset,
                values.size() * sizeof(float));
    return values;
  }

  const std::vector<float> embedding_ = {1, -2, 3.5F, 0, 1e-30F, -7};
  const std::vector<float> bias_ = {0.25F, 8};
  FileMaker whole(const std::string& prefix = "transformer.") const {
    const std::int64_t count = 42;
    return FileMaker()
        .add(prefix + "wte.weight", "F32", {3, 2}, bytes_of(embedding_))
        .add(prefix + "ln_f.bias", "F32", {2}, bytes_of(bias_))
        .add("count", "I64", {}, bytes_of(&count, sizeof count));
  }

  std::filesystem::path folder_;
  StateLayout layout_;
  std::vector<std::byte> state_;
};

TEST_F(StartingWeights, AreTakenWithOrWithoutThePrefixAndLeaveTheMomentsAlone) {
  for (const char* prefix : {"transformer.", ""}) {
    state_.assign(state_.size(), std::byte{7});
    const Status loaded = load(whole(prefix).text());
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(floats("parameters", 0), embedding_);
    EXPECT_EQ(floats("parameters", 1), bias_);
    std::int64_t count = 0;
    std::memcpy(&count, state_.data() + layout_.find("buffers.I64")->offset, sizeof count);
    EXPECT_EQ(count, 42);
    const float untouched = std::bit_cast<float>(0x07070707);
    EXPECT_EQ(floats("exp_avg", 1), (std::vector<float>{untouched, untouched}));
  }
}

TEST_F(StartingWeights, OfSmallerAndLargerFloatsAreRounded) {
  const std::vector<std::uint16_t> brain = {0x3F80, 0xC000, 0x0000, 0x8000, 0x7F80, 0x0001};
  // 1, -2, the smallest subnormal, the largest number, -infinity, 2^-14
  const std::vector<std::uint16_t> half = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0xFC00, 0x0400};
  const std::vector<double> twice = {0.1, 1e300};
  const std::int64_t count = 0;
  const auto with = [&](const char* type, const std::vector<std::uint16_t>& embedding) {
    return FileMaker()
        .add("wte.weight", type, {3, 2}, bytes_of(embedding))
        .add("ln_f.bias", "F64", {2}, bytes_of(twice))
        .add("count", "I64", {}, bytes_of(&count, sizeof count))
        .text();
  };
  const float infinity = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(load(with("BF16", brain)));
  EXPECT_EQ(floats("parameters", 0),
            (std::vector<float>{1, -2, 0, 0, infinity, std::bit_cast<float>(0x00010000)}));
  EXPECT_TRUE(std::signbit(floats("parameters", 0)[3]));
  EXPECT_EQ(floats("parameters", 1), (std::vector<float>{0.1F, infinity}));
  ASSERT_TRUE(load(with("F16", half)));
  EXPECT_EQ(floats("parameters", 0),
            (std::vector<float>{1, -2, 0x1p-24F, 65504, -infinity, 0x1p-14F}));
}

TEST_F(StartingWeights, ThatDoNotFitAreRefusedByTheTensorsName) {
  EXPECT_THAT(refusal(FileMaker().add("wte.weight", "F32", {3, 2}, bytes_of(embedding_))),
              HasSubstr("ln_f.bias"));
  EXPECT_THAT(refusal(FileMaker().add("wte.weight", "F32", {2, 3}, bytes_of(embedding_))),
              HasSubstr("found [2, 3], the model has [3, 2]"));
  EXPECT_THAT(refusal(FileMaker().add("wte.weight", "I32", {3, 2}, bytes_of(embedding_))),
              HasSubstr("found type I32"));
  EXPECT_THAT(refusal(whole().add("transformer.h.7.ln_1.bias", "F32", {2}, bytes_of(bias_))),
              HasSubstr("transformer.h.7.ln_1.bias"));
}

TEST_F(StartingWeights, MayHoldTheTiedHeadAndOldMasksButNoOtherHead) {
  EXPECT_EQ(refusal(whole()
                        .add("lm_head.weight", "F32", {3, 2}, bytes_of(embedding_))
                        .add("transformer.h.0.attn.bias", "BOOL", {1}, "x")
                        .add("transformer.h.0.attn.masked_bias", "F32", {1}, "xxxx")),
            "accepted");
  std::vector<float> other = embedding_;
  other[5] = 0;
  EXPECT_THAT(refusal(whole().add("lm_head.weight", "F32", {3, 2}, bytes_of(other))),
              HasSubstr("not tied"));
}

TEST_F(StartingWeights, CutShortAnywhereAreRefused) {
  const std::string text = whole().text();
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes)
    EXPECT_FALSE(load(text.substr(0, bytes))) << bytes;
}

TEST_F(StartingWeights, WithFlippedHeadersNeverReadOutsideTheFile) {
  const std::string text = whole().text();
  std::mt19937_64 random(5);
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = text;
    for (int flips = 0; flips < 3; ++flips)
      damaged[random() % (text.size() - 40)] ^= static_cast<char>(1U << (random() % 8));
    const auto tensors = parse_safetensors(damaged);
    if (!tensors) continue;
    for (const auto& [name, tensor] : *tensors) {
      EXPECT_GE(tensor.begin, 8);
      EXPECT_LE(tensor.begin, tensor.end);
      EXPECT_LE(tensor.end, static_cast<std::int64_t>(damaged.size()));
    }
  }
}

}  // namespace
}  // namespace surefoot
