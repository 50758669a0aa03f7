#include "checkpoint/layout.h"

#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace surefoot {
namespace {

using Json = nlohmann::json;

struct DTypeRow {
  DType type;
  std::string_view name;
  std::int64_t size;
};
constexpr std::array<DTypeRow, 8> kTypes = {{{DType::kF32, "F32", 4},
                                             {DType::kF64, "F64", 8},
                                             {DType::kI64, "I64", 8},
                                             {DType::kI32, "I32", 4},
                                             {DType::kI16, "I16", 2},
                                             {DType::kI8, "I8", 1},
                                             {DType::kU8, "U8", 1},
                                             {DType::kBool, "BOOL", 1}}};

// Limits on what is read from outside. Arbitrary, far above any real model.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 46;
constexpr std::size_t kMaxSections = 256;
constexpr std::size_t kMaxTensors = 1'000'000;
constexpr std::size_t kMaxDimensions = 64;

std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

std::optional<DType> type_named(std::string_view text) {
  for (const DTypeRow& row : kTypes) {
    if (row.name == text) return row.type;
  }
  return std::nullopt;
}

std::optional<std::int64_t> integer(const Json& object, const char* key, std::int64_t most) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  if (found->is_number_unsigned() && found->get<std::uint64_t>() > static_cast<std::uint64_t>(most))
    return std::nullopt;
  const auto value = found->get<std::int64_t>();
  if (value < 0) return std::nullopt;
  return value;
}

std::optional<std::string> string(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

Error bad(std::string_view what) {
  return error(Code::kCorrupt, "layout of the state: {}", what);
}

// The bytes a tensor takes, or nothing when they are absurd.
std::optional<std::int64_t> bytes_of(const TensorSpec& tensor, DType type) {
  std::int64_t bytes = size_of(type);
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0 || (extent > 0 && bytes > kMaxBytes / extent)) return std::nullopt;
    bytes *= extent;
  }
  return bytes;
}

Result<TensorSpec> parse_tensor(const Json& json) {
  if (!json.is_object()) return bad("a tensor is not an object");
  TensorSpec tensor;
  const auto name = string(json, "name");
  const auto offset = integer(json, "offset", kMaxBytes);
  const auto shape = json.find("shape");
  if (!name || name->empty() || !offset || shape == json.end() || !shape->is_array() ||
      shape->size() > kMaxDimensions) {
    return bad("a tensor needs name, shape and offset");
  }
  tensor.name = *name;
  tensor.offset = *offset;
  for (const Json& extent : *shape) {
    if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > kMaxBytes)
      return bad("a shape holds something else than sizes");
    tensor.shape.push_back(extent.get<std::int64_t>());
  }
  return tensor;
}

Result<SectionSpec> parse_section(const Json& json) {
  if (!json.is_object()) return bad("a section is not an object");
  SectionSpec section;
  const auto name = string(json, "name");
  const auto type = type_named(string(json, "dtype").value_or(""));
  const auto offset = integer(json, "offset", kMaxBytes);
  const auto bytes = integer(json, "bytes", kMaxBytes);
  const auto tensors = json.find("tensors");
  if (!name || name->empty() || !type || !offset || !bytes || tensors == json.end() ||
      !tensors->is_array() || tensors->size() > kMaxTensors) {
    return bad("a section needs name, dtype, offset, bytes and tensors");
  }
  section = SectionSpec{*name, *type, *offset, *bytes, {}};
  section.tensors.reserve(tensors->size());
  std::int64_t end = 0;
  std::set<std::string> names;
  for (const Json& entry : *tensors) {
    SUREFOOT_ASSIGN(TensorSpec tensor, parse_tensor(entry));
    const auto size = bytes_of(tensor, section.type);
    if (!size || tensor.offset != round_up(end, kTensorAlignment) ||
        *size > section.bytes - tensor.offset) {
      return bad(fmt::format("tensor {} does not fit into section {}", tensor.name, section.name));
    }
    if (!names.insert(tensor.name).second)
      return bad(fmt::format("tensor {} stands twice in section {}", tensor.name, section.name));
    end = tensor.offset + *size;
    section.tensors.push_back(std::move(tensor));
  }
  if (section.bytes != round_up(end, kTensorAlignment))
    return bad(fmt::format("section {} has a wrong size", section.name));
  return section;
}

}  // namespace

