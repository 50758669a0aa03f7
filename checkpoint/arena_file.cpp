// Making, opening and re-heading the arena's file; its processes. The rest: arena.cpp.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "checkpoint/arena_internal.h"
#include "checkpoint/arena_space.h"

namespace surefoot {

using namespace arena_format;

namespace {

constexpr const char* kFileName = "arena";

Digest own_digest(const StaticHeader& header) {
  return digest(std::as_bytes(std::span(&header, 1)).first(offsetof(StaticHeader, digest)));
}

StaticHeader header_of(const ArenaSpec& spec) {
  StaticHeader header{};
  header.magic = kMagic;
  header.version = kArenaVersion;
  header.slots = kSlots;
  std::copy(spec.job_id.begin(), spec.job_id.end(), header.job_id.begin());
  header.layout_digest = spec.layout_digest;
  header.training_hash = spec.training_hash;
  header.state_bytes = spec.state_bytes;
  header.file_bytes = places(spec.state_bytes).file_bytes;
  header.digest = own_digest(header);
  return header;
}

// Empty: fine. The digest comes first: until it holds nothing else in the page means anything.
std::string fault_of(const StaticHeader& header, std::int64_t file_bytes) {
  if (header.magic != kMagic) return "it does not start as an arena does";
  if (header.digest != own_digest(header)) return "its header fails its digest";
  if (header.version != kArenaVersion)
    return fmt::format("it is of version {}, this program knows {}", header.version, kArenaVersion);
  const bool sane = header.slots == kSlots && header.job_id.back() == 0 && header.state_bytes > 0 &&
                    header.state_bytes <= kMaxStateBytes &&
                    header.file_bytes == places(header.state_bytes).file_bytes;
  if (!sane) return "its header makes no sense";
  if (file_bytes != header.file_bytes)
    return fmt::format("it has {} bytes instead of {}", file_bytes, header.file_bytes);
  return {};
}

Status make_folder(const std::filesystem::path& folder) {
  std::error_code fault;
  std::filesystem::create_directories(folder.parent_path(), fault);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return error(Code::kNoSpace,
                 "cannot make the folder {} for snapshots: {}; set checkpoint.arena to a folder "
                 "that can be written",
                 folder.string(), errno_text(errno));
  }
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid())
    return error(Code::kInvalid, "{} belongs to somebody else: remove it, or set checkpoint.arena",
                 folder.string());
  return {};
}

Result<std::byte*> map(int fd, std::int64_t bytes, const std::filesystem::path& path) {
  void* const base =
      ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return error(Code::kNoSpace, "cannot map {} ({} bytes): {}", path.string(), bytes,
                 errno_text(errno));
  }
  return static_cast<std::byte*>(base);
}

// The first touch of a page is thirty times slower than the second: paid here, not in the first
// steps.
void touch(std::byte* base, std::int64_t bytes) {
  if (::madvise(base, static_cast<std::size_t>(bytes), MADV_POPULATE_WRITE) == 0) return;
  for (std::int64_t at = 0; at < bytes; at += kPage)
    *static_cast<volatile std::byte*>(base + at) = std::byte{0};
}

Status take_space(int fd, std::int64_t bytes, const std::filesystem::path& path) {
  int fault = 0;
  do {
    fault = ::posix_fallocate(fd, 0, bytes);
  } while (fault == EINTR);
  if (fault == 0) return {};
  return error(Code::kNoSpace,
               "cannot take {:.1f} MiB for snapshots in {}: {}; make room, or set checkpoint.arena "
               "to a folder with more",
               static_cast<double>(bytes) / (1 << 20), path.parent_path().string(),
               errno_text(fault));
}

