#include "collectives/mpi/mpi_communicator.h"

#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "collectives/collectives.h"
#include "collectives/missing_ranks.h"
#include "collectives/watchdog.h"

namespace surefoot {
namespace {

// The helpers of collectives.h take the first reserved tags.
constexpr int kArrivedTag = kMaxTag;
constexpr std::string_view kAllReduce = "an all-reduce";

std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

// Between two looks at something that is not there yet. A yield costs a microsecond on an idle core
// and lets another rank run. On a core with work for everyone a yield waits for a whole round of
// the scheduler, while who has slept is let in at once: so yields end by time, not by number. A nap
// costs some 60 microseconds, which matters to nobody who has waited longer already.
class Pause {
 public:
  void operator()() {
    if (++looks_ < kSpins) return;
    if (looks_ == kSpins) begin_ = now();
    if (now() - begin_ < kYieldFor) {
      sched_yield();
    } else {
      usleep(kNapMicroseconds);
    }
  }

 private:
  static constexpr int kSpins = 20;
  static constexpr Duration kYieldFor = std::chrono::microseconds(200);
  static constexpr unsigned kNapMicroseconds = 50;
  int looks_ = 0;
  Time begin_;
};

}  // namespace

class MpiCommunicator::Implementation {
 public:
  explicit Implementation(const MpiOptions& options) : options_(options) {}

  Status open() {
    SUREFOOT_TRY(checked(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
                         "MPI_Comm_set_errhandler"));
    SUREFOOT_TRY(checked(MPI_Comm_dup(MPI_COMM_WORLD, &communicator_), "MPI_Comm_dup"));
    SUREFOOT_TRY(checked(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN),
                         "MPI_Comm_set_errhandler"));
    SUREFOOT_TRY(checked(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank"));
    SUREFOOT_TRY(checked(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size"));
    const int* largest_tag = nullptr;
    int found = 0;
    SUREFOOT_TRY(checked(MPI_Comm_get_attr(communicator_, MPI_TAG_UB, &largest_tag, &found),
                         "MPI_Comm_get_attr"));
    if (found == 0 || *largest_tag < kMaxTag)
      return error(Code::kInvalid, "this MPI allows no tags up to {}", kMaxTag);
    return {};
  }

  Request start(std::byte* bytes, std::size_t size, int peer, int tag, bool is_send) {
    SUREFOOT_CHECK(0 <= peer && peer < size_ && 0 <= tag && tag <= kMaxTag);
    const auto limit = static_cast<std::size_t>(options_.max_message_bytes);
    int first = -1;
    int previous = -1;
    std::size_t done = 0;
    do {
      const std::size_t part = std::min(limit, size - done);
      const int entry = start_part(bytes + done, part, peer, tag, is_send);
      (previous < 0 ? first : operations_[static_cast<std::size_t>(previous)].next_part) = entry;
      previous = entry;
      done += part;
    } while (done < size);
    const std::uint64_t generation = operations_[static_cast<std::size_t>(first)].generation;
    return {generation << 32 | static_cast<std::uint32_t>(first + 1), peer};
  }

  // Complete, or forgotten because it was waited for.
  bool is_complete(const Request& request) {
    for (int part = first_part(request); part >= 0;
         part = operations_[static_cast<std::size_t>(part)].next_part) {
      if (!is_part_complete(operations_[static_cast<std::size_t>(part)])) return false;
    }
    return true;
  }

  void forget(const Request& request) {
    for (int part = first_part(request); part >= 0;) {
      Operation& operation = operations_[static_cast<std::size_t>(part)];
      free_.push_back(part);
      ++operation.generation;
      part = std::exchange(operation.next_part, -1);
    }
  }

  // Lets the library work when there is nothing particular to look at.
  void progress() {
    int found = 0;
    note(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_, &found, MPI_STATUS_IGNORE), -1);
  }

  Status wait(std::span<const Request> requests, Time deadline, std::string_view what) {
    for (const Request& request : requests) {
      Pause pause;
      while (!is_complete(request)) {
        if (failed_) return error(Code::kRestart, "{}, while waiting for {}", failure_, what);
        if (now() >= deadline) return deadline_error(missing(requests), what);
        pause();
      }
    }
    for (const Request& request : requests) forget(request);
    return {};
  }

  Status all_reduce_sum(std::span<float> values, Time deadline) {
    // The collective itself cannot tell who is missing; empty messages beside it can.
    std::vector<Request> arrivals;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      arrivals.push_back(start(nullptr, 0, rank, kArrivedTag, false));
      arrivals.push_back(start(nullptr, 0, rank, kArrivedTag, true));
    }
    constexpr std::size_t kLargestCount = std::size_t{1} << 30;
    for (std::size_t done = 0; done < values.size();) {
      const std::size_t count = std::min(kLargestCount, values.size() - done);
      MPI_Request request = MPI_REQUEST_NULL;
      note(MPI_Iallreduce(MPI_IN_PLACE, values.data() + done, static_cast<int>(count), MPI_FLOAT,
                          MPI_SUM, communicator_, &request),
           -1);
      Pause pause;
      for (int complete = 0; complete == 0;) {
        note(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), -1);
        if (failed_) return error(Code::kRestart, "{}, while waiting for {}", failure_, kAllReduce);
        if (complete != 0) break;
        if (now() >= deadline) {
          const std::vector<int> ranks = missing(arrivals);
          if (!ranks.empty()) return deadline_error(ranks, kAllReduce);
          return error(Code::kRestart,
                       "an all-reduce that all ranks had begun was not complete in time");
        }
        pause();
      }
      done += count;
    }
    return wait(arrivals, deadline, kAllReduce);
  }

