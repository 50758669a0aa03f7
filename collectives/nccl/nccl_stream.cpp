#include "collectives/nccl/nccl_stream.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/collectives.h"
#include "collectives/nccl/kernels.h"
#include "collectives/nccl/nccl_watch.h"
#include "collectives/watchdog.h"

namespace surefoot {
namespace {

constexpr std::string_view kOpening = "the ranks' NCCL";
constexpr auto kNap = std::chrono::microseconds(50);
// How often a wait asks NCCL whether a peer is lost.
constexpr auto kLook = std::chrono::milliseconds(20);

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

Error cuda_error(std::string_view call, cudaError_t answer) {
  return error(Code::kRestart, "CUDA: {}: {} ({})", call, cudaGetErrorString(answer),
               cudaGetErrorName(answer));
}

Error nccl_error(std::string_view call, ncclResult_t answer, ncclComm_t communicator) {
  const char* const details = ncclGetLastError(communicator);
  return error(Code::kRestart, "NCCL: {}: {}{}{}", call, ncclGetErrorString(answer),
               details != nullptr && *details != '\0' ? ": " : "",
               details != nullptr ? details : "");
}

#define SUREFOOT_CUDA_TRY(call)                                                               \
  do {                                                                                        \
    if (const cudaError_t answer_ = (call); answer_ != cudaSuccess) {                         \
      return cuda_error(std::string_view(#call).substr(0, std::string_view(#call).find('(')), \
                        answer_);                                                             \
    }                                                                                         \
  } while (false)

ncclDataType_t type_of(NumberFormat format) {
  return format == NumberFormat::kBf16 ? ncclBfloat16 : ncclFloat32;
}

// Parts of equal size, one behind the other, are what ncclAllGather takes.
bool is_even(const Gather& gather) {
  const Gather::Part& first = gather.parts.front();
  for (std::size_t i = 0; i < gather.parts.size(); ++i) {
    const Gather::Part& part = gather.parts[i];
    const std::byte* const expected =
        static_cast<const std::byte*>(first.memory) + static_cast<std::int64_t>(i) * first.bytes;
    if (part.bytes != first.bytes || part.memory != expected) return false;
  }
  return true;
}

}  // namespace

class NcclStream::Implementation {
 public:
  Implementation(const Communicator& communicator, NcclOptions options)
      : options_(std::move(options)), rank_(communicator.rank()), ranks_(communicator.size()) {}