// Page 0, or, when a change of it was interrupted, its copy, which is then brought into page 0.
Result<StaticHeader> read_header(int fd, std::int64_t file_bytes,
                                 const std::filesystem::path& path) {
  StaticHeader header{};
  StaticHeader copy{};
  if (::pread(fd, &header, sizeof header, kHeaderAt) != sizeof header)
    return error(Code::kCorrupt, "{}: shorter than its header", path.string());
  const std::string fault = fault_of(header, file_bytes);
  if (fault.empty()) return header;
  const bool repaired = ::pread(fd, &copy, sizeof copy, kHeaderCopyAt) == sizeof copy &&
                        fault_of(copy, file_bytes).empty() &&
                        ::pwrite(fd, &copy, sizeof copy, kHeaderAt) == sizeof copy;
  if (repaired) return copy;
  return error(Code::kCorrupt, "{}: {}", path.string(), fault);
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::create(const std::filesystem::path& folder,
                                             const ArenaSpec& spec) {
  if (spec.state_bytes <= 0 || spec.state_bytes > kMaxStateBytes || spec.job_id.size() > 63)
    return error(Code::kInvalid, "no arena can hold a state of {} bytes", spec.state_bytes);
  SUREFOOT_TRY(make_folder(folder));
  const std::int64_t bytes = places(spec.state_bytes).file_bytes;
  const std::filesystem::path path = folder / kFileName;
  // Under another name until it is whole: a half-made arena is never opened.
  const std::filesystem::path fresh = folder / "arena.new";
  ::unlink(fresh.c_str());
  SUREFOOT_ASSIGN(const SpaceFacts facts, look_at_space(folder));
  SUREFOOT_TRY(check_space(bytes, folder.parent_path().string(), facts));
  Fd fd(::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) {
    return error(Code::kNoSpace, "cannot make {}: {}; set checkpoint.arena to another folder",
                 fresh.string(), errno_text(errno));
  }
  const auto finish = [&]() -> Status {
    SUREFOOT_TRY(take_space(fd.get(), bytes, path));
    SUREFOOT_ASSIGN(std::byte* const base, map(fd.get(), bytes, path));
    touch(base, bytes);
    const StaticHeader header = header_of(spec);
    std::memcpy(base, &header, sizeof header);
    ::munmap(base, static_cast<std::size_t>(bytes));
    if (::rename(fresh.c_str(), path.c_str()) != 0)
      return error(Code::kRetry, "cannot name {}: {}", path.string(), errno_text(errno));
    return {};
  };
  if (Status done = finish(); !done) {
    ::unlink(fresh.c_str());
    return std::move(done).error();
  }
  return open(folder);
}

Result<std::unique_ptr<Arena>> Arena::open(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kFileName;
  Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kInvalid;
    return error(code, "cannot open {}: {}", path.string(), errno_text(errno));
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid())
    return error(Code::kInvalid, "{} belongs to somebody else", path.string());
  SUREFOOT_ASSIGN(const StaticHeader header, read_header(fd.get(), info.st_size, path));
  SUREFOOT_ASSIGN(std::byte* const base, map(fd.get(), header.file_bytes, path));
  ArenaSpec spec{header.job_id.data(), header.layout_digest, header.training_hash,
                 header.state_bytes};
  return std::unique_ptr<Arena>(
      std::make_unique<MappedArena>(path, std::move(fd), base, std::move(spec)));
}

void MappedArena::set_training_hash(const Digest& hash) {
  spec_.training_hash = hash;
  const StaticHeader header = header_of(spec_);
  const StaticHeader none{};
  // Killed between any two of these stores, page 0 or its copy is whole. (A mapped file keeps what
  // a dead process has stored, in order.)
  std::memcpy(base_ + kHeaderCopyAt, &header, sizeof header);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(base_ + kHeaderAt, &header, sizeof header);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(base_ + kHeaderCopyAt, &none, sizeof none);
}

// --- processes ---

ProcessId registered_process(const RankLine& line) {
  ProcessId process;
  load_words(&process, &line.process, sizeof process);
  return process;
}

std::string reason_of(const RankLine& line) {
  std::array<char, sizeof line.reason> text;
  std::memcpy(text.data(), line.reason, text.size());
  return std::string(text.data(), ::strnlen(text.data(), text.size()));
}

Status register_writer(Arena& arena, Attempt attempt, int local_rank, int rank) {
  RankLine& line = arena.line(local_rank);
  const ProcessId self = self_process();
  line.attempt.store(attempt.value);
  line.rank.store(rank);
  set_phase(line, Phase::kStarting, Step{0});
  store_words(&line.process, &self, sizeof self);
  // Either this sees the newer attempt, or its service sees this line: both store first and look
  // then.
  std::atomic_ref<std::int32_t>(line.process.pid).store(self.pid, std::memory_order_seq_cst);
  const std::int64_t current = arena.gang().attempt;
  if (arena.has_ended(attempt))
    return error(Code::kStale, "attempt {} was ended on this node", attempt);
  if (current == attempt.value) return {};
  return error(Code::kStale, "attempt {} has taken over this node, this is attempt {}", current,
               attempt);
}

void set_exit(RankLine& line, int exit_code, std::string_view reason) {
  const std::size_t length = std::min(reason.size(), sizeof line.reason - 1);
  std::memset(line.reason, 0, sizeof line.reason);
  std::memcpy(line.reason, reason.data(), length);
  line.exit_code.store(exit_code, std::memory_order_release);
}

void set_phase(RankLine& line, Phase phase, Step step) {
  line.step.store(step.value, std::memory_order_relaxed);
  line.phase.store(phase, std::memory_order_relaxed);
  line.changed_ns.store(now().time_since_epoch().count(), std::memory_order_release);
}

Status end_earlier_writers(Arena& arena, Attempt attempt, Time deadline) {
  std::vector<ProcessId> earlier;
  for (int rank = 0; rank < kMaxLocalRanks; ++rank) {
    const RankLine& line = arena.line(rank);
    const ProcessId process = registered_process(line);
    const bool current = attempt.value != 0 && line.attempt.load() == attempt.value;
    if (process.pid > 1 && process.pid != ::getpid() && !current) earlier.push_back(process);
  }
  return end_processes(earlier, deadline);
}

std::filesystem::path arena_folder(const std::string& base, const std::string& job_id) {
  return std::filesystem::path(base.empty() ? "/dev/shm" : base) / ("surefoot-" + job_id);
}

}  // namespace surefoot
