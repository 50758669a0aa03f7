#include "worker/starting_weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "common/file.h"

namespace surefoot {
namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kEmbedding = "transformer.wte.weight";

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Bytes of one element; 0: a type that nothing here can use.
std::int64_t width_of(std::string_view type) {
  if (type == "F64" || type == "I64") return 8;
  if (type == "F32" || type == "I32") return 4;
  if (type == "F16" || type == "BF16" || type == "I16") return 2;
  if (type == "I8" || type == "U8" || type == "BOOL") return 1;
  return 0;
}

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// IEEE 754 binary16; exact, as every such number is a float too.
float from_half(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t fraction = bits & 0x3FFU;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000U | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = static_cast<float>(fraction) * 0x1p-24F;
  return sign != 0 ? -small : small;
}

template <class From, class Convert>
void convert(std::string_view from, std::byte* to, Convert as_float) {
  for (std::size_t i = 0; i < from.size() / sizeof(From); ++i) {
    From value;
    std::memcpy(&value, from.data() + i * sizeof(From), sizeof value);
    const float number = as_float(value);
    std::memcpy(to + i * sizeof(float), &number, sizeof number);
  }
}

// False: no such conversion.
bool copy_elements(std::string_view from, const std::string& type, DType wanted, std::byte* to) {
  if (type == name(wanted)) {
    std::memcpy(to, from.data(), from.size());
    return true;
  }
  if (wanted != DType::kF32) return false;
  if (type == "BF16") {
    convert<std::uint16_t>(from, to, from_bfloat16);
  } else if (type == "F16") {
    convert<std::uint16_t>(from, to, from_half);
  } else if (type == "F64") {
    convert<double>(from, to, [](double value) { return static_cast<float>(value); });
  } else {
    return false;
  }
  return true;
}

Result<StoredTensor> parse_entry(const std::string& name, const nlohmann::json& entry,
                                 std::int64_t payload, std::int64_t file_bytes) {
  const auto bad = [&](std::string_view what) {
    return error(Code::kInvalid, "tensor {}: {}", name, what);
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2)
    return bad("dtype, shape or data_offsets is missing");
  StoredTensor tensor;
  tensor.type = entry["dtype"].get<std::string>();
  std::int64_t elements = 1;
  for (const auto& extent : entry["shape"]) {
    if (!extent.is_number_integer() || extent.get<std::int64_t>() < 0 ||
        __builtin_mul_overflow(elements, extent.get<std::int64_t>(), &elements))
      return bad("its shape cannot be");
    tensor.shape.push_back(extent.get<std::int64_t>());
  }
  for (const auto& offset : entry["data_offsets"]) {
    if (!offset.is_number_integer()) return bad("its data_offsets are no numbers");
  }
  const auto begin = entry["data_offsets"][0].get<std::int64_t>();
  const auto end = entry["data_offsets"][1].get<std::int64_t>();
  if (begin < 0 || end < begin || end > file_bytes - payload)
    return bad("it lies outside the file; was the file cut short?");
  const std::int64_t width = width_of(tensor.type);
  std::int64_t bytes = 0;
  if (width > 0 && (__builtin_mul_overflow(elements, width, &bytes) || bytes != end - begin))
    return bad("its size does not fit its shape");
  tensor.begin = payload + begin;
  tensor.end = payload + end;
  return tensor;
}

// A read-only mapping of a whole file.
class MappedFile {
 public:
  static Result<std::unique_ptr<MappedFile>> open(const std::string& path) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0)
      return error(Code::kInvalid, "cannot open {}: {}", path, errno_text(errno));
    if (!S_ISREG(status.st_mode) || status.st_size == 0)
      return error(Code::kInvalid, "{} is no file with weights", path);
    const auto bytes = static_cast<std::size_t>(status.st_size);
    void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (at == MAP_FAILED)
      return error(Code::kInvalid, "cannot map {}: {}", path, errno_text(errno));
    return std::unique_ptr<MappedFile>(new MappedFile({static_cast<const char*>(at), bytes}));
  }
  ~MappedFile() { ::munmap(const_cast<char*>(text_.data()), text_.size()); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  [[nodiscard]] std::string_view text() const { return text_; }

 private:
  explicit MappedFile(std::string_view text) : text_(text) {}
  std::string_view text_;
};

class Loader {
 public:
  Loader(std::string_view file, std::map<std::string, StoredTensor> tensors)
      : file_(file), tensors_(std::move(tensors)) {}

  Status load(const StateLayout& layout, std::span<std::byte> state) {
    for (const SectionSpec& section : layout.sections) {
      if (section.name != "parameters" && !section.name.starts_with("buffers.")) continue;
      for (const TensorSpec& tensor : section.tensors) {
        std::byte* to = state.data() + section.offset + tensor.offset;
        SUREFOOT_TRY(load_tensor(tensor, section.type, to));
        if (tensor.name == kEmbedding) SUREFOOT_TRY(check_head(tensor, section.type, to));
      }
    }
    return check_rest();
  }

