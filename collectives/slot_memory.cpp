#include "collectives/slot_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>

#include "collectives/collectives.h"
#include "common/file.h"

namespace surefoot {
namespace {

// What a rank tells the others about its memory; both ends are the same build.
struct Offer {
  std::uint64_t mark = 0;
  std::int64_t bytes = 0;
  std::int32_t pid = 0;
  std::int32_t fd = -1;
};

constexpr std::int64_t kMarkBytes = 64;

}  // namespace

// A mapped memfd: slots, then the mark.
class SlotMemory::Mapping {
 public:
  Mapping(void* memory, std::int64_t bytes, Fd fd)
      : memory_(memory), bytes_(static_cast<std::size_t>(bytes)), fd_(std::move(fd)) {}
  ~Mapping() { munmap(memory_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] float* data() const { return static_cast<float*>(memory_); }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::uint64_t* mark() const {
    return reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(memory_) + bytes_ - kMarkBytes);
  }

  static Result<std::unique_ptr<Mapping>> create(std::int64_t bytes) {
    Fd fd(memfd_create("surefoot-gradients", MFD_CLOEXEC));
    // Taken now, so that a node without memory says so here and not by SIGBUS in a step.
    const int failed = fd ? posix_fallocate(fd.get(), 0, bytes) : errno;
    if (failed != 0)
      return error(Code::kNoSpace, "{} bytes of memory for gradients: {}", bytes,
                   errno_text(failed));
    return map(std::move(fd), bytes, PROT_READ | PROT_WRITE);
  }

  static Result<std::unique_ptr<Mapping>> open(const Offer& offer) {
    const std::string path = fmt::format("/proc/{}/fd/{}", offer.pid, offer.fd);
    Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!fd || fstat(fd.get(), &status) != 0 || status.st_size != offer.bytes)
      return error(Code::kNotFound, "no memory at {}", path);
    SUREFOOT_ASSIGN(auto mapping, map(std::move(fd), offer.bytes, PROT_READ));
    if (*mapping->mark() != offer.mark) return error(Code::kNotFound, "other memory at {}", path);
    mapping->fd_.reset();
    return mapping;
  }

 private:
  static Result<std::unique_ptr<Mapping>> map(Fd fd, std::int64_t bytes, int protection) {
    void* memory = mmap(nullptr, static_cast<std::size_t>(bytes), protection,
                        MAP_SHARED | MAP_POPULATE, fd.get(), 0);
    if (memory == MAP_FAILED)
      return error(Code::kNoSpace, "cannot map {} bytes for gradients: {}", bytes,
                   errno_text(errno));
    return std::make_unique<Mapping>(memory, bytes, std::move(fd));
  }

  void* memory_;
  std::size_t bytes_;
  Fd fd_;
};

SlotMemory::SlotMemory(int slots, std::int64_t elements_per_slot)
    : elements_per_slot_(elements_per_slot), private_(slots * elements_per_slot) {}

SlotMemory::SlotMemory(std::int64_t elements_per_slot)
    : elements_per_slot_(elements_per_slot), private_(0) {}

SlotMemory::~SlotMemory() = default;
SlotMemory::SlotMemory(SlotMemory&&) noexcept = default;

Result<SlotMemory> SlotMemory::connect(Communicator& communicator, const std::vector<Place>& places,
                                       int slots, std::int64_t elements_per_slot, Time deadline) {
  constexpr std::string_view kWhat = "memory shared on a node";
  const auto me = static_cast<std::size_t>(communicator.rank());
  const std::int64_t bytes =
      slots * elements_per_slot * static_cast<std::int64_t>(sizeof(float)) + kMarkBytes;
  auto own = Mapping::create(bytes);
  SUREFOOT_TRY(agree(communicator, own ? Status() : Status(own.error()), deadline, kWhat));
  SlotMemory memory(elements_per_slot);
  memory.shared_ = std::move(own).value();
  std::random_device random;
  *memory.shared_->mark() = static_cast<std::uint64_t>(random()) << 32 | random();

  const Offer mine{*memory.shared_->mark(), bytes, getpid(), memory.shared_->fd()};
  const std::string_view offer(reinterpret_cast<const char*>(&mine), sizeof mine);
  SUREFOOT_ASSIGN(const auto offers, all_gather(communicator, offer, deadline, kWhat));
  std::string seen(offers.size(), 'n');  // by rank: whether this one sees it
  memory.peers_.resize(offers.size());
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    if (rank == me || places[rank].node != places[me].node) continue;
    Offer theirs;
    std::memcpy(&theirs, offers[rank].data(), sizeof theirs);
    auto mapping = Mapping::open(theirs);
    if (!mapping) continue;
    memory.peers_[rank] = std::move(mapping).value();
    seen[rank] = 'y';
  }
  SUREFOOT_ASSIGN(const auto all_seen, all_gather(communicator, seen, deadline, kWhat));
  for (const std::string& theirs : all_seen) memory.seen_by_.push_back(theirs[me] == 'y');
  return memory;
}

std::span<float> SlotMemory::slot(int index) const {
  float* const first = shared_ ? shared_->data() : private_.data();
  return {first + index * elements_per_slot_, static_cast<std::size_t>(elements_per_slot_)};
}

bool SlotMemory::sees(int rank) const {
  return static_cast<std::size_t>(rank) < peers_.size() &&
         peers_[static_cast<std::size_t>(rank)] != nullptr;
}

bool SlotMemory::is_seen_by(int rank) const {
  return static_cast<std::size_t>(rank) < seen_by_.size() &&
         seen_by_[static_cast<std::size_t>(rank)];
}

const float* SlotMemory::slot_of(int rank, int index) const {
  return peers_[static_cast<std::size_t>(rank)]->data() + index * elements_per_slot_;
}

}  // namespace surefoot