std::string_view name(DType type) {
  for (const DTypeRow& row : kTypes) {
    if (row.type == type) return row.name;
  }
  return "?";
}

std::int64_t size_of(DType type) {
  for (const DTypeRow& row : kTypes) {
    if (row.type == type) return row.size;
  }
  return 1;
}

std::int64_t TensorSpec::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

void StateLayout::add_section(std::string name, DType type, std::vector<TensorSpec> tensors) {
  SectionSpec section{std::move(name), type, round_up(bytes, kSectionAlignment), 0,
                      std::move(tensors)};
  std::int64_t end = 0;
  for (TensorSpec& tensor : section.tensors) {
    tensor.offset = round_up(end, kTensorAlignment);
    end = tensor.offset + tensor.elements() * size_of(type);
  }
  section.bytes = round_up(end, kTensorAlignment);
  bytes = section.offset + section.bytes;
  sections.push_back(std::move(section));
}

const SectionSpec* StateLayout::find(std::string_view section) const {
  for (const SectionSpec& candidate : sections) {
    if (candidate.name == section) return &candidate;
  }
  return nullptr;
}

std::string StateLayout::to_json() const {
  // nlohmann::json keeps keys sorted, which makes the text canonical.
  Json all = Json::object();
  all["bytes"] = bytes;
  all["sections"] = Json::array();
  for (const SectionSpec& section : sections) {
    Json tensors = Json::array();
    for (const TensorSpec& tensor : section.tensors) {
      tensors.push_back(
          Json{{"name", tensor.name}, {"offset", tensor.offset}, {"shape", tensor.shape}});
    }
    all["sections"].push_back(Json{{"name", section.name},
                                   {"dtype", std::string(surefoot::name(section.type))},
                                   {"offset", section.offset},
                                   {"bytes", section.bytes},
                                   {"tensors", std::move(tensors)}});
  }
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<StateLayout> StateLayout::from_json(std::string_view json) {
  const Json all = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (all.is_discarded() || !all.is_object()) return bad("not a JSON object");
  const auto bytes = integer(all, "bytes", kMaxBytes);
  const auto sections = all.find("sections");
  if (!bytes || sections == all.end() || !sections->is_array() || sections->size() > kMaxSections)
    return bad("bytes and sections are needed");
  StateLayout layout;
  std::set<std::string> names;
  for (const Json& entry : *sections) {
    SUREFOOT_ASSIGN(SectionSpec section, parse_section(entry));
    if (section.offset != round_up(layout.bytes, kSectionAlignment))
      return bad(fmt::format("section {} stands in a wrong place", section.name));
    if (!names.insert(section.name).second)
      return bad(fmt::format("section {} stands twice", section.name));
    if (section.bytes > kMaxBytes - section.offset) return bad("the sizes are absurd");
    layout.bytes = section.offset + section.bytes;
    layout.sections.push_back(std::move(section));
  }
  if (layout.bytes != *bytes) return bad("the sizes of the sections do not add up");
  return layout;
}

Digest StateLayout::digest() const {
  return surefoot::digest(to_json());
}

void clear_gaps(const StateLayout& layout, std::span<std::byte> state) {
  SUREFOOT_CHECK(static_cast<std::int64_t>(state.size()) == layout.bytes);
  std::int64_t written = 0;
  const auto clear_up_to = [&](std::int64_t end) {
    std::memset(state.data() + written, 0, static_cast<std::size_t>(end - written));
  };
  for (const SectionSpec& section : layout.sections) {
    for (const TensorSpec& tensor : section.tensors) {
      clear_up_to(section.offset + tensor.offset);
      written = section.offset + tensor.offset + tensor.elements() * size_of(section.type);
    }
  }
  clear_up_to(layout.bytes);
}

Digest state_digest(std::span<const Digest> chunks) {
  return digest(std::as_bytes(chunks));
}

}  // namespace surefoot
