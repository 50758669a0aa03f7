#include "checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "checkpoint/hex_digests.h"

namespace surefoot {
namespace {

using Json = nlohmann::json;

// On disk: `..., "xxh3_128":"<32 hex digits>"}\n`. The digest covers all bytes before this field's
// name.
constexpr std::string_view kDigestKey = "\"xxh3_128\":\"";
constexpr std::string_view kEnd = "\"}\n";
constexpr std::size_t kTail = kDigestKey.size() + 32 + kEnd.size();
constexpr std::int64_t kMostNumber = std::int64_t{1} << 53;

Error bad(std::string_view what) {
  return error(Code::kCorrupt, "manifest: {}", what);
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Fields of an object; the first that is missing or malformed is remembered.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}

  std::int64_t number(const char* key, std::int64_t most = kMostNumber) {
    const Json* found = find(key);
    if (found == nullptr || !found->is_number_unsigned() ||
        found->get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
      return fail(key), 0;
    }
    return found->get<std::int64_t>();
  }
  std::string text(const char* key) {
    const Json* found = find(key);
    if (found == nullptr || !found->is_string()) return fail(key), std::string();
    return found->get<std::string>();
  }
  Digest digest(const char* key) {
    const auto parsed = Digest::from_hex(text(key));
    if (!parsed) fail(key);
    return parsed.value_or(Digest{});
  }
  const Json& list(const char* key) {
    static const Json kNone = Json::array();
    const Json* found = find(key);
    if (found == nullptr || !found->is_array()) return fail(key), kNone;
    return *found;
  }
  [[nodiscard]] Status status() const {
    if (wrong_.empty()) return {};
    return bad(fmt::format("field {} is missing or malformed", wrong_));
  }

 private:
  const Json* find(const char* key) {
    if (!json_.is_object()) return nullptr;
    const auto found = json_.find(key);
    return found == json_.end() ? nullptr : &*found;
  }
  void fail(const char* key) {
    if (wrong_.empty()) wrong_ = key;
  }

  const Json& json_;
  std::string wrong_;
};

Result<CheckpointIdentity> parse_identity(const Json& all) {
  Fields fields(all);
  CheckpointIdentity identity;
  identity.job_id = fields.text("job_id");
  identity.step = Step{fields.number("step")};
  identity.attempt = Attempt{fields.number("attempt")};
  identity.samples = fields.number("samples");
  identity.training_hash = fields.digest("training_hash");
  identity.numerics_id = fields.text("numerics_id");
  for (const Json& line : fields.list("training_lines")) {
    if (!line.is_string()) return bad("training_lines holds something else than text");
    identity.training_lines.push_back(line.get<std::string>());
  }
  SUREFOOT_TRY(fields.status());
  const auto layout = all.find("layout");
  if (layout == all.end()) return bad("no layout");
  SUREFOOT_ASSIGN(identity.layout, StateLayout::from_json(dump(*layout)));
  return identity;
}

Result<std::vector<PartEntry>> parse_parts(const Json& list, const CheckpointIdentity& identity,
                                           bool is_encrypted) {
  if (list.empty() || list.size() > kMaxParts) return bad("no parts, or too many");
  const int of = static_cast<int>(list.size());
  std::vector<PartEntry> parts;
  for (int i = 0; i < of; ++i) {
    Fields fields(list[static_cast<std::size_t>(i)]);
    PartEntry entry{fields.text("name"),
                    fields.number("bytes"),
                    part_chunks(identity.layout.chunks(), i, of),
                    fields.digest("header_digest"),
                    {}};
    if (is_encrypted) {
      auto sealed = bytes_from_hex(fields.text("sealed_digests"));
      const auto expected = sealed_digest_bytes(static_cast<std::size_t>(entry.chunks.size()));
      if (!sealed || sealed->size() != expected)
        return bad(fmt::format("the sealed digests of part {} are malformed", i));
      entry.sealed_digests = *std::move(sealed);
    }
    const std::int64_t first = fields.number("first_chunk");
    const std::int64_t end = fields.number("end_chunk");
    SUREFOOT_TRY(fields.status());
    const std::int64_t header =
        entry.bytes - stored_payload_bytes(entry.chunks, identity.layout.bytes, is_encrypted);
    if (entry.name != part_name(identity.step, identity.attempt, i, of) ||
        entry.chunks != ChunkRange{first, end} || header <= 8 || header > kMaxHeaderBytes + 8) {
      return bad(fmt::format("part {} does not fit the rest", i));
    }
    parts.push_back(std::move(entry));
  }
  return parts;
}

Status parse_digests(const Json& all, Manifest& manifest) {
  Fields fields(all);
  auto digests = digests_from_hex(fields.text("chunk_digests"));
  manifest.state_digest = fields.digest("state_digest");
  SUREFOOT_TRY(fields.status());
  if (!digests || static_cast<std::int64_t>(digests->size()) != manifest.identity.layout.chunks())
    return bad("the chunk digests are malformed");
  manifest.chunk_digests = *std::move(digests);
  if (manifest.state_digest != state_digest(manifest.chunk_digests))
    return bad("the state digest does not match the chunk digests");
  return {};
}

Result<Manifest> parse_body(const Json& all, bool is_encrypted) {
  Manifest manifest;
  SUREFOOT_ASSIGN(manifest.identity, parse_identity(all));
  Fields fields(all);
  if (is_encrypted) {
    manifest.key_id = fields.text("key_id");
    if (!is_key_id(manifest.key_id)) return bad("the key id is malformed");
  } else {
    SUREFOOT_TRY(parse_digests(all, manifest));
  }
  const Json& parts = fields.list("parts");
  SUREFOOT_TRY(fields.status());
  SUREFOOT_ASSIGN(manifest.parts, parse_parts(parts, manifest.identity, is_encrypted));
  return manifest;
}

}  // namespace

