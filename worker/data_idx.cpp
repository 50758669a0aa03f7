// IDX, the format of MNIST (http://yann.lecun.com/exdb/mnist): big-endian words: magic 0x00 0x00
// <type> <dimensions>, then each extent, then the values. Type 0x08: unsigned bytes.
#include <zlib.h>

#include <cerrno>
#include <cstring>

#include "common/file.h"
#include "worker/data_kinds.h"

namespace surefoot {
namespace {

constexpr std::int64_t kMaxExtent = 1 << 28;   // arbitrary, far above any image set
constexpr std::int64_t kMaxBytes = 1LL << 36;  // 64 GiB: more does not fit memory
constexpr std::size_t kPieceBytes = std::size_t{1}
                                    << 20;  // a lying header costs at most this much memory

// Reads plain and gzip files alike (zlib passes plain ones through).
class GzReader {
 public:
  static Result<GzReader> open(const std::filesystem::path& path) {
    errno = 0;
    gzFile file = ::gzopen(path.c_str(), "rbe");  // e: close-on-exec
    if (file == nullptr) {
      return error(Code::kInvalid, "{}: cannot be opened: {}", path.string(),
                   errno_text(errno != 0 ? errno : ENOMEM));
    }
    return GzReader(path, file);
  }
  GzReader(GzReader&& other) noexcept
      : path_(std::move(other.path_)), file_(std::exchange(other.file_, nullptr)), at_(other.at_) {}
  GzReader& operator=(GzReader&&) = delete;
  ~GzReader() {
    if (file_ != nullptr) ::gzclose(file_);
  }

  // Up to `size` bytes; fewer only at the end of the file.
  Result<std::size_t> read(void* to, std::size_t size) {
    SUREFOOT_CHECK(size <= kPieceBytes);
    errno = 0;
    const int got = ::gzread(file_, to, static_cast<unsigned>(size));
    int code = Z_OK;
    const char* text = ::gzerror(file_, &code);
    // A gzip file that stops in the middle gives its bytes and Z_BUF_ERROR.
    if (got < 0 || (static_cast<std::size_t>(got) < size && code != Z_OK && code != Z_STREAM_END)) {
      return error(Code::kInvalid, "{}: byte {}: cannot be read: {}", path_.string(),
                   at_ + std::max(got, 0), code == Z_ERRNO ? errno_text(errno) : std::string(text));
    }
    at_ += got;
    return static_cast<std::size_t>(got);
  }
  [[nodiscard]] std::int64_t at() const { return at_; }  // in decompressed bytes

 private:
  GzReader(std::filesystem::path path, gzFile file) : path_(std::move(path)), file_(file) {}
  std::filesystem::path path_;
  gzFile file_;
  std::int64_t at_ = 0;
};

Result<std::vector<std::int64_t>> read_header(GzReader& reader, const std::filesystem::path& path,
                                              int dimensions) {
  std::array<std::uint8_t, 4> word{};
  std::vector<std::int64_t> shape;
  std::int64_t bytes = 1;
  for (int i = 0; i <= dimensions; ++i) {
    const std::int64_t at = reader.at();
    SUREFOOT_ASSIGN(const std::size_t got, reader.read(word.data(), word.size()));
    if (got < word.size())
      return error(Code::kInvalid, "{}: byte {}: the header is cut short", path.string(),
                   reader.at());
    const std::int64_t value = std::int64_t{word[0]} << 24 | word[1] << 16 | word[2] << 8 | word[3];
    if (i == 0) {
      const std::int64_t magic = 0x0800 + dimensions;
      if (value != magic) {
        return error(Code::kInvalid,
                     "{}: byte 0: found magic {:#010x}, expected {:#010x} (IDX, unsigned bytes, {} "
                     "dimensions)",
                     path.string(), value, magic, dimensions);
      }
      continue;
    }
    if (value < 1 || value > kMaxExtent || bytes > kMaxBytes / value) {
      return error(Code::kInvalid,
                   "{}: byte {}: found extent {}, allowed are 1 to {} and at most {} bytes in all",
                   path.string(), at, value, kMaxExtent, kMaxBytes);
    }
    bytes *= value;
    shape.push_back(value);
  }
  return shape;
}

struct LabelledImages {
  IdxFile images;
  IdxFile labels;
};

Result<LabelledImages> read_pair(const std::filesystem::path& images,
                                 const std::filesystem::path& labels, std::int64_t classes) {
  LabelledImages pair;
  SUREFOOT_ASSIGN(pair.images, read_idx(images, 3));
  SUREFOOT_ASSIGN(pair.labels, read_idx(labels, 1));
  if (pair.images.shape[0] != pair.labels.shape[0]) {
    return error(Code::kInvalid, "{} has {} images, but {} has {} labels", images.string(),
                 pair.images.shape[0], labels.string(), pair.labels.shape[0]);
  }
  for (std::size_t i = 0; i < pair.labels.values.size(); ++i) {
    if (pair.labels.values[i] >= classes) {
      return error(Code::kInvalid,
                   "{}: byte {}: found label {}, allowed are those below classes {}",
                   labels.string(), 8 + i, pair.labels.values[i], classes);
    }
  }
  return pair;
}

class IdxDataset final : public Dataset {
 public:
  IdxDataset(LabelledImages train, LabelledImages eval, std::int64_t classes)
      : train_(std::move(train)), eval_(std::move(eval)), classes_(classes) {
    input_ = {.type = DType::kF32, .shape = {1, train_.images.shape[1], train_.images.shape[2]}};
    target_ = {.type = DType::kI64, .shape = {}};
  }
  std::int64_t size(Split split) const override {
    return static_cast<std::int64_t>(of(split).labels.values.size());
  }
  const ArraySpec& input() const override { return input_; }
  const ArraySpec& target() const override { return target_; }
  std::int64_t classes() const override { return classes_; }

