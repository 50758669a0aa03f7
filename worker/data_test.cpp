#include "worker/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "worker/data_kinds.h"

namespace surefoot {
namespace {

using testing::HasSubstr;

class DataTest : public testing::Test {
 protected:
  DataTest() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "surefoot-data-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~DataTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return (folder_ / name).string();
  }
  std::string write_gz(const std::string& name, const std::string& content) const {
    const std::string path = (folder_ / name).string();
    gzFile file = ::gzopen(path.c_str(), "wb");
    ::gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    ::gzclose(file);
    return path;
  }
  std::filesystem::path folder_;
};

struct Sample {
  std::vector<std::byte> input;
  std::vector<std::byte> target;
};

template <class T>
std::vector<T> as(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

Sample sample_of(const Dataset& dataset, Split split, std::int64_t index) {
  Sample sample{std::vector<std::byte>(static_cast<std::size_t>(dataset.input().bytes())),
                std::vector<std::byte>(static_cast<std::size_t>(dataset.target().bytes()))};
  const Status status = dataset.fill(split, index, sample.input, sample.target);
  EXPECT_TRUE(status) << status.error().message;
  return sample;
}

using Tokens = std::vector<std::int64_t>;

TEST_F(DataTest, TextSamplesAreConsecutiveWindowsAndTheEndIsHeldOut) {
  const std::string path = write("text", "abcdefghijklmnopqrst");  // 20 bytes
  auto dataset = open_token_file({.path = path, .holdout = 0.35, .block_size = 3});
  ASSERT_TRUE(dataset) << dataset.error().message;
  // 13 to train on: windows at 0, 3, 6, 9; 7 held out ("nopqrst"): windows at 13, 16.
  EXPECT_EQ((*dataset)->size(Split::kTrain), 4);
  EXPECT_EQ((*dataset)->size(Split::kEval), 2);
  EXPECT_EQ((*dataset)->classes(), 256);
  const Sample first = sample_of(**dataset, Split::kTrain, 0);
  EXPECT_EQ(as<std::int64_t>(first.input), (Tokens{'a', 'b', 'c'}));
  EXPECT_EQ(as<std::int64_t>(first.target), (Tokens{'b', 'c', 'd'}));
  EXPECT_EQ(as<std::int64_t>(sample_of(**dataset, Split::kTrain, 3).target),
            (Tokens{'k', 'l', 'm'}));
  EXPECT_EQ(as<std::int64_t>(sample_of(**dataset, Split::kEval, 0).input), (Tokens{'n', 'o', 'p'}));
  EXPECT_EQ(as<std::int64_t>(sample_of(**dataset, Split::kEval, 1).target),
            (Tokens{'r', 's', 't'}));
}

TEST_F(DataTest, BytesAbove127AreTokensToo) {
  const std::string path = write("text", "\xff\x80\x01\xfe");
  auto dataset = open_token_file({.path = path, .block_size = 3});
  ASSERT_TRUE(dataset);
  EXPECT_EQ(as<std::int64_t>(sample_of(**dataset, Split::kTrain, 0).input), (Tokens{255, 128, 1}));
}

TEST_F(DataTest, TokensAreLittleEndianAndAnEvalFileIsHeldOutWhole) {
  const std::string path = write("tokens", std::string("\x01\x02\xff\xff\x00\x01", 6));
  const std::string eval = write("eval", std::string("\x05\x00\x06\x00\x07\x00", 6));
  auto dataset = open_token_file({.path = path,
                                  .eval_path = eval,
                                  .holdout = 0.5,
                                  .token_bytes = 2,
                                  .block_size = 2,
                                  .vocab_size = 65536});
  ASSERT_TRUE(dataset) << dataset.error().message;
  EXPECT_EQ((*dataset)->size(Split::kTrain), 1);
  EXPECT_EQ((*dataset)->size(Split::kEval), 1);
  const Sample sample = sample_of(**dataset, Split::kTrain, 0);
  EXPECT_EQ(as<std::int64_t>(sample.input), (Tokens{0x201, 0xffff}));
  EXPECT_EQ(as<std::int64_t>(sample.target), (Tokens{0xffff, 0x100}));
  EXPECT_EQ(as<std::int64_t>(sample_of(**dataset, Split::kEval, 0).input), (Tokens{5, 6}));
}

TEST_F(DataTest, ATokenOutsideTheVocabularyIsNamedWithItsByte) {
  const std::string path = write("tokens", std::string("\x01\x00\x02\x00\x0a\x00\x03\x00", 8));
  auto dataset =
      open_token_file({.path = path, .token_bytes = 2, .block_size = 3, .vocab_size = 10});
  ASSERT_TRUE(dataset);
  BatchBuffer batch(**dataset, 1);
  const Status status = batch.fill(**dataset, Split::kTrain, std::vector<std::int64_t>{0});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kInvalid);
  EXPECT_THAT(status.error().message, HasSubstr(path + ": byte 4: found token 10"));
}

TEST_F(DataTest, UnusableTokenFilesAreRefusedByName) {
  const auto message = [&](const TokenFileOptions& options) {
    auto dataset = open_token_file(options);
    EXPECT_FALSE(dataset);
    if (dataset) return std::string();
    EXPECT_EQ(dataset.error().code, Code::kInvalid);
    return dataset.error().message;
  };
  const std::string missing = (folder_ / "missing").string();
  EXPECT_THAT(message({.path = missing}), HasSubstr(missing));
  EXPECT_THAT(message({.path = write("empty", "")}), HasSubstr("is empty"));
  EXPECT_THAT(message({.path = folder_}), HasSubstr("not a regular file"));
  EXPECT_THAT(message({.path = write("odd", "abc"), .token_bytes = 2, .block_size = 1}),
              HasSubstr("byte 3"));
  EXPECT_THAT(message({.path = write("short", "abc"), .block_size = 3}),
              HasSubstr("found 3 tokens"));
  EXPECT_THAT(
      message(
          {.path = write("long", "abcdefgh"), .eval_path = write("short", "abc"), .block_size = 3}),
      HasSubstr("found 3 tokens"));
}

std::string word(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

// Two pictures of 2x3.
std::string images() {
  return word(0x803) + word(2) + word(2) + word(3) +
         std::string("\x00\xff\x80\x01\x02\x03\x0a\x0b\x0c\x0d\x0e\x0f", 12);
}
std::string labels() {
  return word(0x801) + word(2) + std::string("\x07\x00", 2);
}

TEST_F(DataTest, IdxIsReadPlainAndGzipped) {
  auto dataset = open_idx({.images = write("images", images()),
                           .labels = write_gz("labels.gz", labels()),
                           .eval_images = write_gz("images.gz", images()),
                           .eval_labels = write("labels", labels())});
  ASSERT_TRUE(dataset) << dataset.error().message;
  EXPECT_EQ((*dataset)->input().shape, (std::vector<std::int64_t>{1, 2, 3}));
  for (const Split split : {Split::kTrain, Split::kEval}) {
    EXPECT_EQ((*dataset)->size(split), 2);
    const Sample sample = sample_of(**dataset, split, 0);
    const std::vector<float> pixels = as<float>(sample.input);
    EXPECT_EQ(pixels[0], -1.0f);
    EXPECT_EQ(pixels[1], 1.0f);
    EXPECT_EQ(as<std::int64_t>(sample.target), Tokens{7});
    EXPECT_EQ(as<std::int64_t>(sample_of(**dataset, split, 1).target), Tokens{0});
  }
}

TEST_F(DataTest, WithoutEvalFilesNothingIsHeldOut) {
  const IdxOptions options{.images = write("images", images()),
                           .labels = write("labels", labels())};
  auto dataset = open_idx(options);
  ASSERT_TRUE(dataset);
  EXPECT_EQ((*dataset)->size(Split::kEval), 0);
  IdxOptions half = options;
  half.eval_images = options.images;
  EXPECT_FALSE(open_idx(half));
}

TEST_F(DataTest, EveryTruncationOfAnIdxFileIsRefused) {
  const std::string whole = images();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string path = write("cut", whole.substr(0, size));
    const auto file = read_idx(path, 3);
    ASSERT_FALSE(file) << size;
    EXPECT_EQ(file.error().code, Code::kInvalid);
    EXPECT_THAT(file.error().message, HasSubstr(path));
  }
  EXPECT_FALSE(read_idx(write("long", whole + "x"), 3));
  EXPECT_TRUE(read_idx(write("whole", whole), 3));
}

TEST_F(DataTest, EveryTruncationOfAGzippedFileIsRefused) {
  write_gz("whole.gz", images());
  std::ifstream file(folder_ / "whole.gz", std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(read_idx(write("cut.gz", whole.substr(0, size)), 3)) << size;
  }
}

TEST_F(DataTest, AFlippedBitInAGzippedFileIsFoundOrHarmless) {
  write_gz("whole.gz", images());
  std::ifstream file(folder_ / "whole.gz", std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  const auto expected = read_idx((folder_ / "whole.gz").string(), 3);
  ASSERT_TRUE(expected);
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const auto read = read_idx(write("flipped.gz", flipped), 3);
    if (read) {  // a bit of gzip's header that says nothing about the content
      EXPECT_EQ(read->values, expected->values) << bit;
    }
  }
}

TEST_F(DataTest, GarbageNeverReadsAsIdx) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string garbage(random() % 200, '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    if (round % 3 == 1) garbage = std::string("\x1f\x8b\x08\x00", 4) + garbage;
    if (round % 3 == 2) garbage = word(0x803) + garbage;  // a header that announces up to terabytes
    const auto file = read_idx(write("garbage", garbage), 3);
    if (file) {
      EXPECT_EQ(file->values.size(),
                static_cast<std::size_t>(file->shape[0] * file->shape[1] * file->shape[2]));
    }
  }
}

