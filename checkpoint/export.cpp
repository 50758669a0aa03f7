#include "checkpoint/export.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "checkpoint/store/file/file_store.h"
#include "common/file.h"

namespace surefoot {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kModelFile = "model.safetensors";
constexpr std::string_view kConfigFile = "config.json";
constexpr std::string_view kTemporary = ".tmp-";

// A tensor of the model and where it lies in the state.
struct Source {
  const TensorSpec* tensor;
  DType type;
  std::int64_t offset;  // bytes from the start of the state
  std::int64_t bytes;
};

// Parameters and buffers, larger element types first and then by name (the order of the safetensors
// library), so that every tensor is aligned.
Result<std::vector<Source>> model_tensors(const StateLayout& layout) {
  std::map<std::string_view, Source> by_name;
  for (const SectionSpec& section : layout.sections) {
    if (section.name != "parameters" && !section.name.starts_with("buffers.")) continue;
    for (const TensorSpec& tensor : section.tensors) {
      const Source source{&tensor, section.type, section.offset + tensor.offset,
                          tensor.elements() * size_of(section.type)};
      if (!by_name.emplace(tensor.name, source).second)
        return error(Code::kInvalid, "the model has two tensors named {}", tensor.name);
    }
  }
  std::vector<Source> sources;
  for (const auto& [name, source] : by_name) sources.push_back(source);
  std::stable_sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) {
    return size_of(a.type) > size_of(b.type);
  });
  return sources;
}

std::string model_header(const std::vector<Source>& sources) {
  // "format" is what Hugging Face's loader asks for. Keys are kept sorted by nlohmann::json.
  Json all{{"__metadata__", {{"format", "pt"}}}};
  std::int64_t at = 0;
  for (const Source& source : sources) {
    all[source.tensor->name] = Json{{"dtype", std::string(name(source.type))},
                                    {"shape", source.tensor->shape},
                                    {"data_offsets", Json::array({at, at + source.bytes})}};
    at += source.bytes;
  }
  std::string text = all.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string prefix(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    prefix[i] = static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i));
  return prefix + text;
}

Status write_model(Store& store, const StateLayout& layout, std::span<const std::byte> state) {
  SUREFOOT_ASSIGN(const std::vector<Source> sources, model_tensors(layout));
  const std::string header = model_header(sources);
  std::vector<std::span<const std::byte>> pieces{as_bytes(header)};
  std::int64_t bytes = static_cast<std::int64_t>(header.size());
  for (const Source& source : sources) {
    bytes += source.bytes;
    if (source.bytes > 0) pieces.push_back(state.subspan(source.offset, source.bytes));
  }
  std::size_t at = 0;
  const ByteSource next = [&]() -> Result<std::span<const std::byte>> {
    if (at == pieces.size()) return std::span<const std::byte>();
    const auto piece = pieces[at].first(std::min(pieces[at].size(), kMaxPieceBytes));
    pieces[at] = pieces[at].subspan(piece.size());
    if (pieces[at].empty()) ++at;
    return piece;
  };
  return store.put_if_absent(std::string(kModelFile), bytes, next, Time::max());
}

Error os_error(std::string_view what, const fs::path& path) {
  return file_error(-std::int64_t{errno}, what, path.string());
}

// A folder that holds anything but an earlier export is not ours to replace.
Status check_target(const fs::path& folder) {
  std::error_code problem;
  const fs::file_status status = fs::status(folder, problem);
  if (!fs::exists(status)) return {};
  if (!fs::is_directory(status))
    return error(Code::kInvalid, "{} is not a folder", folder.string());
  for (auto entry = fs::directory_iterator(folder, problem);
       !problem && entry != fs::directory_iterator(); entry.increment(problem)) {
    const std::string name = entry->path().filename().string();
    if (name == kModelFile || name == kConfigFile || name.starts_with(kTemporary)) continue;
    return error(Code::kInvalid, "{} holds {}, which is no export: choose another folder",
                 folder.string(), name);
  }
  if (problem)
    return error(Code::kInvalid, "cannot read {}: {}", folder.string(), problem.message());
  return {};
}

