// Headers and manifests of encrypted checkpoints: what is written, what needs a key, and that
// nothing in them can be changed, not even by who makes the digests anew.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/hex_digests.h"
#include "checkpoint/manifest.h"
#include "checkpoint/testing/small_state.h"
#include "checkpoint/testing/test_keys.h"

namespace surefoot::testing {
namespace {

using Json = nlohmann::json;

PartHeader sealed_header(const SmallState& state, int part, int of, std::uint64_t key = 1,
                         std::int64_t step = 20, std::int64_t attempt = 3) {
  const ChunkRange chunks = part_chunks(state.layout.chunks(), part, of);
  PartHeader header{identity_of(state, step, attempt),
                    part,
                    of,
                    chunks,
                    {state.digests.begin() + chunks.begin, state.digests.begin() + chunks.end},
                    std::nullopt};
  seal_digests(header, test_key(key));
  return header;
}

std::vector<StoredPart> sealed_set(const SmallState& state, int of, std::uint64_t key = 1) {
  std::vector<StoredPart> parts;
  for (int part = 0; part < of; ++part) {
    const PartHeader header = sealed_header(state, part, of, key);
    const std::string bytes = encode_part_header(header);
    parts.push_back({static_cast<std::int64_t>(bytes.size()) + header.payload_bytes(), bytes});
  }
  return parts;
}

TEST(SealedPart, HeaderIsReadBackAndOpensWithTheKey) {
  const SmallState state = small_state(100'000, 1);
  for (const int of : {1, 2, 3, 9}) {
    for (int part = 0; part < of; ++part) {
      const PartHeader header = sealed_header(state, part, of);
      const std::string bytes = encode_part_header(header);
      EXPECT_EQ(bytes.size() % 4096, 0U);
      EXPECT_EQ(bytes, encode_part_header(sealed_header(state, part, of)));
      auto read = parse_part_header(bytes);
      ASSERT_TRUE(read) << read.error().message;
      EXPECT_TRUE(read->chunk_digests.empty());
      EXPECT_EQ(read->sealed, header.sealed);
      EXPECT_EQ(read->sealed->key_id, test_key(1).id());
      ASSERT_TRUE(open_digests(*read, test_key(1)));
      EXPECT_EQ(read->chunk_digests, header.chunk_digests);
    }
  }
}

TEST(SealedPart, IsASafetensorsFileOfOneTensor) {
  const SmallState state = small_state(100'000, 1);
  for (const int of : {1, 2, 9}) {
    const PartHeader header = sealed_header(state, of - 1, of);
    const Json json = Json::parse(encode_part_header(header).substr(8));
    const std::int64_t bytes = sealed_bytes(chunk_bytes(header.chunks, state.layout.bytes).size());
    EXPECT_EQ(header.payload_bytes(), bytes);
    ASSERT_EQ(json.size(), bytes > 0 ? 2U : 1U);
    if (bytes == 0) continue;
    EXPECT_EQ(json["sealed"]["dtype"], "U8");
    EXPECT_EQ(json["sealed"]["shape"], Json::array({bytes}));
    EXPECT_EQ(json["sealed"]["data_offsets"], Json::array({0, bytes}));
  }
}

TEST(SealedPart, HeaderWithAnyFlippedBitIsRefused) {
  const std::string bytes = encode_part_header(sealed_header(small_state(10, 1), 1, 2));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    EXPECT_FALSE(parse_part_header(damaged)) << "byte " << i;
  }
}

// As who may write to the store, but has no key, could do it: each field, digests made anew.
TEST(SealedPart, NothingTheHeaderSaysCanBeChanged) {
  const SmallState state = small_state(10, 1);
  const PartHeader good = sealed_header(state, 1, 2);
  const auto expect_refused = [](PartHeader header, const char* field) {
    auto read = parse_part_header(encode_part_header(header));
    ASSERT_TRUE(read) << field << ": " << read.error().message;
    const auto opened = open_digests(*read, test_key(1));
    ASSERT_FALSE(opened) << field;
    EXPECT_EQ(opened.error().code, Code::kCorrupt);
    EXPECT_TRUE(read->chunk_digests.empty());
  };
  const auto changed = [&](const auto& change) {
    PartHeader header = good;
    change(header);
    return header;
  };
  expect_refused(changed([](auto& h) { h.identity.job_id = "fedcba9876543210"; }), "job_id");
  expect_refused(changed([](auto& h) { h.identity.step = Step{21}; }), "step");
  expect_refused(changed([](auto& h) { h.identity.attempt = Attempt{4}; }), "attempt");
  expect_refused(changed([](auto& h) { h.identity.samples += 1; }), "samples");
  expect_refused(changed([](auto& h) { h.identity.training_hash = digest("x"); }), "hash");
  expect_refused(changed([](auto& h) { h.identity.training_lines.pop_back(); }), "lines");
  expect_refused(changed([](auto& h) { h.identity.training_lines.emplace_back(); }), "lines");
  expect_refused(changed([](auto& h) { h.identity.numerics_id += "x"; }), "numerics_id");
  expect_refused(changed([](auto& h) { h.identity.layout.sections[0].tensors[0].name = "other"; }),
                 "layout");
  expect_refused(changed([](auto& h) { h.sealed->bytes[30] ^= 1; }), "digests");
  // The one chunk of the state moves to the other part, of another set.
  expect_refused(changed([](auto& h) { h.of = h.part = 2, h.of = 3; }), "part and of");
}

TEST(SealedManifest, IsMadeWithoutAKeyAndOpensWithIt) {
  const SmallState state = small_state(100'000, 1);
  for (const int of : {1, 2, 7}) {
    const auto made = make_manifest(sealed_set(state, of));
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_TRUE(made->is_encrypted());
    const std::string text = encode_manifest(*made);
    EXPECT_EQ(text, encode_manifest(*make_manifest(sealed_set(state, of))));
    auto read = parse_manifest(text);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(read->chunk_digests.empty());
    EXPECT_EQ(read->state_digest, Digest{});
    EXPECT_EQ(open_manifest(*read, nullptr).error().code, Code::kInvalid);
    EXPECT_EQ(open_manifest(*read, test_keys(2)).error().code, Code::kInvalid);
    ASSERT_TRUE(open_manifest(*read, test_keys(1)));
    EXPECT_EQ(read->chunk_digests, state.digests);
    EXPECT_EQ(read->state_digest, state_digest(state.digests));
    EXPECT_EQ(encode_manifest(*read), text);
    for (int part = 0; part < of; ++part) {
      EXPECT_EQ(encode_part_header(header_of(*read, part)),
                encode_part_header(sealed_header(state, part, of)));
    }
  }
}

TEST(SealedManifest, WithAnyFlippedBitIsRefused) {
  const std::string text = encode_manifest(*make_manifest(sealed_set(small_state(10, 1), 2)));
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_FALSE(parse_manifest(damaged)) << "byte " << i << " bit " << bit;
    }
  }
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_FALSE(parse_manifest(std::string_view(text).substr(0, length))) << length;
}

TEST(SealedManifest, NothingItSaysCanBeChanged) {
  const SmallState state = small_state(100'000, 1);
  const Manifest good = *make_manifest(sealed_set(state, 2));
  const auto expect_refused = [&](const char* what, const auto& change) {
    Manifest manifest = good;
    change(manifest);
    auto read = parse_manifest(encode_manifest(manifest));
    if (!read) return;  // it does not even fit together
    const auto opened = open_manifest(*read, test_keys(1));
    ASSERT_FALSE(opened) << what;
    EXPECT_EQ(opened.error().code, Code::kCorrupt);
  };
  const auto rename = [](Manifest& m) {
    for (int part = 0; part < 2; ++part)
      m.parts[part].name = part_name(m.identity.step, m.identity.attempt, part, 2);
  };
  expect_refused("job", [](auto& m) { m.identity.job_id = "fedcba9876543210"; });
  expect_refused("step", [&](auto& m) { m.identity.step = Step{21}, rename(m); });
  expect_refused("attempt", [&](auto& m) { m.identity.attempt = Attempt{4}, rename(m); });
  expect_refused("samples", [](auto& m) { m.identity.samples += 1; });
  expect_refused("hash", [](auto& m) { m.identity.training_hash = digest("x"); });
  expect_refused("lines", [](auto& m) { m.identity.training_lines[0] += " "; });
  expect_refused("numerics_id", [](auto& m) { m.identity.numerics_id += "x"; });
  expect_refused("layout",
                 [](auto& m) { m.identity.layout.sections[0].tensors[0].name = "other"; });
  expect_refused("swapped parts",
                 [](auto& m) { std::swap(m.parts[0].sealed_digests, m.parts[1].sealed_digests); });
  expect_refused("digests of another set", [&](auto& m) {
    m.parts[1].sealed_digests = sealed_header(state, 1, 2, 1, 20, 4).sealed->bytes;
  });
  expect_refused("digests", [](auto& m) { m.parts[1].sealed_digests[40] ^= 1; });
  expect_refused("one part left out", [](auto& m) { m.parts.pop_back(); });
}

TEST(SealedManifest, IsMadeOfPartsOfOneKeyOnly) {
  const SmallState state = small_state(100'000, 1);
  const auto good = sealed_set(state, 2);
  const auto other = sealed_set(state, 2, 2);
  EXPECT_TRUE(make_manifest(good));
  EXPECT_FALSE(make_manifest({good[0], other[1]}));
  PartHeader plain = sealed_header(state, 1, 2);
  plain.sealed.reset();
  const std::string bytes = encode_part_header(plain);
  const StoredPart in_the_clear{static_cast<std::int64_t>(bytes.size()) + plain.payload_bytes(),
                                bytes};
  EXPECT_FALSE(make_manifest({good[0], in_the_clear}));
}

// What is not encrypted stays as it was before there was encryption.
TEST(SealedPart, FormatsInTheClearHaveNotChanged) {
  const SmallState state = small_state(10, 1);
  PartHeader header = sealed_header(state, 0, 1);
  header.sealed.reset();
  const std::string bytes = encode_part_header(header);
  EXPECT_EQ(digest(bytes).hex(), "4ad4525bf6a834d44c5c835e59d547c6");
  const auto manifest =
      make_manifest({{static_cast<std::int64_t>(bytes.size()) + header.payload_bytes(), bytes}});
  EXPECT_EQ(digest(encode_manifest(*manifest)).hex(), "ab601096abd6f87c3bba8c0fe9720e27");
}

}  // namespace
}  // namespace surefoot::testing