  Status close() {
    SUREFOOT_TRY(checked(MPI_Comm_free(&communicator_), "MPI_Comm_free"));
    return checked(MPI_Finalize(), "MPI_Finalize");
  }

  [[nodiscard]] const MpiOptions& options() const { return options_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  static Status checked(int code, std::string_view call) {
    if (code == MPI_SUCCESS) return {};
    return error(Code::kRestart, "{}: {}", call, mpi_text(code));
  }

 private:
  struct Operation {
    MPI_Request request = MPI_REQUEST_NULL;
    int peer = -1;
    int size = 0;
    bool is_send = false;
    int next_part = -1;
    std::uint32_t generation = 1;
  };

  int start_part(std::byte* bytes, std::size_t size, int peer, int tag, bool is_send) {
    if (free_.empty()) {
      free_.push_back(static_cast<int>(operations_.size()));
      operations_.emplace_back();
    }
    const int entry = free_.back();
    free_.pop_back();
    Operation& operation = operations_[static_cast<std::size_t>(entry)];
    operation.peer = peer;
    operation.size = static_cast<int>(size);
    operation.is_send = is_send;
    note(is_send ? MPI_Isend(bytes, operation.size, MPI_BYTE, peer, tag, communicator_,
                             &operation.request)
                 : MPI_Irecv(bytes, operation.size, MPI_BYTE, peer, tag, communicator_,
                             &operation.request),
         peer);
    return entry;
  }

  int first_part(const Request& request) const {
    if (request.id == 0) return -1;
    const auto entry = static_cast<std::size_t>(request.id & 0xffffffffU) - 1;
    SUREFOOT_CHECK(entry < operations_.size());
    return operations_[entry].generation == request.id >> 32 ? static_cast<int>(entry) : -1;
  }

  bool is_part_complete(Operation& operation) {
    if (failed_) return false;
    if (operation.request == MPI_REQUEST_NULL) return true;
    int complete = 0;
    MPI_Status status;
    note(MPI_Test(&operation.request, &complete, &status), operation.peer);
    if (failed_ || complete == 0) return false;
    if (!operation.is_send) {
      int received = 0;
      MPI_Get_count(&status, MPI_BYTE, &received);
      SUREFOOT_CHECK(received == operation.size);
    }
    return true;
  }

  std::vector<int> missing(std::span<const Request> requests) {
    std::vector<int> ranks;
    for (const Request& request : requests) {
      if (!is_complete(request)) ranks.push_back(request.peer);
    }
    return ranks;
  }

  // The first error stands: after it nothing of this communicator is to be trusted.
  void note(int code, int peer) {
    if (code == MPI_SUCCESS || failed_) return;
    failed_ = true;
    failure_ = peer < 0 ? mpi_text(code) : fmt::format("{} (rank {})", mpi_text(code), peer);
  }

  const MpiOptions options_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = -1;
  int size_ = 0;
  std::vector<Operation> operations_;  // never shrinks; entries are used again
  std::vector<int> free_;
  bool failed_ = false;
  std::string failure_;
};

Result<std::unique_ptr<MpiCommunicator>> MpiCommunicator::open(Time deadline,
                                                               const MpiOptions& options) {
  auto implementation = std::make_unique<Implementation>(options);
  {
    const Watchdog watchdog("MPI_Init_thread", deadline, options.exit_code_when_stuck);
    int provided = 0;
    SUREFOOT_TRY(Implementation::checked(
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread"));
    if (provided < MPI_THREAD_FUNNELED)
      return error(Code::kInvalid, "this MPI does not allow other threads in the process");
    SUREFOOT_TRY(implementation->open());
  }
  return std::unique_ptr<MpiCommunicator>(new MpiCommunicator(std::move(implementation)));
}

MpiCommunicator::MpiCommunicator(std::unique_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}

MpiCommunicator::~MpiCommunicator() = default;

Status MpiCommunicator::close(Time deadline) {
  SUREFOOT_TRY(all_gather(*this, {}, deadline, "leaving together"));
  const Watchdog watchdog("MPI_Finalize", deadline,
                          implementation_->options().exit_code_when_stuck);
  return implementation_->close();
}

int MpiCommunicator::rank() const {
  return implementation_->rank();
}
int MpiCommunicator::size() const {
  return implementation_->size();
}

Request MpiCommunicator::send(std::span<const std::byte> bytes, int to, int tag) {
  return implementation_->start(const_cast<std::byte*>(bytes.data()), bytes.size(), to, tag, true);
}

Request MpiCommunicator::receive(std::span<std::byte> bytes, int from, int tag) {
  return implementation_->start(bytes.data(), bytes.size(), from, tag, false);
}

bool MpiCommunicator::test(std::span<const Request> requests) {
  if (requests.empty()) implementation_->progress();
  return std::all_of(requests.begin(), requests.end(),
                     [&](const Request& request) { return implementation_->is_complete(request); });
}

Status MpiCommunicator::wait(std::span<const Request> requests, Time deadline,
                             std::string_view what) {
  return implementation_->wait(requests, deadline, what);
}

Status MpiCommunicator::all_reduce_sum(std::span<float> values, Time deadline) {
  return implementation_->all_reduce_sum(values, deadline);
}

}  // namespace surefoot
