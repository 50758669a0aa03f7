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

Result<std::vector<PartEntry>> parse_parts(const Json& list, const CheckpointIdentity& identity) {
  if (list.empty() || list.size() > kMaxParts) return bad("no parts, or too many");
  const int of = static_cast<int>(list.size());
  std::vector<PartEntry> parts;
  for (int i = 0; i < of; ++i) {
    Fields fields(list[static_cast<std::size_t>(i)]);
    PartEntry entry{fields.text("name"), fields.number("bytes"),
                    part_chunks(identity.layout.chunks(), i, of), fields.digest("header_digest")};
    const std::int64_t first = fields.number("first_chunk");
    const std::int64_t end = fields.number("end_chunk");
    SUREFOOT_TRY(fields.status());
    const std::int64_t header =
        entry.bytes - chunk_bytes(entry.chunks, identity.layout.bytes).size();
    if (entry.name != part_name(identity.step, identity.attempt, i, of) ||
        entry.chunks != ChunkRange{first, end} || header <= 8 || header > kMaxHeaderBytes + 8) {
      return bad(fmt::format("part {} does not fit the rest", i));
    }
    parts.push_back(std::move(entry));
  }
  return parts;
}

Result<Manifest> parse_body(const Json& all) {
  Manifest manifest;
  SUREFOOT_ASSIGN(manifest.identity, parse_identity(all));
  Fields fields(all);
  auto digests = digests_from_hex(fields.text("chunk_digests"));
  manifest.state_digest = fields.digest("state_digest");
  const Json& parts = fields.list("parts");
  SUREFOOT_TRY(fields.status());
  if (!digests || static_cast<std::int64_t>(digests->size()) != manifest.identity.layout.chunks())
    return bad("the chunk digests are malformed");
  manifest.chunk_digests = *std::move(digests);
  if (manifest.state_digest != state_digest(manifest.chunk_digests))
    return bad("the state digest does not match the chunk digests");
  SUREFOOT_ASSIGN(manifest.parts, parse_parts(parts, manifest.identity));
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
    if (i == 0) manifest.identity = header->identity;
    const auto same = same_set(manifest.identity, header->identity);
    if (!same) return error(Code::kCorrupt, "part {} of {} is {}", i, of, same.error().message);
    if (header->part != i || header->of != of)
      return error(Code::kCorrupt, "part {} of {} says it is part {} of {}", i, of, header->part,
                   header->of);
    const auto payload = chunk_bytes(header->chunks, manifest.identity.layout.bytes).size();
    if (stored.bytes != static_cast<std::int64_t>(stored.header.size()) + payload)
      return error(Code::kCorrupt, "part {} of {} has {} bytes, not {}", i, of, stored.bytes,
                   static_cast<std::int64_t>(stored.header.size()) + payload);
    manifest.chunk_digests.insert(manifest.chunk_digests.end(), header->chunk_digests.begin(),
                                  header->chunk_digests.end());
    manifest.parts.push_back({part_name(manifest.identity.step, manifest.identity.attempt, i, of),
                              stored.bytes, header->chunks, digest(stored.header)});
  }
  manifest.state_digest = state_digest(manifest.chunk_digests);
  return manifest;
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
  }
  const Json all{{"version", kManifestVersion},
                 {"job_id", identity.job_id},
                 {"step", identity.step.value},
                 {"attempt", identity.attempt.value},
                 {"samples", identity.samples},
                 {"layout", Json::parse(identity.layout.to_json())},
                 {"training_hash", identity.training_hash.hex()},
                 {"training_lines", identity.training_lines},
                 {"numerics_id", identity.numerics_id},
                 {"chunk_digests", to_hex(manifest.chunk_digests)},
                 {"state_digest", manifest.state_digest.hex()},
                 {"parts", std::move(parts)}};
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
  if (*version != kManifestVersion) {
    return error(Code::kInvalid,
                 "manifest has format version {}, this build knows {}: use a newer build",
                 version->get<std::uint64_t>(), kManifestVersion);
  }
  SUREFOOT_ASSIGN(Manifest manifest, parse_body(all));
  if (encode_manifest(manifest) != text) return bad("it is not written canonically");
  return manifest;
}

}  // namespace surefoot
