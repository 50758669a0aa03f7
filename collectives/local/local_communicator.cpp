#include "collectives/local/local_communicator.h"

#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "collectives/missing_ranks.h"

namespace surefoot {
namespace {

struct Operation {
  std::byte* bytes = nullptr;  // of a send only read
  std::size_t size = 0;
  int peer = -1;
  bool done = false;
};

struct Key {
  int from, to, tag;
  friend auto operator<=>(const Key&, const Key&) = default;
};

// Operations of one key that have not met their counterpart; only one of the two is ever non-empty.
struct Unmatched {
  std::deque<Operation*> sends;
  std::deque<Operation*> receives;
};

constexpr int kAllReduceTag = kMaxTag;

}  // namespace

// One lock for the whole gang: this adapter is about behaviour, not speed.
class LocalGang::Shared {
 public:
  std::mutex mutex;
  std::condition_variable changed;
  std::map<Key, Unmatched> unmatched;
  std::vector<int> lost;
  std::vector<std::unique_ptr<Member>> members;

  // With the lock held.
  void start(const Key& key, Operation& operation, bool is_send) {
    Unmatched& waiting = unmatched[key];
    auto& own = is_send ? waiting.sends : waiting.receives;
    auto& other = is_send ? waiting.receives : waiting.sends;
    if (other.empty()) {
      own.push_back(&operation);
      return;
    }
    Operation& counterpart = *other.front();
    other.pop_front();
    SUREFOOT_CHECK(counterpart.size == operation.size);
    if (operation.size > 0) {
      std::memcpy(is_send ? counterpart.bytes : operation.bytes,
                  is_send ? operation.bytes : counterpart.bytes, operation.size);
    }
    counterpart.done = operation.done = true;
    changed.notify_all();
  }
};

class LocalGang::Member final : public Communicator {
 public:
  Member(Shared& shared, int rank, int size) : shared_(shared), rank_(rank), size_(size) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  Request send(std::span<const std::byte> bytes, int to, int tag) override {
    return start({rank_, to, tag}, {const_cast<std::byte*>(bytes.data()), bytes.size(), to}, true);
  }
  Request receive(std::span<std::byte> bytes, int from, int tag) override {
    return start({from, rank_, tag}, {bytes.data(), bytes.size(), from}, false);
  }

  bool test(std::span<const Request> requests) override {
    const std::lock_guard lock(shared_.mutex);
    return missing(requests).empty();
  }

  Status wait(std::span<const Request> requests, Time deadline, std::string_view what) override {
    std::unique_lock lock(shared_.mutex);
    std::vector<int> ranks;
    while (!(ranks = missing(requests)).empty()) {
      if (!shared_.lost.empty()) {
        // The caller gives up, and with it go the buffers of what it has started.
        forget();
        return lost_error(shared_.lost, what);
      }
      if (now() >= deadline) return deadline_error(ranks, what);
      shared_.changed.wait_until(lock, deadline);
    }
    for (const Request& request : requests) operations_.erase(request.id);
    return {};
  }

  // Rank 0 adds the others in order and sends the sum back.
  Status all_reduce_sum(std::span<float> values, Time deadline) override {
    constexpr std::string_view kWhat = "an all-reduce";
    if (rank_ != 0) {
      const std::array up{send(std::as_bytes(values), 0, kAllReduceTag)};
      SUREFOOT_TRY(wait(up, deadline, kWhat));
      const std::array down{receive(std::as_writable_bytes(values), 0, kAllReduceTag)};
      return wait(down, deadline, kWhat);
    }
    std::vector<float> theirs(values.size());
    for (int rank = 1; rank < size_; ++rank) {
      const std::array up{receive(std::as_writable_bytes(std::span(theirs)), rank, kAllReduceTag)};
      SUREFOOT_TRY(wait(up, deadline, kWhat));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
    }
    std::vector<Request> down;
    for (int rank = 1; rank < size_; ++rank)
      down.push_back(send(std::as_bytes(values), rank, kAllReduceTag));
    return wait(down, deadline, kWhat);
  }

  // With the lock held, by the gang: what this rank has not finished must not be read or written
  // any more.
  void forget() {
    for (auto& [key, waiting] : shared_.unmatched) {
      if (key.from == rank_) waiting.sends.clear();
      if (key.to == rank_) waiting.receives.clear();
    }
  }

 private:
  Request start(const Key& key, Operation operation, bool is_send) {
    SUREFOOT_CHECK(0 <= operation.peer && operation.peer < size_ && 0 <= key.tag &&
                   key.tag <= kMaxTag);
    const std::lock_guard lock(shared_.mutex);
    const std::uint64_t id = next_id_++;
    // References to elements of an unordered_map stay valid.
    shared_.start(key, operations_[id] = operation, is_send);
    return {id, operation.peer};
  }

  [[nodiscard]] std::vector<int> missing(std::span<const Request> requests) const {
    std::vector<int> ranks;
    for (const Request& request : requests) {
      const auto found = operations_.find(request.id);
      if (found != operations_.end() && !found->second.done) ranks.push_back(found->second.peer);
    }
    return ranks;
  }

  Shared& shared_;
  const int rank_;
  const int size_;
  std::uint64_t next_id_ = 1;
  std::unordered_map<std::uint64_t, Operation> operations_;
};

LocalGang::LocalGang(int ranks) : shared_(std::make_unique<Shared>()) {
  SUREFOOT_CHECK(ranks >= 1);
  for (int rank = 0; rank < ranks; ++rank)
    shared_->members.push_back(std::make_unique<Member>(*shared_, rank, ranks));
}

LocalGang::~LocalGang() = default;

Communicator& LocalGang::communicator(int rank) {
  return *shared_->members[static_cast<std::size_t>(rank)];
}

void LocalGang::lose(int rank) {
  const std::lock_guard lock(shared_->mutex);
  shared_->lost.push_back(rank);
  shared_->members[static_cast<std::size_t>(rank)]->forget();
  shared_->changed.notify_all();
}

}  // namespace surefoot
