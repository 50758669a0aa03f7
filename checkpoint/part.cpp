#include "checkpoint/part.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "checkpoint/hex_digests.h"

namespace surefoot {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kKind = "surefoot part";  // on disk
constexpr std::string_view kVersion = "1";           // on disk
constexpr std::string_view kSealedVersion = "2";     // on disk: an encrypted part
constexpr std::int64_t kHeaderAlignment =
    4096;  // on disk: so that payload can be read with O_DIRECT or mapped
constexpr std::int64_t kMaxState = std::int64_t{1} << 46;

Error bad(std::string_view what) {
  return error(Code::kCorrupt, "part header: {}", what);
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void add_tensor(Json& all, std::string name, DType type, ByteRange state,
                std::int64_t payload_begin) {
  all[std::move(name)] =
      Json{{"dtype", std::string(surefoot::name(type))},
           {"shape", Json::array({state.size() / size_of(type)})},
           {"data_offsets", Json::array({state.begin - payload_begin, state.end - payload_begin})}};
}

// Names every byte of `range` as (a piece of) a tensor, in order and without holes.
void add_tensors(Json& all, const StateLayout& layout, ByteRange range) {
  const auto add_gap = [&](std::int64_t begin, std::int64_t end) {
    begin = std::max(begin, range.begin);
    end = std::min(end, range.end);
    if (begin < end)
      add_tensor(all, fmt::format("gap[{}:{}]", begin, end), DType::kU8, {begin, end}, range.begin);
  };
  std::int64_t done = 0;
  for (const SectionSpec& section : layout.sections) {
    add_gap(done, section.offset);
    done = section.offset + section.bytes;
    const ByteRange piece{std::max(section.offset, range.begin), std::min(done, range.end)};
    if (piece.begin >= piece.end) continue;
    // Chunk borders and section starts are multiples of 4096, so no element is cut.
    const std::int64_t size = size_of(section.type);
    add_tensor(all,
               fmt::format("{}[{}:{}]", section.name, (piece.begin - section.offset) / size,
                           (piece.end - section.offset) / size),
               section.type, piece, range.begin);
  }
  add_gap(done, layout.bytes);
}

std::optional<std::int64_t> parse_number(std::string_view text, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < 0 || value > most)
    return std::nullopt;
  return value;
}

class Metadata {
 public:
  explicit Metadata(const Json& json) : json_(json) {}
  [[nodiscard]] std::optional<std::string> text(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end() || !found->is_string()) return std::nullopt;
    return found->get<std::string>();
  }
  [[nodiscard]] std::optional<std::int64_t> number(const char* key, std::int64_t most) const {
    const auto found = text(key);
    return found ? parse_number(*found, most) : std::nullopt;
  }
  [[nodiscard]] std::optional<Digest> digest(const char* key) const {
    const auto found = text(key);
    return found ? Digest::from_hex(*found) : std::nullopt;
  }

 private:
  const Json& json_;
};

Result<std::vector<std::string>> parse_lines(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_array()) return bad("training_lines is not a list");
  std::vector<std::string> lines;
  for (const Json& line : json) {
    if (!line.is_string()) return bad("training_lines holds something else than text");
    lines.push_back(line.get<std::string>());
  }
  return lines;
}

Result<CheckpointIdentity> parse_identity(const Metadata& metadata) {
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  const auto job = metadata.text("job_id");
  const auto step = metadata.number("step", kMost);
  const auto attempt = metadata.number("attempt", kMost);
  const auto samples = metadata.number("samples", kMost);
  const auto layout = metadata.text("layout");
  const auto hash = metadata.digest("training_hash");
  const auto lines = metadata.text("training_lines");
  const auto numerics = metadata.text("numerics_id");
  if (!job || !step || !attempt || !samples || !layout || !hash || !lines || !numerics)
    return bad("a field is missing or malformed");
  CheckpointIdentity identity{*job,  Step{*step}, Attempt{*attempt}, *samples, {},
                              *hash, {},          *numerics};
  SUREFOOT_ASSIGN(identity.layout, StateLayout::from_json(*layout));
  if (identity.layout.bytes > kMaxState) return bad("the state is absurdly large");
  SUREFOOT_ASSIGN(identity.training_lines, parse_lines(*lines));
  return identity;
}

// All that a header says but its digests.
SealContext header_context(const PartHeader& header) {
  const CheckpointIdentity& identity = header.identity;
  SealContext context("surefoot chunk digests");
  context.add(identity.job_id).add(identity.step.value).add(identity.attempt.value);
  context.add(header.part).add(header.of).add(identity.samples).add(identity.layout.to_json());
  context.add(identity.training_hash.hex()).add(identity.numerics_id);
  context.add(static_cast<std::int64_t>(identity.training_lines.size()));
  for (const std::string& line : identity.training_lines) context.add(line);
  return context;
}