 private:
  // The tensor of that name, with or without the prefix.
  const StoredTensor* find(std::string_view name) {
    auto found = tensors_.find(std::string(name));
    if (found == tensors_.end() && name.starts_with(kPrefix))
      found = tensors_.find(std::string(name.substr(kPrefix.size())));
    if (found == tensors_.end()) return nullptr;
    used_.insert(found->first);
    return &found->second;
  }

  Status load_tensor(const TensorSpec& wanted, DType type, std::byte* to) {
    const StoredTensor* stored = find(wanted.name);
    if (stored == nullptr)
      return error(Code::kInvalid, "tensor {} {} of the model is not in it", wanted.name,
                   shape_text(wanted.shape));
    if (stored->shape != wanted.shape)
      return error(Code::kInvalid, "tensor {}: found {}, the model has {}", wanted.name,
                   shape_text(stored->shape), shape_text(wanted.shape));
    if (!copy_elements(bytes_of(*stored), stored->type, type, to))
      return error(Code::kInvalid, "tensor {}: found type {}, the model has {}", wanted.name,
                   stored->type, name(type));
    return {};
  }

  // GPT-2's output projection is its token embedding; a file that has another one is of another
  // model.
  Status check_head(const TensorSpec& embedding, DType type, const std::byte* values) {
    const StoredTensor* head = find(kHead);
    if (head == nullptr) return {};
    std::vector<std::byte> copy(static_cast<std::size_t>(embedding.elements() * size_of(type)));
    if (head->shape == embedding.shape &&
        copy_elements(bytes_of(*head), head->type, type, copy.data()) &&
        std::memcmp(copy.data(), values, copy.size()) == 0)
      return {};
    return error(Code::kInvalid,
                 "tensor {} differs from the token embedding: a model whose output projection is "
                 "not tied cannot be started from",
                 kHead);
  }

  Status check_rest() const {
    std::vector<std::string> unused;
    for (const auto& [name, tensor] : tensors_) {
      const bool is_mask = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
      if (!used_.contains(name) && !is_mask) unused.push_back(name);
    }
    if (unused.empty()) return {};
    return error(Code::kInvalid,
                 "the model has no place for {} of its tensors ({}{}): is it larger?",
                 unused.size(), unused.front(), unused.size() > 1 ? ", ..." : "");
  }

  [[nodiscard]] std::string_view bytes_of(const StoredTensor& tensor) const {
    return file_.substr(static_cast<std::size_t>(tensor.begin),
                        static_cast<std::size_t>(tensor.end - tensor.begin));
  }

  std::string_view file_;
  std::map<std::string, StoredTensor> tensors_;
  std::set<std::string> used_;
};

Status load_from(std::string_view file, const StateLayout& layout, std::span<std::byte> state) {
  SUREFOOT_ASSIGN(auto tensors, parse_safetensors(file));
  return Loader(file, std::move(tensors)).load(layout, state);
}

}  // namespace

Result<std::map<std::string, StoredTensor>> parse_safetensors(std::string_view file) {
  constexpr std::string_view kNoFile = "it is no safetensors file";
  if (file.size() < 8) return error(Code::kInvalid, "{}", kNoFile);
  std::uint64_t header = 0;
  for (std::size_t i = 0; i < 8; ++i)
    header |= static_cast<std::uint64_t>(static_cast<unsigned char>(file[i])) << (8 * i);
  if (header > file.size() - 8) return error(Code::kInvalid, "{}", kNoFile);
  const auto text = file.substr(8, static_cast<std::size_t>(header));
  const auto all = nlohmann::json::parse(text, nullptr, false);
  if (!all.is_object()) return error(Code::kInvalid, "{}", kNoFile);
  const auto payload = static_cast<std::int64_t>(8 + header);
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, entry] : all.items()) {
    if (name == "__metadata__") continue;
    SUREFOOT_ASSIGN(StoredTensor tensor,
                    parse_entry(name, entry, payload, static_cast<std::int64_t>(file.size())));
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

Status load_starting_weights(const std::string& path, const StateLayout& layout,
                             std::span<std::byte> state) {
  SUREFOOT_CHECK(state.size() == static_cast<std::size_t>(layout.bytes));
  SUREFOOT_ASSIGN(const auto file, MappedFile::open(path));
  const Status loaded = load_from(file->text(), layout, state);
  if (!loaded) return error(loaded.error().code, "model.from {}: {}", path, loaded.error().message);
  return {};
}

}  // namespace surefoot