TEST_F(DataTest, WrongIdxFilesAreRefusedByByteAndReason) {
  const auto message = [&](const IdxOptions& options) {
    auto dataset = open_idx(options);
    EXPECT_FALSE(dataset);
    return dataset ? std::string() : dataset.error().message;
  };
  const std::string good_images = write("images", images());
  const std::string good_labels = write("labels", labels());
  EXPECT_THAT(message({.images = good_labels, .labels = good_labels}),
              HasSubstr("byte 0: found magic 0x00000801"));
  EXPECT_THAT(message({.images = good_images, .labels = good_labels, .classes = 7}),
              HasSubstr("byte 8: found label 7"));
  EXPECT_THAT(message({.images = good_images,
                       .labels = write("l3", word(0x801) + word(3) + "\x01\x01\x01")}),
              HasSubstr("has 2 images"));
  EXPECT_THAT(
      message({.images = write("huge", word(0x803) + word(0xffffffff) + word(28) + word(28)),
               .labels = good_labels}),
      HasSubstr("byte 4: found extent 4294967295"));
  EXPECT_THAT(message({.images = write("none", word(0x803) + word(0) + word(28) + word(28)),
                       .labels = good_labels}),
              HasSubstr("byte 4: found extent 0"));
  EXPECT_THAT(message({.images = (folder_ / "missing").string(), .labels = good_labels}),
              HasSubstr("missing"));
}