// The chunk digests, in the clear or sealed.
Status parse_digests(const Metadata& metadata, bool is_sealed, PartHeader& header) {
  const auto count = static_cast<std::size_t>(header.chunks.size());
  if (!is_sealed) {
    auto digests = digests_from_hex(metadata.text("chunk_digests").value_or(""));
    if (!digests || digests->size() != count) return bad("the chunk digests are malformed");
    header.chunk_digests = *std::move(digests);
    return {};
  }
  const auto key_id = metadata.text("key_id");
  auto bytes = bytes_from_hex(metadata.text("sealed_digests").value_or(""));
  if (!key_id || !is_key_id(*key_id) || !bytes || bytes->size() != sealed_digest_bytes(count))
    return bad("the sealed digests are malformed");
  header.sealed = SealedDigests{*key_id, *std::move(bytes)};
  return {};
}

std::string length_prefix(std::size_t length) {
  std::string prefix(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    prefix[i] = static_cast<char>(static_cast<std::uint64_t>(length) >> (8 * i));
  return prefix;
}

std::uint64_t read_length(std::string_view first8) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i)
    length |= std::uint64_t{static_cast<unsigned char>(first8[i])} << (8 * i);
  return length;
}

}  // namespace

ChunkRange part_chunks(std::int64_t chunks, int part, int of) {
  SUREFOOT_CHECK(of >= 1 && part >= 0 && part < of && chunks >= 0);
  return {chunks * part / of, chunks * (part + 1) / of};
}

ByteRange chunk_bytes(ChunkRange chunks, std::int64_t state_bytes) {
  return {std::min(chunks.begin * kChunkBytes, state_bytes),
          std::min(chunks.end * kChunkBytes, state_bytes)};
}

std::int64_t stored_payload_bytes(ChunkRange chunks, std::int64_t state_bytes, bool is_sealed) {
  const std::int64_t plain = chunk_bytes(chunks, state_bytes).size();
  return is_sealed ? sealed_bytes(plain) : plain;
}

std::int64_t PartHeader::payload_bytes() const {
  return stored_payload_bytes(chunks, identity.layout.bytes, sealed.has_value());
}

void seal_digests(PartHeader& header, const SealKey& key) {
  SUREFOOT_CHECK(static_cast<std::int64_t>(header.chunk_digests.size()) == header.chunks.size());
  std::string bytes(sealed_digest_bytes(header.chunk_digests.size()), '\0');
  key.seal(header_context(header), std::as_bytes(std::span(header.chunk_digests)),
           std::as_writable_bytes(std::span(bytes)));
  header.sealed = SealedDigests{key.id(), std::move(bytes)};
}

Status open_digests(PartHeader& header, const SealKey& key) {
  SUREFOOT_CHECK(header.sealed && header.sealed->key_id == key.id());
  std::vector<Digest> digests(static_cast<std::size_t>(header.chunks.size()));
  const std::string& bytes = header.sealed->bytes;
  if (bytes.size() != sealed_digest_bytes(digests.size()) ||
      !key.open(header_context(header), as_bytes(bytes),
                std::as_writable_bytes(std::span(digests)))) {
    return error(Code::kCorrupt, "what it says was not sealed like this with key {}", key.id());
  }
  header.chunk_digests = std::move(digests);
  return {};
}

SealContext piece_context(const CheckpointIdentity& identity, int part, int of,
                          std::int64_t piece) {
  SealContext context("surefoot piece");
  context.add(identity.job_id).add(identity.step.value).add(identity.attempt.value);
  context.add(part).add(of).add(piece);
  return context;
}

std::string encode_part_header(const PartHeader& header) {
  const CheckpointIdentity& identity = header.identity;
  Json all = Json::object();
  const ByteRange plain = chunk_bytes(header.chunks, identity.layout.bytes);
  if (!header.sealed) {
    add_tensors(all, identity.layout, plain);
  } else if (const std::int64_t bytes = header.payload_bytes(); bytes > 0) {
    add_tensor(all, "sealed", DType::kU8, {0, bytes}, 0);
  }
  Json& metadata = all["__metadata__"];
  metadata = Json{{"kind", std::string(kKind)},
                  {"version", std::string(header.sealed ? kSealedVersion : kVersion)},
                  {"job_id", identity.job_id},
                  {"step", std::to_string(identity.step.value)},
                  {"attempt", std::to_string(identity.attempt.value)},
                  {"samples", std::to_string(identity.samples)},
                  {"part", std::to_string(header.part)},
                  {"of", std::to_string(header.of)},
                  {"first_chunk", std::to_string(header.chunks.begin)},
                  {"end_chunk", std::to_string(header.chunks.end)},
                  {"layout", identity.layout.to_json()},
                  {"training_hash", identity.training_hash.hex()},
                  {"training_lines", dump(Json(identity.training_lines))},
                  {"numerics_id", identity.numerics_id}};
  if (header.sealed) {
    metadata["key_id"] = header.sealed->key_id;
    metadata["sealed_digests"] = to_hex(header.sealed->bytes);
  } else {
    metadata["chunk_digests"] = to_hex(header.chunk_digests);
  }
  metadata["xxh3_128"] = digest(dump(all)).hex();
  std::string text = dump(all);
  const std::size_t unpadded = 8 + text.size();
  text.append((kHeaderAlignment - unpadded % kHeaderAlignment) % kHeaderAlignment, ' ');
  return length_prefix(text.size()) + text;
}

