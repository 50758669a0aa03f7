#include "checkpoint/layout.h"

#include <gtest/gtest.h>

namespace surefoot {
namespace {

StateLayout example() {
  StateLayout layout;
  layout.add_section("parameters", DType::kF32,
                     {{"w", {3, 5}, 0}, {"b", {5}, 0}, {"scale", {}, 0}, {"none", {0, 4}, 0}});
  layout.add_section("exp_avg", DType::kF32, {{"w", {3, 5}, 0}});
  layout.add_section("buffers.I64", DType::kI64, {{"bn.num_batches_tracked", {}, 0}});
  return layout;
}

TEST(Layout, PutsTensorsAndSectionsAtTheirAlignment) {
  const StateLayout layout = example();
  const SectionSpec* parameters = layout.find("parameters");
  ASSERT_NE(parameters, nullptr);
  EXPECT_EQ(parameters->tensors[0].offset, 0);
  EXPECT_EQ(parameters->tensors[1].offset, 64);
  EXPECT_EQ(parameters->tensors[2].offset, 128);
  EXPECT_EQ(parameters->tensors[3].offset, 192);
  EXPECT_EQ(parameters->bytes, 192);
  EXPECT_EQ(layout.find("exp_avg")->offset, 4096);
  EXPECT_EQ(layout.find("buffers.I64")->offset, 8192);
  EXPECT_EQ(layout.bytes, 8192 + 64);
  EXPECT_EQ(layout.find("momentum"), nullptr);
}

TEST(Layout, IsReadBackFromItsText) {
  const StateLayout layout = example();
  auto back = StateLayout::from_json(layout.to_json());
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->to_json(), layout.to_json());
  EXPECT_EQ(back->digest(), layout.digest());
  EXPECT_EQ(back->find("buffers.I64")->type, DType::kI64);
}

TEST(Layout, HasAnotherDigestWhenAnythingDiffers) {
  StateLayout other = example();
  other.sections[0].tensors[0].shape = {5, 3};
  EXPECT_NE(other.digest(), example().digest());
}

// Replaces each occurrence of one piece of the text in turn; none of the results may be accepted.
TEST(Layout, RefusesTextThatMakesNoSense) {
  const std::string good = example().to_json();
  const std::pair<const char*, const char*> edits[] = {
      {"\"F32\"", "\"F33\""},
      {"\"bytes\":192", "\"bytes\":191"},
      {"\"bytes\":192", "\"bytes\":-192"},
      {"\"bytes\":192", "\"bytes\":18446744073709551615"},
      {"\"bytes\":192", "\"bytes\":192.5"},
      {"[3,5]", "[3,-5]"},
      {"[3,5]", "[4611686018427387904,4]"},
      {"[3,5]", "[3,5,[1]]"},
      {"[3,5]", "[300,500]"},
      {"\"name\":\"b\"", "\"name\":\"w\""},
      {"\"name\":\"b\"", "\"name\":3"},
      {"\"name\":\"exp_avg\"", "\"name\":\"parameters\""},
      {"\"offset\":4096", "\"offset\":0"},
      {"\"offset\":64", "\"offset\":65"},
      {"\"sections\":[", "\"sections\":[3,"},
      {"\"tensors\"", "\"tensor\""},
      {"{", "["},
  };
  for (const auto& [from, to] : edits) {
    const std::size_t at = good.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    std::string bad = good;
    bad.replace(at, std::string(from).size(), to);
    auto result = StateLayout::from_json(bad);
    ASSERT_FALSE(result) << from << " -> " << to;
    EXPECT_EQ(result.error().code, Code::kCorrupt);
  }
  for (std::size_t length = 0; length < good.size(); ++length)
    EXPECT_FALSE(StateLayout::from_json(good.substr(0, length))) << length;
}

TEST(Layout, StateDigestIsTheDigestOfTheChunkDigests) {
  const Digest chunks[] = {digest("a"), digest("b")};
  std::string joined(reinterpret_cast<const char*>(chunks), sizeof chunks);
  EXPECT_EQ(state_digest(chunks), digest(joined));
}

TEST(Layout, ClearsWhatBelongsToNoTensorAndNothingElse) {
  StateLayout layout;
  layout.add_section("parameters", DType::kF32, {{"a", {5}, 0}, {"b", {3, 7}, 0}, {"c", {}, 0}});
  layout.add_section("buffers.I64", DType::kI64,
                     {{"count", {}, 0}, {"empty", {0}, 0}, {"n", {2}, 0}});
  std::vector<std::byte> state(static_cast<std::size_t>(layout.bytes), std::byte{0xAB});
  clear_gaps(layout, state);
  std::vector<std::byte> expected(state.size(), std::byte{0});
  for (const SectionSpec& section : layout.sections) {
    for (const TensorSpec& tensor : section.tensors) {
      for (std::int64_t i = 0; i < tensor.elements() * size_of(section.type); ++i)
        expected[static_cast<std::size_t>(section.offset + tensor.offset + i)] = std::byte{0xAB};
    }
  }
  EXPECT_TRUE(state == expected);
}

}  // namespace
}  // namespace surefoot