TEST(Synthetic, IsAFunctionOfTheSeedAndHoldsOutOtherSamples) {
  const SyntheticOptions options{.seed = 3, .samples = 50, .classes = 4, .shape = {2, 3}};
  const auto a = make_synthetic(options);
  const auto b = make_synthetic(options);
  SyntheticOptions other = options;
  other.seed = 4;
  const auto c = make_synthetic(other);
  std::map<std::int64_t, int> classes;
  for (std::int64_t i = 0; i < 50; ++i) {
    const Sample sample = sample_of(*a, Split::kTrain, i);
    EXPECT_EQ(sample.input, sample_of(*b, Split::kTrain, i).input);
    EXPECT_NE(sample.input, sample_of(*c, Split::kTrain, i).input);
    ++classes[as<std::int64_t>(sample.target)[0]];
  }
  EXPECT_EQ(classes.size(), 4u);
  EXPECT_EQ(a->size(Split::kEval), 5);
  EXPECT_NE(sample_of(*a, Split::kTrain, 0).input, sample_of(*a, Split::kEval, 0).input);
}

TEST(Synthetic, SamplesOfAClassHaveItsPatternAsTheirMean) {
  const auto dataset = make_synthetic({.seed = 1, .samples = 4000, .classes = 2, .shape = {8}});
  std::vector<double> mean[2] = {std::vector<double>(8), std::vector<double>(8)};
  double count[2] = {0, 0};
  for (std::int64_t i = 0; i < 4000; ++i) {
    const Sample sample = sample_of(*dataset, Split::kTrain, i);
    const auto label = static_cast<std::size_t>(as<std::int64_t>(sample.target)[0]);
    ++count[label];
    for (std::size_t e = 0; e < 8; ++e) mean[label][e] += as<float>(sample.input)[e];
  }
  double distance = 0;
  for (std::size_t e = 0; e < 8; ++e)
    distance += std::abs(mean[0][e] / count[0] - mean[1][e] / count[1]);
  EXPECT_GT(distance / 8, 0.2);  // noise of the means is 0.03
}