std::string temporary_prefix(const fs::path& folder) {
  return std::string(kTemporary) + folder.filename().string() + "-";
}

void remove_old_temporaries(const fs::path& folder) {
  std::error_code ignored;
  for (auto entry = fs::directory_iterator(folder.parent_path(), ignored);
       !ignored && entry != fs::directory_iterator(); entry.increment(ignored)) {
    if (!entry->path().filename().string().starts_with(temporary_prefix(folder))) continue;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(entry->path(), ignored);
    if (!ignored && age > std::chrono::minutes(10)) fs::remove_all(entry->path(), ignored);
  }
}

Status sync_folder(const fs::path& folder) {
  const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) return os_error("cannot sync", folder);
  return {};
}

// Puts `fresh` where `folder` is.
Status swap_in(const fs::path& fresh, const fs::path& folder) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) != 0) {
    // No export there yet, or a file system that cannot exchange: an empty or missing folder is
    // replaced by plain rename.
    if (errno != ENOENT && errno != EINVAL && errno != ENOSYS)
      return os_error("cannot replace", folder);
    if (::rename(fresh.c_str(), folder.c_str()) != 0) {
      if (errno != ENOTEMPTY && errno != EEXIST) return os_error("cannot make", folder);
      const fs::path aside = fresh.string() + "-old";
      if (::rename(folder.c_str(), aside.c_str()) != 0) return os_error("cannot replace", folder);
      if (::rename(fresh.c_str(), folder.c_str()) != 0) {
        const Error failed = os_error("cannot replace", folder);
        (void)::rename(aside.c_str(), folder.c_str());
        return failed;
      }
      std::error_code ignored;
      fs::remove_all(aside, ignored);
    }
  }
  SUREFOOT_TRY(sync_folder(folder.parent_path()));
  std::error_code ignored;
  fs::remove_all(fresh, ignored);  // after an exchange: the earlier export
  return {};
}

Result<Exported> write_and_swap(const StateLayout& layout, std::span<const std::byte> state,
                                const config::Job& job, const fs::path& fresh,
                                const fs::path& folder) {
  SUREFOOT_ASSIGN(const auto store, FileStore::open(fresh));
  SUREFOOT_TRY(write_model(*store, layout, state));
  SUREFOOT_TRY(
      put_if_absent(*store, std::string(kConfigFile), model_config(job.model()), Time::max()));
  Exported exported;
  SUREFOOT_ASSIGN(exported.weights_sha256, sha256_of_file(fresh / kModelFile));
  exported.state_sha256 = sha256(state);
  exported.folder = folder;
  SUREFOOT_TRY(swap_in(fresh, folder));
  return exported;
}

