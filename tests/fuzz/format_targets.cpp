// Layouts, headers of parts, manifests.
#include "checkpoint/manifest.h"
#include "checkpoint/part.h"
#include "checkpoint/testing/test_keys.h"
#include "tests/fuzz/targets.h"

namespace surefoot::fuzz {
namespace {

void look_at_header(std::string_view bytes) {
  auto header = parse_part_header(bytes);
  if (!header) {
    SUREFOOT_CHECK(header.error().code == Code::kCorrupt);
    return;
  }
  SUREFOOT_CHECK(encode_part_header(*header) == bytes);
  SUREFOOT_CHECK(header->payload_bytes() >= 0);
  SUREFOOT_CHECK(same_set(header->identity, header->identity).has_value());
  const SealKey key = testing::test_key(1);
  if (header->sealed && header->sealed->key_id == key.id()) (void)open_digests(*header, key);
  (void)make_manifest(
      {{static_cast<std::int64_t>(bytes.size()) + header->payload_bytes(), std::string(bytes)}});
}

void look_at_manifest(std::string_view text) {
  auto manifest = parse_manifest(text);
  if (!manifest) return;
  SUREFOOT_CHECK(encode_manifest(*manifest) == text);
  std::int64_t next = 0;
  for (int part = 0; part < static_cast<int>(manifest->parts.size()); ++part) {
    const PartHeader header = header_of(*manifest, part);
    SUREFOOT_CHECK(header.chunks.begin == next);
    next = header.chunks.end;
    SUREFOOT_CHECK(header.payload_bytes() < manifest->parts[static_cast<std::size_t>(part)].bytes);
  }
  SUREFOOT_CHECK(next == manifest->identity.layout.chunks());
  (void)open_manifest(*manifest, testing::test_keys(1));
}

}  // namespace

void layout(std::string_view bytes) {
  const auto read = StateLayout::from_json(bytes);
  if (!read) {
    SUREFOOT_CHECK(read.error().code == Code::kCorrupt);
    return;
  }
  const std::string text = read->to_json();
  const auto again = StateLayout::from_json(text);
  SUREFOOT_CHECK(again.has_value() && again->to_json() == text);
  for (const SectionSpec& section : read->sections)
    SUREFOOT_CHECK(section.offset >= 0 && section.offset + section.bytes <= read->bytes);
}

void part_header(std::string_view bytes) {
  look_at_header(bytes);
  if (bytes.size() >= 8) {
    const auto length = part_header_bytes(bytes.substr(0, 8), 1 << 20);
    SUREFOOT_CHECK(!length || (*length >= 8 && *length <= (1 << 20)));
  }
  std::string framed(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    framed[i] = static_cast<char>(static_cast<std::uint64_t>(bytes.size()) >> (8 * i));
  look_at_header(framed.append(bytes));
}

void manifest(std::string_view bytes) {
  look_at_manifest(bytes);
  // Nobody guesses a digest: what stands before it gets one that fits.
  constexpr std::string_view kKey = "\"xxh3_128\":\"";
  std::string text(bytes.substr(0, bytes.rfind(kKey)));
  const std::string hex = digest(text).hex();
  look_at_manifest(text.append(kKey).append(hex).append("\"}\n"));
}

}  // namespace surefoot::fuzz