  Status take_device() {
    SUREFOOT_CUDA_TRY(cudaSetDevice(options_.device));
    SUREFOOT_CUDA_TRY(cuda::load_kernels());
    // Ahead of computation where both have work: what is sent late is waited for.
    int least = 0, greatest = 0;
    SUREFOOT_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    SUREFOOT_CUDA_TRY(cudaStreamCreateWithPriority(&exchange_, cudaStreamNonBlocking, greatest));
    SUREFOOT_CUDA_TRY(cudaEventCreateWithFlags(&ordered_, cudaEventDisableTiming));
    SUREFOOT_CUDA_TRY(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
    return {};
  }

  Result<std::string> make_id() {
    ncclUniqueId id;
    if (const ncclResult_t answer = ncclGetUniqueId(&id); answer != ncclSuccess)
      return nccl_error("ncclGetUniqueId", answer, nullptr);
    return std::string(id.internal, sizeof id.internal);
  }

  Status connect(const std::string& bytes, Time deadline) {
    ncclUniqueId id;
    SUREFOOT_CHECK(bytes.size() == sizeof id.internal);
    std::memcpy(id.internal, bytes.data(), bytes.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t begun = ncclCommInitRankConfig(&communicator_, ranks_, id, rank_, &config);
    SUREFOOT_TRY(follow_up("ncclCommInitRankConfig", begun, deadline));
    watch_ = std::make_unique<NcclWatch>(
        NcclWatch::Options{.look = [communicator = communicator_] { return look(communicator); },
                           .on_failure = options_.on_failure,
                           .interval = options_.watch_interval,
                           .call_timeout = options_.call_timeout});
    return {};
  }

  // Everything that ranks do together, once.
  Status warm_up(NcclStream& stream, Time deadline) {
    const auto bytes = static_cast<std::int64_t>(sizeof(float));
    SUREFOOT_ASSIGN(void* const taken,
                    stream.allocate(MemoryOf::kDevice, 2 * ranks_ * bytes, "NCCL's start"));
    auto* const sent = static_cast<float*>(taken);
    auto* const received = sent + ranks_;
    Exchange exchange;
    Gather even, uneven;
    for (int rank = 0; rank < ranks_; ++rank) {
      even.parts.push_back({received + rank, bytes});
      uneven.parts.push_back({received + rank, rank == 0 ? bytes : 0});
      if (rank == rank_) continue;
      exchange.sends.push_back({rank, sent + rank, bytes});
      exchange.receives.push_back({rank, received + rank, bytes});
    }
    stream.order(Queue::kComputation, Queue::kExchange);
    stream.enqueue(Queue::kExchange, exchange);
    stream.enqueue(Queue::kExchange, even);
    stream.enqueue(Queue::kExchange, uneven);
    stream.enqueue(Queue::kExchange, AllReduce{sent, ranks_, NumberFormat::kFp32});
    stream.enqueue(Queue::kExchange, AllReduce{sent, ranks_, NumberFormat::kBf16});
    return stream.wait(deadline, kOpening);
  }

  Status close(Time deadline) {
    watch_.reset();
    if (communicator_ != nullptr) {
      SUREFOOT_TRY(follow_up("ncclCommFinalize", ncclCommFinalize(communicator_), deadline));
      if (const ncclResult_t answer = ncclCommDestroy(communicator_); answer != ncclSuccess)
        return nccl_error("ncclCommDestroy", answer, nullptr);
      communicator_ = nullptr;
    }
    for (void* memory : device_memory_) SUREFOOT_CUDA_TRY(cudaFree(memory));
    for (void* memory : host_memory_) SUREFOOT_CUDA_TRY(cudaFreeHost(memory));
    SUREFOOT_CUDA_TRY(cudaEventDestroy(done_));
    SUREFOOT_CUDA_TRY(cudaEventDestroy(ordered_));
    SUREFOOT_CUDA_TRY(cudaStreamDestroy(exchange_));
    return {};
  }

  Result<void*> allocate(MemoryOf memory, std::int64_t bytes, std::string_view what) {
    SUREFOOT_CUDA_TRY(cudaSetDevice(options_.device));
    void* taken = nullptr;
    const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
    const bool is_device = memory == MemoryOf::kDevice;
    const cudaError_t answer =
        is_device ? cudaMalloc(&taken, size) : cudaHostAlloc(&taken, size, cudaHostAllocDefault);
    if (answer == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // it is told here, and not by the next launch
      if (!is_device)
        return error(Code::kNoSpace, "{} needs {} bytes of pinned memory: {}", what, bytes,
                     cudaGetErrorString(answer));
      std::size_t free = 0, total = 0;
      SUREFOOT_CUDA_TRY(cudaMemGetInfo(&free, &total));
      return error(Code::kNoSpace, "{} needs {} bytes of the memory of GPU {}, {} of {} are free",
                   what, bytes, options_.device, free, total);
    }
    if (answer != cudaSuccess)
      return cuda_error(is_device ? "cudaMalloc" : "cudaHostAlloc", answer);
    if (!is_device) {
      host_memory_.push_back(taken);
      std::memset(taken, 0, size);
      return taken;
    }
    device_memory_.push_back(taken);
    SUREFOOT_CUDA_TRY(cudaMemsetAsync(taken, 0, size, exchange_));
    SUREFOOT_TRY(order_streams(exchange_, options_.computation));
    return taken;
  }

  Result<int> prepare(const Tree& tree) {
    SUREFOOT_CHECK(tree.depth <= Tree::kMaxDepth && !tree.roots.empty() &&
                   tree.roots.size() == tree.additions_after.size());
    cuda::DeviceTree copy;
    SUREFOOT_ASSIGN(void* const roots, copied(std::as_bytes(std::span(tree.roots))));
    SUREFOOT_ASSIGN(void* const additions, copied(std::as_bytes(std::span(tree.additions_after))));
    copy.roots = static_cast<const kernel::Root*>(roots);
    copy.additions_after = static_cast<const std::int32_t*>(additions);
    copy.count = static_cast<int>(tree.roots.size());
    copy.depth = tree.depth;
    copy.format = tree.format;
    trees_.push_back(copy);
    return static_cast<int>(trees_.size()) - 1;
  }

  void enqueue(Queue queue, const Work& work) {
    SUREFOOT_CHECK(queue == Queue::kExchange || std::holds_alternative<Clear>(work) ||
                   std::holds_alternative<AddUp>(work));
    keep_first_error([&] { return perform(stream_of(queue), work); });
  }

  void order(Queue first, Queue then) {
    keep_first_error([&]() -> Status {
      SUREFOOT_CUDA_TRY(cudaSetDevice(options_.device));
      return order_streams(stream_of(first), stream_of(then));
    });
  }

  Status wait(Time deadline, std::string_view what) {
    if (!failed_) return failed_;
    SUREFOOT_CUDA_TRY(cudaSetDevice(options_.device));
    SUREFOOT_CUDA_TRY(cudaEventRecord(done_, exchange_));
    Time next_look = now() + kLook;
    while (true) {
      const cudaError_t answer = cudaEventQuery(done_);
      if (answer == cudaSuccess) return {};
      if (answer != cudaErrorNotReady) {
        failed_ = error(Code::kRestart, "{}, while waiting for {}",
                        cuda_error("cudaEventQuery", answer).message, what);
        return failed_;
      }
      const Time at = now();
      if (at >= next_look) {
        next_look = at + kLook;
        const NcclWatch::Call call(*watch_, "ncclCommGetAsyncError");
        if (const std::string reason = look(communicator_); !reason.empty()) {
          failed_ = error(Code::kRestart, "{}, while waiting for {}", reason, what);
          return failed_;
        }
      }
      if (at >= deadline)
        return error(Code::kRestart, "GPU {} of rank {} is not done in time, while waiting for {}",
                     options_.device, rank_, what);
      std::this_thread::sleep_for(std::min<Duration>(kNap, deadline - at));
    }
  }

  [[nodiscard]] const NcclOptions& options() const { return options_; }

 private:
  // What NCCL says of a dead peer; empty: nothing.
  static std::string look(ncclComm_t communicator) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t answer = ncclCommGetAsyncError(communicator, &state);
    if (answer != ncclSuccess)
      return nccl_error("ncclCommGetAsyncError", answer, communicator).message;
    if (state == ncclSuccess || state == ncclInProgress) return {};
    return nccl_error("the communicator", state, communicator).message;
  }

  [[nodiscard]] cudaStream_t stream_of(Queue queue) const {
    return queue == Queue::kExchange ? exchange_ : options_.computation;
  }

  template <class Action>
  void keep_first_error(const Action& action) {
    if (failed_) failed_ = action();
  }

  Status order_streams(cudaStream_t first, cudaStream_t then) {
    // A wait holds on to the record before it, so one event will do.
    SUREFOOT_CUDA_TRY(cudaEventRecord(ordered_, first));
    SUREFOOT_CUDA_TRY(cudaStreamWaitEvent(then, ordered_, 0));
    return {};
  }

  Result<void*> copied(std::span<const std::byte> bytes) {
    SUREFOOT_ASSIGN(void* const memory,
                    allocate(MemoryOf::kDevice, static_cast<std::int64_t>(bytes.size()),
                             "the plan of the reduction"));
    // Pageable memory is read before the call returns.
    SUREFOOT_CUDA_TRY(
        cudaMemcpyAsync(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, exchange_));
    return memory;
  }

  // A call that goes on by itself: until it has ended, its stream must not be given anything else.
  Status follow_up(const char* name, ncclResult_t answer, Time deadline) {
    while (answer == ncclInProgress) {
      ncclResult_t state = ncclSuccess;
      if (const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
          asked != ncclSuccess)
        return nccl_error("ncclCommGetAsyncError", asked, communicator_);
      answer = state;
      if (answer != ncclInProgress) break;
      if (now() >= deadline)
        return error(Code::kRestart, "NCCL: {} is not done in time on rank {}", name, rank_);
      std::this_thread::sleep_for(kNap / 10);
    }
    if (answer != ncclSuccess) return nccl_error(name, answer, communicator_);
    return {};
  }

  template <class Calls>
  Status grouped(const char* name, const Calls& calls) {
    const NcclWatch::Call call(*watch_, name);
    if (const ncclResult_t answer = ncclGroupStart(); answer != ncclSuccess)
      return nccl_error("ncclGroupStart", answer, communicator_);
    const ncclResult_t first_error = calls();
    // Closed in any case: an open group would swallow all that comes.
    const ncclResult_t ended = ncclGroupEnd();
    if (first_error != ncclSuccess && first_error != ncclInProgress)
      return nccl_error(name, first_error, communicator_);
    return follow_up(name, ended, now() + options_.call_timeout);
  }

  Status exchange(const Exchange& work) {
    if (work.sends.empty() && work.receives.empty()) return {};
    return grouped("ncclSend and ncclRecv", [&] {
      for (const Message& message : work.receives) {
        const ncclResult_t answer =
            ncclRecv(message.memory, static_cast<std::size_t>(message.bytes), ncclUint8,
                     message.peer, communicator_, exchange_);
        if (answer != ncclSuccess && answer != ncclInProgress) return answer;
      }
      for (const Message& message : work.sends) {
        const ncclResult_t answer =
            ncclSend(message.memory, static_cast<std::size_t>(message.bytes), ncclUint8,
                     message.peer, communicator_, exchange_);
        if (answer != ncclSuccess && answer != ncclInProgress) return answer;
      }
      return ncclSuccess;
    });
  }

  Status gather(const Gather& work) {
    SUREFOOT_CHECK(static_cast<int>(work.parts.size()) == ranks_);
    if (ranks_ == 1) return {};
    const Gather::Part& own = work.parts[static_cast<std::size_t>(rank_)];
    if (is_even(work)) {
      if (own.bytes == 0) return {};
      return grouped("ncclAllGather", [&] {
        return ncclAllGather(own.memory, work.parts.front().memory,
                             static_cast<std::size_t>(own.bytes), ncclUint8, communicator_,
                             exchange_);
      });
    }
    return grouped("ncclBroadcast", [&] {
      for (std::size_t owner = 0; owner < work.parts.size(); ++owner) {
        const Gather::Part& part = work.parts[owner];
        if (part.bytes == 0) continue;
        const ncclResult_t answer =
            ncclBroadcast(part.memory, part.memory, static_cast<std::size_t>(part.bytes), ncclUint8,
                          static_cast<int>(owner), communicator_, exchange_);
        if (answer != ncclSuccess && answer != ncclInProgress) return answer;
      }
      return ncclSuccess;
    });
  }

  Status all_reduce(const AllReduce& work) {
    if (ranks_ == 1 || work.elements == 0) return {};
    return grouped("ncclAllReduce", [&] {
      return ncclAllReduce(work.values, work.values, static_cast<std::size_t>(work.elements),
                           type_of(work.format), ncclSum, communicator_, exchange_);
    });
  }

  Status perform(cudaStream_t stream, const Work& work) {
    SUREFOOT_CUDA_TRY(cudaSetDevice(options_.device));
    const auto launched = [](const char* name, cudaError_t answer) -> Status {
      if (answer != cudaSuccess) return cuda_error(name, answer);
      return {};
    };
    return std::visit(
        Overloaded{
            [&](const Clear& clear) {
              return launched(
                  "cudaMemsetAsync",
                  cudaMemsetAsync(clear.values, 0,
                                  static_cast<std::size_t>(clear.elements) * sizeof(float),
                                  stream));
            },
            [&](const AddUp& sum) { return launched("add_up", cuda::add_up(sum, stream)); },
            [&](const Pack& pack) { return launched("pack", cuda::pack(pack, stream)); },
            [&](const Unpack& unpack) { return launched("unpack", cuda::unpack(unpack, stream)); },
            [&](const FinishTree& finish) {
              return launched(
                  "finish_tree",
                  cuda::finish_tree(finish, trees_[static_cast<std::size_t>(finish.tree)], stream));
            },
            [&](const CopyToHost& copy) {
              return launched(
                  "cudaMemcpyAsync",
                  cudaMemcpyAsync(copy.to, copy.from, static_cast<std::size_t>(copy.bytes),
                                  cudaMemcpyDeviceToHost, stream));
            },
            [&](const Exchange& messages) { return exchange(messages); },
            [&](const Gather& parts) { return gather(parts); },
            [&](const AllReduce& sum) { return all_reduce(sum); },
        },
        work);
  }

  const NcclOptions options_;
  const int rank_;
  const int ranks_;
  cudaStream_t exchange_ = nullptr;
  cudaEvent_t ordered_ = nullptr;
  cudaEvent_t done_ = nullptr;
  ncclComm_t communicator_ = nullptr;
  std::vector<void*> device_memory_;
  std::vector<void*> host_memory_;
  std::vector<cuda::DeviceTree> trees_;
  Status failed_;  // the first error of enqueued work
  std::unique_ptr<NcclWatch> watch_;
};

NcclStream::NcclStream(std::unique_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}

NcclStream::~NcclStream() = default;

Result<std::unique_ptr<NcclStream>> NcclStream::open(Communicator& communicator,
                                                     const NcclOptions& options, Time deadline) {
  // Making CUDA's context can take for ever, and nothing can interrupt it.
  const Watchdog watchdog("CUDA's or NCCL's start", deadline + options.call_timeout,
                          options.exit_code_when_stuck);
  auto made = std::make_unique<Implementation>(communicator, options);
  SUREFOOT_TRY(agree(communicator, made->take_device(), deadline, kOpening));
  Result<std::string> id = std::string();
  if (communicator.rank() == 0) id = made->make_id();
  SUREFOOT_TRY(agree(communicator, id ? Status() : Status(id.error()), deadline, kOpening));
  SUREFOOT_ASSIGN(const std::string common, broadcast(communicator, *id, 0, deadline, kOpening));
  SUREFOOT_TRY(agree(communicator, made->connect(common, deadline), deadline, kOpening));
  Implementation& implementation = *made;
  auto stream = std::unique_ptr<NcclStream>(new NcclStream(std::move(made)));
  SUREFOOT_TRY(agree(communicator, implementation.warm_up(*stream, deadline), deadline, kOpening));
  return stream;
}

Status NcclStream::close(Time deadline) {
  const Watchdog watchdog("NCCL's or CUDA's end", deadline,
                          implementation_->options().exit_code_when_stuck);
  SUREFOOT_TRY(implementation_->wait(deadline, "the end of the device's work"));
  return implementation_->close(deadline);
}

Result<void*> NcclStream::allocate(MemoryOf memory, std::int64_t bytes, std::string_view what) {
  return implementation_->allocate(memory, bytes, what);
}
Result<int> NcclStream::prepare(const Tree& tree) {
  return implementation_->prepare(tree);
}
void NcclStream::enqueue(Queue queue, const Work& work) {
  implementation_->enqueue(queue, work);
}
void NcclStream::order(Queue first, Queue then) {
  implementation_->order(first, then);
}
Status NcclStream::wait(Time deadline, std::string_view what) {
  return implementation_->wait(deadline, what);
}

}  // namespace surefoot