// Disk space that looks like memory: an unlinked file, so that it goes with the process.
class ScratchFile {
 public:
  static Result<std::unique_ptr<ScratchFile>> make(const fs::path& folder, std::int64_t bytes) {
    std::string name = (folder / ".tmp-state-XXXXXX").string();
    const Fd fd(::mkostemp(name.data(), O_CLOEXEC));
    if (!fd) return os_error("cannot create a temporary file in", folder);
    (void)::unlink(name.c_str());
    if (bytes == 0) return std::unique_ptr<ScratchFile>(new ScratchFile({}));
    if (const int problem = ::posix_fallocate(fd.get(), 0, bytes); problem != 0)
      return file_error(-std::int64_t{problem}, fmt::format("cannot take {} bytes in", bytes),
                        folder.string());
    void* at = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                      fd.get(), 0);
    if (at == MAP_FAILED) return os_error("cannot map a temporary file in", folder);
    return std::unique_ptr<ScratchFile>(
        new ScratchFile({static_cast<std::byte*>(at), static_cast<std::size_t>(bytes)}));
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile() {
    if (!bytes_.empty()) (void)::munmap(bytes_.data(), bytes_.size());
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit ScratchFile(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

Json gpt2_config(const config::Model& model) {
  return Json{{"model_type", "gpt2"},
              {"architectures", {"GPT2LMHeadModel"}},
              {"n_layer", model.n_layer()},
              {"n_head", model.n_head()},
              {"n_embd", model.n_embd()},
              {"n_inner", nullptr},
              {"n_positions", model.block_size()},
              {"n_ctx", model.block_size()},
              {"vocab_size", model.vocab_size()},
              {"resid_pdrop", model.dropout()},
              {"embd_pdrop", model.dropout()},
              {"attn_pdrop", model.dropout()},
              {"activation_function", "gelu_new"},
              {"layer_norm_epsilon", 1e-5},
              {"initializer_range", 0.02},
              {"scale_attn_weights", true},
              {"tie_word_embeddings", true},
              {"use_cache", true},
              {"torch_dtype", "float32"},
              // GPT-2's own value lies outside a small vocabulary.
              {"bos_token_id", nullptr},
              {"eos_token_id", nullptr}};
}

// The value of one key of the model as JSON.
Json value_of(const config::Model& model, const google::protobuf::FieldDescriptor& field) {
  using Field = google::protobuf::FieldDescriptor;
  const auto& reflection = *model.GetReflection();
  if (field.is_repeated()) {
    Json list = Json::array();
    for (int i = 0; i < reflection.FieldSize(model, &field); ++i) {
      if (field.cpp_type() == Field::CPPTYPE_INT32)
        list.push_back(reflection.GetRepeatedInt32(model, &field, i));
    }
    return list;
  }
  switch (field.cpp_type()) {
    case Field::CPPTYPE_INT32:
      return reflection.GetInt32(model, &field);
    case Field::CPPTYPE_DOUBLE:
      return reflection.GetDouble(model, &field);
    case Field::CPPTYPE_STRING:
      // Paths of this machine mean nothing to whoever gets the model.
      return fs::path(reflection.GetString(model, &field)).filename().string();
    default:
      return nullptr;
  }
}

}  // namespace

std::string model_config(const config::Model& model) {
  Json all;
  if (model.kind() == config::Model::gpt) {
    all = gpt2_config(model);
  } else {
    const std::string kind = config::Model::Kind_Name(model.kind());
    all["kind"] = kind;
    const auto& descriptor = *config::Model::descriptor();
    for (int i = 0; i < descriptor.field_count(); ++i) {
      const auto& field = *descriptor.field(i);
      const auto& only = field.options().GetExtension(config::key).only();
      if (std::find(only.begin(), only.end(), kind) != only.end())
        all[field.name()] = value_of(model, field);
    }
  }
  return all.dump(2) + "\n";
}

Result<Exported> export_model(const StateLayout& layout, std::span<const std::byte> state,
                              const config::Job& job, const fs::path& folder) {
  SUREFOOT_CHECK(static_cast<std::int64_t>(state.size()) == layout.bytes);
  const fs::path target = (fs::absolute(folder) / "").lexically_normal().parent_path();
  SUREFOOT_TRY(check_target(target));
  remove_old_temporaries(target);
  const fs::path fresh = target.parent_path() / (temporary_prefix(target) + make_job_id());
  auto exported = write_and_swap(layout, state, job, fresh, target);
  if (!exported) {
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
  }
  return exported;
}

Result<Exported> export_checkpoint(CheckpointStore& store, const Manifest& manifest,
                                   const config::Job& job, const fs::path& folder,
                                   const Control& control) {
  const StateLayout& layout = manifest.identity.layout;
  SUREFOOT_TRY(check_target(folder));
  const fs::path parent = fs::absolute(folder).lexically_normal().parent_path();
  std::error_code problem;
  fs::create_directories(parent, problem);
  if (problem)
    return error(Code::kInvalid, "cannot make {}: {}", parent.string(), problem.message());
  SUREFOOT_ASSIGN(const auto scratch, ScratchFile::make(parent, layout.bytes));
  SUREFOOT_TRY(store.load(manifest, scratch->bytes(), control));
  return export_model(layout, scratch->bytes(), job, folder);
}

}  // namespace surefoot