Result<std::int64_t> part_header_bytes(std::string_view first8, std::int64_t object_bytes) {
  if (first8.size() != 8 || object_bytes < 8) return bad("the file is too short");
  const std::uint64_t length = read_length(first8);
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes) ||
      length + 8 > static_cast<std::uint64_t>(object_bytes)) {
    return bad("its length does not fit the file");
  }
  return static_cast<std::int64_t>(length) + 8;
}

Result<PartHeader> parse_part_header(std::string_view bytes) {
  if (bytes.size() < 8 || read_length(bytes) != bytes.size() - 8) return bad("wrong length");
  const std::string_view text = bytes.substr(8);
  const Json all = Json::parse(text.begin(), text.end(), nullptr, false);
  if (!all.is_object()) return bad("not a JSON object");
  const auto found = all.find("__metadata__");
  if (found == all.end() || !found->is_object()) return bad("no metadata");
  const Metadata metadata(*found);
  if (metadata.text("kind") != kKind) return bad("not a part of ours");
  const auto version = metadata.text("version");
  if (version != kVersion && version != kSealedVersion) return bad("an unknown version");
  PartHeader header;
  SUREFOOT_ASSIGN(header.identity, parse_identity(metadata));
  const auto of = metadata.number("of", kMaxParts);
  const auto part = metadata.number("part", kMaxParts);
  if (!of || !part || *of < 1 || *part >= *of) return bad("part or number of parts is malformed");
  header.of = static_cast<int>(*of);
  header.part = static_cast<int>(*part);
  header.chunks = part_chunks(header.identity.layout.chunks(), header.part, header.of);
  SUREFOOT_TRY(parse_digests(metadata, version == kSealedVersion, header));
  // Everything else (tensors, ranges, padding, the digest over all of it) follows from what has
  // been read.
  if (encode_part_header(header) != bytes) return bad("its bytes do not match its digest");
  return header;
}

Status same_set(const CheckpointIdentity& a, const CheckpointIdentity& b) {
  if (a.job_id != b.job_id)
    return error(Code::kCorrupt, "of job {}, not of job {}", b.job_id, a.job_id);
  if (a.step != b.step) return error(Code::kCorrupt, "of step {}, not of step {}", b.step, a.step);
  if (a.attempt != b.attempt)
    return error(Code::kCorrupt, "of attempt {}, not of attempt {}", b.attempt, a.attempt);
  if (a.samples != b.samples)
    return error(Code::kCorrupt, "another number of samples: {}, not {}", b.samples, a.samples);
  if (a.training_hash != b.training_hash)
    return error(Code::kCorrupt, "made with another training hash");
  if (a.training_lines != b.training_lines || a.numerics_id != b.numerics_id)
    return error(Code::kCorrupt, "made with other training keys, or by another build");
  if (a.layout.digest() != b.layout.digest()) return error(Code::kCorrupt, "of another layout");
  return {};
}

std::string step_folder(Step step) {
  return fmt::format("step-{:011}/", step.value);
}

std::string manifest_name(Step step) {
  return step_folder(step) + "manifest.json";
}

std::string part_name(Step step, Attempt attempt, int part, int of) {
  return fmt::format("{}a{:03}-part-{:02}-of-{:02}.safetensors", step_folder(step), attempt.value,
                     part, of);
}

std::optional<ParsedName> parse_name(std::string_view name) {
  constexpr std::string_view kStep = "step-";
  const auto slash = name.find('/');
  if (!name.starts_with(kStep) || slash == std::string_view::npos) return std::nullopt;
  const auto step =
      parse_number(name.substr(kStep.size(), slash - kStep.size()), std::int64_t{1} << 53);
  if (!step) return std::nullopt;
  ParsedName parsed;
  parsed.step = Step{*step};
  if (name == manifest_name(parsed.step)) {
    parsed.manifest = true;
    return parsed;
  }
  std::string_view rest = name.substr(slash + 1);
  const auto take = [&rest](std::string_view before, std::string_view after,
                            std::int64_t most) -> std::optional<std::int64_t> {
    if (!rest.starts_with(before)) return std::nullopt;
    const auto end = rest.find(after, before.size());
    if (end == std::string_view::npos) return std::nullopt;
    const auto value = parse_number(rest.substr(before.size(), end - before.size()), most);
    rest.remove_prefix(end);
    return value;
  };
  const auto attempt = take("a", "-part-", std::int64_t{1} << 53);
  const auto part = attempt ? take("-part-", "-of-", kMaxParts) : std::nullopt;
  const auto of = part ? take("-of-", ".safetensors", kMaxParts) : std::nullopt;
  if (!of || *of < 1 || *part >= *of) return std::nullopt;
  parsed.attempt = Attempt{*attempt};
  parsed.part = static_cast<int>(*part);
  parsed.of = static_cast<int>(*of);
  // Only the one spelling: "a3-part-0-of-2" would be another object.
  if (name != part_name(parsed.step, parsed.attempt, parsed.part, parsed.of)) return std::nullopt;
  return parsed;
}

}  // namespace surefoot