  Status fill(Split split, std::int64_t index, std::span<std::byte> input,
              std::span<std::byte> target) const override {
    const LabelledImages& from = of(split);
    const auto pixels = static_cast<std::size_t>(input_.elements());
    const auto sample = static_cast<std::size_t>(index);
    SUREFOOT_CHECK(index >= 0 && sample < from.labels.values.size());
    SUREFOOT_CHECK(input.size() == pixels * sizeof(float) && target.size() == sizeof(std::int64_t));
    const std::uint8_t* pixel = from.images.values.data() + sample * pixels;
    for (std::size_t i = 0; i < pixels; ++i) {
      const float value = (static_cast<float>(pixel[i]) / 255.0f - 0.5f) / 0.5f;
      std::memcpy(input.data() + i * sizeof value, &value, sizeof value);
    }
    const std::int64_t label = from.labels.values[sample];
    std::memcpy(target.data(), &label, sizeof label);
    return {};
  }

 private:
  const LabelledImages& of(Split split) const { return split == Split::kTrain ? train_ : eval_; }
  LabelledImages train_;
  LabelledImages eval_;
  std::int64_t classes_;
  ArraySpec input_;
  ArraySpec target_;
};

}  // namespace

Result<IdxFile> read_idx(const std::filesystem::path& path, int dimensions) {
  SUREFOOT_ASSIGN(GzReader reader, GzReader::open(path));
  IdxFile file;
  SUREFOOT_ASSIGN(file.shape, read_header(reader, path, dimensions));
  std::size_t expected = 1;
  for (const std::int64_t extent : file.shape) expected *= static_cast<std::size_t>(extent);
  while (file.values.size() < expected) {
    const std::size_t have = file.values.size();
    const std::size_t want = std::min(kPieceBytes, expected - have);
    file.values.resize(have + want);
    SUREFOOT_ASSIGN(const std::size_t got, reader.read(file.values.data() + have, want));
    if (got < want) {
      return error(Code::kInvalid,
                   "{}: byte {}: the file is cut short, its header announces {} values",
                   path.string(), reader.at(), expected);
    }
  }
  std::uint8_t extra = 0;
  SUREFOOT_ASSIGN(const std::size_t more, reader.read(&extra, 1));
  if (more != 0) {
    return error(Code::kInvalid,
                 "{}: byte {}: more follows after the {} values its header announces",
                 path.string(), reader.at() - 1, expected);
  }
  return file;
}

Result<std::unique_ptr<Dataset>> open_idx(const IdxOptions& options) {
  if (options.eval_images.empty() != options.eval_labels.empty()) {
    return error(Code::kInvalid,
                 "data.eval_images and data.eval_labels: found one of the two, give both or none");
  }
  SUREFOOT_ASSIGN(LabelledImages train, read_pair(options.images, options.labels, options.classes));
  LabelledImages eval;
  if (!options.eval_images.empty()) {
    SUREFOOT_ASSIGN(eval, read_pair(options.eval_images, options.eval_labels, options.classes));
    if (eval.images.shape[1] != train.images.shape[1] ||
        eval.images.shape[2] != train.images.shape[2]) {
      return error(Code::kInvalid, "{} has images of {}x{}, but {} of {}x{}",
                   options.eval_images.string(), eval.images.shape[1], eval.images.shape[2],
                   options.images.string(), train.images.shape[1], train.images.shape[2]);
    }
  }
  return std::unique_ptr<Dataset>(
      std::make_unique<IdxDataset>(std::move(train), std::move(eval), options.classes));
}

}  // namespace surefoot
