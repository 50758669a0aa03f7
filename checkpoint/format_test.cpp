// Parts and manifests: what is written, and that no other bytes are read.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "checkpoint/hex_digests.h"
#include "checkpoint/manifest.h"
#include "checkpoint/part.h"
#include "checkpoint/testing/small_state.h"

namespace surefoot::testing {
namespace {

using Json = nlohmann::json;

PartHeader header_of(const SmallState& state, int part, int of, std::int64_t step = 20,
                     std::int64_t attempt = 3) {
  const ChunkRange chunks = part_chunks(state.layout.chunks(), part, of);
  return {identity_of(state, step, attempt),
          part,
          of,
          chunks,
          {state.digests.begin() + chunks.begin, state.digests.begin() + chunks.end}};
}

std::vector<StoredPart> set_of(const SmallState& state, int of, std::int64_t step = 20,
                               std::int64_t attempt = 3) {
  std::vector<StoredPart> parts;
  for (int part = 0; part < of; ++part) {
    const PartHeader header = header_of(state, part, of, step, attempt);
    const std::string bytes = encode_part_header(header);
    parts.push_back({static_cast<std::int64_t>(bytes.size()) +
                         chunk_bytes(header.chunks, state.layout.bytes).size(),
                     bytes});
  }
  return parts;
}

Json json_of(std::string_view header) {
  return Json::parse(header.substr(8));
}

TEST(Part, SplitsChunksWithoutGapOrOverlap) {
  for (std::int64_t chunks = 0; chunks < 40; ++chunks) {
    for (int of = 1; of < 50; ++of) {
      std::int64_t next = 0;
      for (int part = 0; part < of; ++part) {
        const ChunkRange range = part_chunks(chunks, part, of);
        EXPECT_EQ(range.begin, next);
        EXPECT_LE(range.size(), (chunks + of - 1) / of);
        next = range.end;
      }
      EXPECT_EQ(next, chunks);
    }
  }
}

TEST(Part, NamesAreReadBackAndNoOthers) {
  EXPECT_EQ(part_name(Step{1200}, Attempt{3}, 0, 2),
            "step-00000001200/a003-part-00-of-02.safetensors");
  EXPECT_EQ(manifest_name(Step{1200}), "step-00000001200/manifest.json");
  const auto part = parse_name("step-00000001200/a1234-part-007-of-100.safetensors");
  EXPECT_FALSE(part);
  const auto wide = parse_name(part_name(Step{99999999999}, Attempt{1234}, 107, 1000));
  ASSERT_TRUE(wide);
  EXPECT_EQ(wide->step, Step{99999999999});
  EXPECT_EQ(wide->attempt, Attempt{1234});
  EXPECT_EQ(wide->part, 107);
  EXPECT_EQ(wide->of, 1000);
  EXPECT_TRUE(parse_name(manifest_name(Step{7}))->manifest);
  for (const char* name :
       {"", "job.json", "step-1/manifest.json", "step-00000001200/",
        "step-00000001200/manifest.json.old", "step-00000001200/a3-part-0-of-2.safetensors",
        "step-00000001200/a003-part-02-of-02.safetensors",
        "step-00000001200/a003-part-00-of-00.safetensors", "step--0000001200/manifest.json",
        "step-00000001200/x/manifest.json", "step-99999999999999999999999/manifest.json"}) {
    EXPECT_FALSE(parse_name(name)) << name;
  }
}

TEST(Part, HeaderIsReadBack) {
  const SmallState state = small_state(100'000, 1);
  ASSERT_GT(state.layout.chunks(), 3);
  for (int of : {1, 2, 3, 9}) {
    for (int part = 0; part < of; ++part) {
      const PartHeader header = header_of(state, part, of);
      const std::string bytes = encode_part_header(header);
      EXPECT_EQ(bytes.size() % 4096, 0U);
      const auto read = parse_part_header(bytes);
      ASSERT_TRUE(read) << read.error().message;
      EXPECT_EQ(read->part, part);
      EXPECT_EQ(read->of, of);
      EXPECT_EQ(read->chunks, header.chunks);
      EXPECT_EQ(read->chunk_digests, header.chunk_digests);
      EXPECT_TRUE(same_set(read->identity, header.identity));
      EXPECT_EQ(read->identity.training_lines, header.identity.training_lines);
      EXPECT_EQ(read->identity.numerics_id, "numerics-1");
    }
  }
}

// What the safetensors format asks for: offsets from 0 without holes, sizes that match type and
// shape, as a reader would check.
TEST(Part, IsASafetensorsFileWithoutHoles) {
  const SmallState state = small_state(100'000, 1);
  for (int of : {1, 2, 3, 9}) {
    std::int64_t elements = 0;
    for (int part = 0; part < of; ++part) {
      const PartHeader header = header_of(state, part, of);
      const std::string bytes = encode_part_header(header);
      const Json json = json_of(bytes);
      std::map<std::int64_t, std::int64_t> pieces;
      for (const auto& [name, tensor] : json.items()) {
        if (name == "__metadata__") {
          for (const auto& [key, value] : tensor.items()) EXPECT_TRUE(value.is_string()) << key;
          continue;
        }
        const std::int64_t size = tensor["dtype"] == "F32" ? 4 : tensor["dtype"] == "I64" ? 8 : 1;
        const std::int64_t begin = tensor["data_offsets"][0];
        const std::int64_t end = tensor["data_offsets"][1];
        ASSERT_EQ(tensor["shape"].size(), 1U);
        EXPECT_EQ(end - begin, tensor["shape"][0].get<std::int64_t>() * size) << name;
        if (!name.starts_with("gap")) elements += tensor["shape"][0].get<std::int64_t>();
        pieces[begin] = end;
      }
      std::int64_t at = 0;
      for (const auto& [begin, end] : pieces) {
        EXPECT_EQ(begin, at);
        at = end;
      }
      EXPECT_EQ(at, chunk_bytes(header.chunks, state.layout.bytes).size());
    }
    std::int64_t expected = 0;
    for (const SectionSpec& section : state.layout.sections)
      expected += section.bytes / size_of(section.type);
    EXPECT_EQ(elements, expected);
  }
}

TEST(Part, TensorsNameTheirPlaceInTheirSection) {
  const SmallState state = small_state(100'000, 1);
  const Json json = json_of(encode_part_header(header_of(state, 1, 2)));
  // 7.2 MB a section of 21.6 MB; the second half of 6 chunks starts at 12 MiB.
  const std::int64_t begin = 3 * kChunkBytes - state.layout.find("exp_avg")->offset;
  const std::string name =
      fmt::format("exp_avg[{}:{}]", begin / 4, state.layout.find("exp_avg")->bytes / 4);
  ASSERT_TRUE(json.contains(name)) << json.dump();
  EXPECT_EQ(json[name]["data_offsets"][0], 0);
  EXPECT_FALSE(json.contains("parameters[0:1800000]"));
}

TEST(Part, WithoutAnyChunkIsStillAFile) {
  const SmallState state = small_state(10, 1);
  const PartHeader header = header_of(state, 0, 2);
  ASSERT_EQ(header.chunks.size(), 0);
  const auto read = parse_part_header(encode_part_header(header));
  ASSERT_TRUE(read);
  EXPECT_EQ(json_of(encode_part_header(header)).size(), 1U);
}

TEST(Part, HeaderWithAnyFlippedBitIsRefused) {
  const std::string bytes = encode_part_header(header_of(small_state(10, 1), 1, 2));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    EXPECT_FALSE(parse_part_header(damaged)) << "byte " << i;
  }
}

TEST(Part, TruncatedHeaderIsRefused) {
  const std::string bytes = encode_part_header(header_of(small_state(10, 1), 1, 2));
  for (std::size_t length = 0; length < bytes.size(); length += length < 600 ? 1 : 13) {
    EXPECT_FALSE(parse_part_header(std::string_view(bytes).substr(0, length))) << length;
    std::string consistent = bytes.substr(0, length);
    if (length < 8) continue;
    for (std::size_t i = 0; i < 8; ++i) consistent[i] = static_cast<char>((length - 8) >> (8 * i));
    EXPECT_FALSE(parse_part_header(consistent)) << length;
  }
}

TEST(Part, HeaderLengthIsCheckedBeforeItIsUsed) {
  EXPECT_EQ(*part_header_bytes(std::string_view("\xf8\x0f\0\0\0\0\0\0", 8), 4096), 4096);
  EXPECT_FALSE(part_header_bytes(std::string_view("\xf9\x0f\0\0\0\0\0\0", 8), 4096));
  EXPECT_FALSE(part_header_bytes(std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff", 8),
                                 std::numeric_limits<std::int64_t>::max()));
  EXPECT_FALSE(part_header_bytes(std::string_view("\0\0\0\0\1\0\0\0", 8),
                                 std::numeric_limits<std::int64_t>::max()));
  EXPECT_FALSE(part_header_bytes("short", 100));
}

// JSON that is well formed and means something else: fields removed, replaced, of other types.
TEST(Part, MutatedHeadersAreRefused) {
  const std::string bytes = encode_part_header(header_of(small_state(10, 1), 1, 2));
  const Json original = json_of(bytes);
  std::mt19937_64 random(7);
  const std::vector<Json> values{nullptr,
                                 -1,
                                 1.5,
                                 "",
                                 "-1",
                                 "99999999999999999999",
                                 "0123",
                                 Json::array(),
                                 Json::object(),
                                 true,
                                 std::string(64, 'f')};
  for (int round = 0; round < 800; ++round) {
    Json json = original;
    Json& target = random() % 4 == 0 ? json : json["__metadata__"];
    auto field = target.begin();
    std::advance(field, static_cast<std::ptrdiff_t>(random() % target.size()));
    if (random() % 4 == 0) {
      target.erase(field);
    } else {
      const Json& value = values[random() % values.size()];
      if (*field == value) continue;
      *field = value;
    }
    std::string text = json.dump();
    text.append((4096 - (text.size() + 8) % 4096) % 4096, ' ');
    std::string file(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(text.size() >> (8 * i));
    EXPECT_FALSE(parse_part_header(file + text)) << json.dump();
  }
}

TEST(Manifest, IsReadBackAndCanonical) {
  const SmallState state = small_state(100'000, 1);
  for (int of : {1, 2, 7}) {
    const auto manifest = make_manifest(set_of(state, of));
    ASSERT_TRUE(manifest) << manifest.error().message;
    EXPECT_EQ(manifest->chunk_digests, state.digests);
    EXPECT_EQ(manifest->state_digest, state_digest(state.digests));
    const std::string text = encode_manifest(*manifest);
    const auto read = parse_manifest(text);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(encode_manifest(*read), text);
    EXPECT_EQ(read->parts.size(), static_cast<std::size_t>(of));
    EXPECT_EQ(read->identity.training_lines, manifest->identity.training_lines);
    EXPECT_EQ(read->identity.layout.to_json(), state.layout.to_json());
    EXPECT_TRUE(Json::accept(text));
  }
}

TEST(Manifest, WithAnyFlippedBitIsRefused) {
  const std::string text = encode_manifest(*make_manifest(set_of(small_state(10, 1), 2)));
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_FALSE(parse_manifest(damaged)) << "byte " << i << " bit " << bit;
    }
  }
}

TEST(Manifest, TruncatedOrPaddedIsRefused) {
  const std::string text = encode_manifest(*make_manifest(set_of(small_state(10, 1), 2)));
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(parse_manifest(std::string_view(text).substr(0, length))) << length;
  }
  EXPECT_FALSE(parse_manifest(text + "\n"));
  EXPECT_FALSE(parse_manifest(text + text));
}

// With the right digest at its end, as only a malicious or broken writer would make it.
std::string sealed(const Json& json) {
  std::string text = json.dump();
  text.back() = ',';
  return text + "\"xxh3_128\":\"" + digest(text).hex() + "\"}\n";
}

TEST(Manifest, MutatedAndSealedAgainIsRefused) {
  const std::string text = encode_manifest(*make_manifest(set_of(small_state(10, 1), 2)));
  Json original = Json::parse(text);
  original.erase("xxh3_128");
  ASSERT_EQ(sealed(original), text);
  std::mt19937_64 random(11);
  const std::vector<Json> values{nullptr,
                                 -1,
                                 1.5,
                                 1e300,
                                 "",
                                 "x",
                                 Json::array(),
                                 Json::object(),
                                 true,
                                 std::string(31, 'f'),
                                 std::int64_t{1} << 60,
                                 Json::array({Json::object()})};
  // Texts that may be anything, and numbers that no other field depends on.
  const std::vector<std::string> free{"job_id", "numerics_id", "samples", "training_hash",
                                      "training_lines"};
  for (int round = 0; round < 1500; ++round) {
    Json json = original;
    Json* target = &json;
    while (random() % 3 != 0 && target->is_structured() && !target->empty()) {
      auto next = target->begin();
      std::advance(next, static_cast<std::ptrdiff_t>(random() % target->size()));
      target = &*next;
    }
    if (target == &json) continue;
    *target = values[random() % values.size()];
    bool harmless = true;
    for (const auto& [key, value] : json.items()) {
      if (value != original[key] && std::find(free.begin(), free.end(), key) == free.end())
        harmless = false;
    }
    const auto read = parse_manifest(sealed(json));
    EXPECT_TRUE(harmless || !read) << json.dump();
  }
}

TEST(Manifest, RandomTextIsRefused) {
  std::mt19937_64 random(5);
  const std::string_view alphabet = "{}[]\",:0123456789eE+-.truefalsn \\u\n";
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (std::uint64_t length = random() % 300; length > 0; --length)
      text += alphabet[random() % alphabet.size()];
    EXPECT_FALSE(parse_manifest(text));
    text += ',';
    EXPECT_FALSE(parse_manifest(text + "\"xxh3_128\":\"" + digest(text).hex() + "\"}\n"));
  }
  const std::string deep =
      "{\"layout\":" + std::string(200'000, '[') + std::string(200'000, ']') + ",";
  EXPECT_FALSE(parse_manifest(deep + "\"xxh3_128\":\"" + digest(deep).hex() + "\"}\n"));
}

TEST(Manifest, OfANewerFormatIsAnErrorOfItsOwn) {
  Json json = Json::parse(encode_manifest(*make_manifest(set_of(small_state(10, 1), 1))));
  json.erase("xxh3_128");
  json["version"] = 3;
  const auto read = parse_manifest(sealed(json));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::kInvalid);
}

TEST(Manifest, IsMadeOfOneSetOnly) {
  const SmallState state = small_state(100'000, 1);
  const auto good = set_of(state, 2);
  const auto refused = [&](std::vector<StoredPart> parts) {
    const auto made = make_manifest(parts);
    return !made && made.error().code == Code::kCorrupt;
  };
  EXPECT_FALSE(refused(good));
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({good[0]}));
  EXPECT_TRUE(refused({good[1], good[0]}));
  EXPECT_TRUE(refused({good[0], good[0]}));
  EXPECT_TRUE(refused({good[0], set_of(state, 2, 20, 4)[1]}));
  EXPECT_TRUE(refused({good[0], set_of(state, 2, 21, 3)[1]}));
  EXPECT_TRUE(refused({good[0], set_of(small_state(99'999, 1), 2)[1]}));
  auto truncated = good;
  truncated[1].bytes -= 1;
  EXPECT_TRUE(refused(truncated));
  auto foreign = header_of(state, 1, 2);
  foreign.identity.job_id = "fedcba9876543210";
  EXPECT_TRUE(refused({good[0], {good[1].bytes, encode_part_header(foreign)}}));
  auto other_training = header_of(state, 1, 2);
  other_training.identity.training_hash = digest("other");
  EXPECT_TRUE(refused({good[0], {good[1].bytes, encode_part_header(other_training)}}));
}

}  // namespace
}  // namespace surefoot::testing