Result<Manifest> make_manifest(const std::vector<StoredPart>& parts) {
  if (parts.empty() || parts.size() > kMaxParts) return bad("no parts, or too many");
  const int of = static_cast<int>(parts.size());
  Manifest manifest;
  for (int i = 0; i < of; ++i) {
    const StoredPart& stored = parts[static_cast<std::size_t>(i)];
    auto header = parse_part_header(stored.header);
    if (!header) return error(Code::kCorrupt, "part {} of {}: {}", i, of, header.error().message);
    const std::string key_id = header->sealed ? header->sealed->key_id : "";
    if (i == 0) {
      manifest.identity = header->identity;
      manifest.key_id = key_id;
    }
    const auto same = same_set(manifest.identity, header->identity);
    if (!same) return error(Code::kCorrupt, "part {} of {} is {}", i, of, same.error().message);
    if (header->part != i || header->of != of)
      return error(Code::kCorrupt, "part {} of {} says it is part {} of {}", i, of, header->part,
                   header->of);
    if (key_id != manifest.key_id)
      return error(Code::kCorrupt, "part {} of {} is encrypted with another key", i, of);
    const auto payload = header->payload_bytes();
    if (stored.bytes != static_cast<std::int64_t>(stored.header.size()) + payload)
      return error(Code::kCorrupt, "part {} of {} has {} bytes, not {}", i, of, stored.bytes,
                   static_cast<std::int64_t>(stored.header.size()) + payload);
    manifest.chunk_digests.insert(manifest.chunk_digests.end(), header->chunk_digests.begin(),
                                  header->chunk_digests.end());
    manifest.parts.push_back({part_name(manifest.identity.step, manifest.identity.attempt, i, of),
                              stored.bytes, header->chunks, digest(stored.header),
                              header->sealed ? header->sealed->bytes : ""});
  }
  if (!manifest.is_encrypted()) manifest.state_digest = state_digest(manifest.chunk_digests);
  return manifest;
}

