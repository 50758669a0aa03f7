#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "common/file.h"
#include "worker/data_kinds.h"

namespace surefoot {
namespace {

// A whole file, mapped for reading.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd)
      return error(Code::kInvalid, "{}: cannot be opened: {}", path.string(), errno_text(errno));
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) {
      return error(Code::kInvalid, "{}: cannot be looked at: {}", path.string(), errno_text(errno));
    }
    if (!S_ISREG(status.st_mode))
      return error(Code::kInvalid, "{}: is not a regular file", path.string());
    if (status.st_size == 0) return error(Code::kInvalid, "{}: is empty", path.string());
    const auto size = static_cast<std::size_t>(status.st_size);
    void* base = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (base == MAP_FAILED) {
      return error(Code::kInvalid, "{}: cannot be mapped: {}", path.string(), errno_text(errno));
    }
    return MappedFile(path, static_cast<const std::byte*>(base), size);
  }
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        base_(std::exchange(other.base_, nullptr)),
        size_(other.size_) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile() {
    if (base_ != nullptr) ::munmap(const_cast<std::byte*>(base_), size_);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {base_, size_}; }

 private:
  MappedFile(std::filesystem::path path, const std::byte* base, std::size_t size)
      : path_(std::move(path)), base_(base), size_(size) {}
  std::filesystem::path path_;
  const std::byte* base_;
  std::size_t size_;
};

// Windows of a stretch of a file.
struct Stretch {
  const MappedFile* file = nullptr;
  std::int64_t first_token = 0;
  std::int64_t windows = 0;
};

class TokenDataset final : public Dataset {
 public:
  TokenDataset(const TokenFileOptions& options, std::vector<std::unique_ptr<MappedFile>> files,
               Stretch train, Stretch eval)
      : options_(options), files_(std::move(files)), train_(train), eval_(eval) {
    spec_ = {.type = DType::kI64, .shape = {options.block_size}};
  }

  std::int64_t size(Split split) const override { return stretch(split).windows; }
  const ArraySpec& input() const override { return spec_; }
  const ArraySpec& target() const override { return spec_; }
  std::int64_t classes() const override { return options_.vocab_size; }

  Status fill(Split split, std::int64_t index, std::span<std::byte> input,
              std::span<std::byte> target) const override {
    const Stretch& from = stretch(split);
    SUREFOOT_CHECK(index >= 0 && index < from.windows);
    SUREFOOT_CHECK(input.size() == static_cast<std::size_t>(spec_.bytes()) &&
                   target.size() == input.size());
    const std::int64_t first = from.first_token + index * options_.block_size;
    for (std::int64_t t = 0; t <= options_.block_size; ++t) {
      const std::int64_t token = token_at(*from.file, first + t);
      if (token >= options_.vocab_size) {
        return error(Code::kInvalid,
                     "{}: byte {}: found token {}, allowed are those below vocab_size {}",
                     from.file->path().string(), (first + t) * options_.token_bytes, token,
                     options_.vocab_size);
      }
      if (t < options_.block_size)
        std::memcpy(input.data() + t * sizeof token, &token, sizeof token);
      if (t > 0) std::memcpy(target.data() + (t - 1) * sizeof token, &token, sizeof token);
    }
    return {};
  }

 private:
  const Stretch& stretch(Split split) const { return split == Split::kTrain ? train_ : eval_; }
  std::int64_t token_at(const MappedFile& file, std::int64_t index) const {
    const auto* bytes =
        reinterpret_cast<const std::uint8_t*>(file.bytes().data()) + index * options_.token_bytes;
    return options_.token_bytes == 1 ? bytes[0] : bytes[0] | bytes[1] << 8;
  }

  TokenFileOptions options_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  Stretch train_;
  Stretch eval_;
  ArraySpec spec_;
};

Result<std::unique_ptr<MappedFile>> map_tokens(const std::filesystem::path& path, int token_bytes) {
  SUREFOOT_ASSIGN(MappedFile file, MappedFile::open(path));
  if (file.bytes().size() % static_cast<std::size_t>(token_bytes) != 0) {
    return error(Code::kInvalid, "{}: byte {}: the file ends in the middle of a token of {} bytes",
                 path.string(), file.bytes().size(), token_bytes);
  }
  return std::make_unique<MappedFile>(std::move(file));
}

std::int64_t windows_in(std::int64_t tokens, std::int64_t block_size) {
  return tokens > 0 ? (tokens - 1) / block_size : 0;
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_token_file(const TokenFileOptions& options) {
  SUREFOOT_CHECK(options.block_size >= 1 && (options.token_bytes == 1 || options.token_bytes == 2));
  std::vector<std::unique_ptr<MappedFile>> files;
  SUREFOOT_ASSIGN(auto file, map_tokens(options.path, options.token_bytes));
  const auto tokens = static_cast<std::int64_t>(file->bytes().size()) / options.token_bytes;
  Stretch train{file.get(), 0, 0};
  Stretch eval{file.get(), 0, 0};
  std::int64_t train_tokens = tokens;
  if (options.eval_path.empty()) {
    train_tokens = tokens - static_cast<std::int64_t>(
                                std::floor(options.holdout * static_cast<double>(tokens)));
    eval.first_token = train_tokens;
    eval.windows = windows_in(tokens - train_tokens, options.block_size);
  }
  train.windows = windows_in(train_tokens, options.block_size);
  if (train.windows < 1) {
    return error(Code::kInvalid,
                 "{}: found {} tokens to train on, a sample of block_size {} needs {}",
                 options.path.string(), train_tokens, options.block_size, options.block_size + 1);
  }
  files.push_back(std::move(file));
  if (!options.eval_path.empty()) {
    SUREFOOT_ASSIGN(auto held_out, map_tokens(options.eval_path, options.token_bytes));
    const auto count = static_cast<std::int64_t>(held_out->bytes().size()) / options.token_bytes;
    eval = {held_out.get(), 0, windows_in(count, options.block_size)};
    if (eval.windows < 1) {
      return error(Code::kInvalid, "{}: found {} tokens, a sample of block_size {} needs {}",
                   options.eval_path.string(), count, options.block_size, options.block_size + 1);
    }
    files.push_back(std::move(held_out));
  }
  return std::unique_ptr<Dataset>(
      std::make_unique<TokenDataset>(options, std::move(files), train, eval));
}

}  // namespace surefoot