TEST(Synthetic, TokensAreArithmeticSequencesWithinTheVocabulary) {
  const auto dataset =
      make_synthetic({.samples = 20, .classes = 3, .block_size = 6, .vocab_size = 11});
  for (std::int64_t i = 0; i < 20; ++i) {
    const Sample sample = sample_of(*dataset, Split::kTrain, i);
    const Tokens input = as<std::int64_t>(sample.input);
    const Tokens target = as<std::int64_t>(sample.target);
    EXPECT_EQ(Tokens(input.begin() + 1, input.end()), Tokens(target.begin(), target.end() - 1));
    const std::int64_t stride = (target[0] - input[0] + 11) % 11;
    EXPECT_TRUE(stride >= 1 && stride <= 3);
    for (std::size_t t = 0; t < 6; ++t) EXPECT_EQ(target[t], (input[t] + stride) % 11);
  }
}

TEST_F(DataTest, TheJobDecidesTheFormOfTheSamples) {
  config::Job job;
  job.mutable_train()->set_seed(1);
  job.mutable_model()->set_kind(config::Model::gpt);
  job.mutable_model()->set_block_size(4);
  job.mutable_model()->set_vocab_size(100);
  job.mutable_data()->set_kind(config::Data::text);
  job.mutable_data()->set_path(write("text", "abcdefghijk"));
  auto text = open_dataset(job);
  ASSERT_TRUE(text);
  EXPECT_EQ((*text)->input().shape, (std::vector<std::int64_t>{4}));
  EXPECT_EQ((*text)->classes(), 100);
  job.mutable_data()->set_kind(config::Data::synthetic);
  job.mutable_data()->set_samples(5);
  job.mutable_data()->set_classes(2);
  job.mutable_data()->add_shape(7);
  auto sequences = open_dataset(job);
  ASSERT_TRUE(sequences);
  EXPECT_EQ((*sequences)->input().type, DType::kI64);
  job.mutable_model()->set_kind(config::Model::mlp);
  auto values = open_dataset(job);
  ASSERT_TRUE(values);
  EXPECT_EQ((*values)->input().shape, (std::vector<std::int64_t>{7}));
  EXPECT_EQ((*values)->classes(), 2);
}

TEST_F(DataTest, ABatchHoldsItsSamplesOneAfterTheOther) {
  auto dataset = open_token_file({.path = write("text", "abcdefghi"), .block_size = 2});
  ASSERT_TRUE(dataset);
  BatchBuffer batch(**dataset, 3);
  ASSERT_TRUE(batch.fill(**dataset, Split::kTrain, std::vector<std::int64_t>{2, 0}));
  EXPECT_EQ(batch.samples(), 2);
  std::vector<std::byte> inputs(batch.inputs().begin(), batch.inputs().end());
  const Tokens tokens = as<std::int64_t>(inputs);
  EXPECT_EQ(Tokens(tokens.begin(), tokens.begin() + 4), (Tokens{'e', 'f', 'a', 'b'}));
}

}  // namespace
}  // namespace surefoot