PartHeader header_of(const Manifest& manifest, int part) {
  const PartEntry& entry = manifest.parts[static_cast<std::size_t>(part)];
  PartHeader header{manifest.identity, part, static_cast<int>(manifest.parts.size()),
                    entry.chunks,      {},   {}};
  if (manifest.is_encrypted()) header.sealed = {manifest.key_id, entry.sealed_digests};
  if (!manifest.chunk_digests.empty()) {
    const auto begin = manifest.chunk_digests.begin();
    header.chunk_digests.assign(begin + entry.chunks.begin, begin + entry.chunks.end);
  }
  return header;
}

Status open_manifest(Manifest& manifest, const Keys& keys) {
  if (!manifest.is_encrypted()) return {};
  SUREFOOT_ASSIGN(const SealKey* const key, key_for(keys, manifest.key_id));
  std::vector<Digest> digests;
  for (int part = 0; part < static_cast<int>(manifest.parts.size()); ++part) {
    PartHeader header = header_of(manifest, part);
    if (const auto opened = open_digests(header, *key); !opened)
      return bad(fmt::format("part {}: {}", part, opened.error().message));
    digests.insert(digests.end(), header.chunk_digests.begin(), header.chunk_digests.end());
  }
  manifest.chunk_digests = std::move(digests);
  manifest.state_digest = state_digest(manifest.chunk_digests);
  return {};
}

std::string encode_manifest(const Manifest& manifest) {
  const CheckpointIdentity& identity = manifest.identity;
  Json parts = Json::array();
  for (const PartEntry& part : manifest.parts) {
    parts.push_back(Json{{"name", part.name},
                         {"bytes", part.bytes},
                         {"first_chunk", part.chunks.begin},
                         {"end_chunk", part.chunks.end},
                         {"header_digest", part.header_digest.hex()}});
    if (manifest.is_encrypted()) parts.back()["sealed_digests"] = to_hex(part.sealed_digests);
  }
  const int version = manifest.is_encrypted() ? kSealedManifestVersion : kManifestVersion;
  Json all{{"version", version},
           {"job_id", identity.job_id},
           {"step", identity.step.value},
           {"attempt", identity.attempt.value},
           {"samples", identity.samples},
           {"layout", Json::parse(identity.layout.to_json())},
           {"training_hash", identity.training_hash.hex()},
           {"training_lines", identity.training_lines},
           {"numerics_id", identity.numerics_id},
           {"parts", std::move(parts)}};
  if (manifest.is_encrypted()) {
    all["key_id"] = manifest.key_id;
  } else {
    all["chunk_digests"] = to_hex(manifest.chunk_digests);
    all["state_digest"] = manifest.state_digest.hex();
  }
  std::string text = dump(all);
  text.back() = ',';
  const std::string hex = digest(text).hex();
  return text.append(kDigestKey).append(hex).append(kEnd);
}

Result<Manifest> parse_manifest(std::string_view text) {
  if (text.size() < kTail || !text.ends_with(kEnd)) return bad("its end is missing");
  const std::string_view covered = text.substr(0, text.size() - kTail);
  const std::string_view tail = text.substr(covered.size());
  if (!tail.starts_with(kDigestKey)) return bad("its end is missing");
  if (tail.substr(kDigestKey.size(), 32) != digest(covered).hex())
    return bad("its bytes do not match its digest");
  // Values nested deeper than any of ours are dropped, since writing them again would recurse as
  // deep.
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth < 32; };
  const Json all = Json::parse(text.begin(), text.end(), shallow, false);
  if (!all.is_object()) return bad("not a JSON object");
  const auto version = all.find("version");
  if (version == all.end() || !version->is_number_unsigned()) return bad("no version");
  const bool is_encrypted = *version == kSealedManifestVersion;
  if (!is_encrypted && *version != kManifestVersion) {
    return error(Code::kInvalid,
                 "manifest has format version {}, this build knows up to {}: use a newer build",
                 version->get<std::uint64_t>(), kSealedManifestVersion);
  }
  SUREFOOT_ASSIGN(Manifest manifest, parse_body(all, is_encrypted));
  if (encode_manifest(manifest) != text) return bad("it is not written canonically");
  return manifest;
}

}  // namespace surefoot
