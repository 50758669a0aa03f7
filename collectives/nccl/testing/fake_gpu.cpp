#include "collectives/nccl/testing/fake_gpu.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/nccl/kernels.h"
#include "common/check.h"

namespace surefoot::testing::fake_gpu {
namespace {

std::atomic<ncclResult_t> communicator_state = ncclSuccess;
std::atomic<bool> completes = true;
std::atomic<bool> starts = true;
std::atomic<cudaError_t> next_launch = cudaSuccess;
constexpr std::size_t kMemory = std::size_t{1} << 40;
std::atomic<std::size_t> memory_limit = kMemory;

class Flag {
 public:
  void raise() {
    {
      const std::lock_guard lock(mutex_);
      is_raised_ = true;
    }
    raised_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    raised_.wait(lock, [this] { return is_raised_; });
  }
  bool is_raised() {
    const std::lock_guard lock(mutex_);
    return is_raised_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable raised_;
  bool is_raised_ = false;
};

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    push({});
    thread_.join();
  }
  // An empty one ends the stream.
  void push(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      works_.push_back(std::move(work));
    }
    changed_.notify_all();
  }

 private:
  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !works_.empty(); });
      const std::function<void()> work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      if (!work) return;
      work();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> works_;
  std::thread thread_;  // last: it uses the others
};

Stream& of(cudaStream_t stream) {
  SUREFOOT_CHECK(stream != nullptr);  // the tests have one of their own
  return *reinterpret_cast<Stream*>(stream);
}

struct Event {
  std::shared_ptr<Flag> last;  // of the newest record
};
Event& of(cudaEvent_t event) {
  return *reinterpret_cast<Event*>(event);
}

cudaError_t take(void** memory, std::size_t bytes) {
  if (bytes > memory_limit) return cudaErrorMemoryAllocation;
  constexpr std::size_t kAlignment = 256;
  *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  return cudaSuccess;
}

// What ranks of one communicator send each other.
class Mail {
 public:
  void put(int from, int to, const void* bytes, std::size_t size) {
    const auto* const first = static_cast<const std::byte*>(bytes);
    {
      const std::lock_guard lock(mutex_);
      letters_[{from, to}].emplace_back(first, first + size);
    }
    changed_.notify_all();
  }
  void take(int from, int to, void* bytes, std::size_t size) {
    std::unique_lock lock(mutex_);
    auto& waiting = letters_[{from, to}];
    changed_.wait(lock, [&] { return !waiting.empty(); });
    SUREFOOT_CHECK(waiting.front().size() == size);
    std::memcpy(bytes, waiting.front().data(), size);
    waiting.pop_front();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> letters_;
};

Mail& mail_of(const std::string& id) {
  static std::mutex mutex;
  static std::map<std::string, Mail> all;
  const std::lock_guard lock(mutex);
  return all[id];
}

// Host memory that CUDA knows.
class Registered {
 public:
  template <class Change>
  auto change(const Change& change) {
    const std::lock_guard lock(mutex_);
    return change(all_);
  }

 private:
  std::mutex mutex_;
  std::set<const void*> all_;
};
Registered registered;

std::size_t size_of(ncclDataType_t type) {
  return type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1;
}

float number(const std::byte* values, std::size_t index, ncclDataType_t type) {
  if (type == ncclFloat32) return reinterpret_cast<const float*>(values)[index];
  return kernel::from_bf16(reinterpret_cast<const kernel::Bf16*>(values)[index]);
}

}  // namespace

void fail_communicators(ncclResult_t state) {
  communicator_state = state;
}
void never_complete() {
  completes = false;
}
void hang_at_start() {
  starts = false;
}
void refuse_next_launch(cudaError_t answer) {
  next_launch = answer;
}
void limit_memory(std::size_t bytes) {
  memory_limit = bytes;
}
void reset() {
  communicator_state = ncclSuccess;
  completes = true;
  starts = true;
  next_launch = cudaSuccess;
  memory_limit = kMemory;
}
cudaError_t launch(cudaStream_t stream, std::function<void()> work) {
  const cudaError_t answer = next_launch.exchange(cudaSuccess);
  if (answer == cudaSuccess) of(stream).push(std::move(work));
  return answer;
}

}  // namespace surefoot::testing::fake_gpu

using namespace surefoot::testing::fake_gpu;  // NOLINT: its functions are declared by the vendors

struct ncclComm {
  int rank = 0;
  int ranks = 1;
  Mail* mail = nullptr;
  std::atomic<bool> is_in_call = false;
  int looks_to_completion = 0;
  cudaStream_t stream = nullptr;
  std::vector<std::function<void()>>
      begun;  // of a group in progress: first all sends, then the rest

  void broadcast(const void* bytes, std::size_t size) {
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer != rank) mail->put(rank, peer, bytes, size);
    }
  }
};

namespace {

constexpr int kLooks = 3;

// One thread at a time.
class InCall {
 public:
  explicit InCall(ncclComm& communicator) : communicator_(communicator) {
    SUREFOOT_CHECK(!communicator_.is_in_call.exchange(true));
  }
  ~InCall() { communicator_.is_in_call = false; }

 private:
  ncclComm& communicator_;
};

struct Group {
  int depth = 0;
  ncclComm* communicator = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<std::function<void()>> sends;
  std::vector<std::function<void()>> receives;
};
thread_local Group group;

ncclResult_t add(ncclComm* communicator, cudaStream_t stream, std::function<void()> send,
                 std::function<void()> receive) {
  SUREFOOT_CHECK(group.depth == 1);
  group.communicator = communicator;
  group.stream = stream;
  group.sends.push_back(std::move(send));
  group.receives.push_back(std::move(receive));
  return ncclSuccess;
}

}  // namespace

// --- CUDA's runtime

cudaError_t cudaGetDeviceCount(int* count) {
  starts.wait(false);
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "a fake GPU");
  properties->multiProcessorCount = 1;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new Stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete &of(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto done = std::make_shared<Flag>();
  of(stream).push([done] { done->raise(); });
  done->wait();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto flag = of(event).last = std::make_shared<Flag>();
  of(stream).push([flag] { flag->raise(); });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto flag = of(event).last) of(stream).push([flag] { flag->wait(); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto flag = of(event).last;
  return !flag || flag->is_raised() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  const cudaError_t answer = take(memory, bytes);
  if (answer == cudaSuccess) std::memset(*memory, 0xA5, bytes);
  return answer;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return take(memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, std::size_t, unsigned) {
  return registered.change([&](auto& all) {
    return all.insert(memory).second ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
  });
}
cudaError_t cudaHostUnregister(void* memory) {
  return registered.change([&](auto& all) {
    return all.erase(memory) == 1 ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
  });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  attributes->type = registered.change([&](auto& all) {
    return all.contains(memory) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  });
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = memory_limit;
  *total = kMemory;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return launch(stream, [=] { std::memset(memory, value, bytes); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  // A small one to the device is read before the call returns, as pageable memory is.
  constexpr std::size_t kStaged = 65536;
  if (kind == cudaMemcpyHostToDevice && bytes <= kStaged) {
    const auto* const first = static_cast<const std::byte*>(from);
    of(stream).push([to, copy = std::vector<std::byte>(first, first + bytes)] {
      std::memcpy(to, copy.data(), copy.size());
    });
    return cudaSuccess;
  }
  of(stream).push([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  of(stream).push([=] { function(argument); });
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "a fake error";
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaErrorFake";
}

// --- The kernels

namespace surefoot::cuda {

cudaError_t load_kernels() {
  return cudaSuccess;
}
cudaError_t add_up(const AddUp& work, cudaStream_t stream) {
  return launch(stream, [work] {
    for (std::int64_t i = 0; i < work.elements; ++i)
      kernel::add_up(work.slots.data(), static_cast<int>(work.slots.size()), i, work.format);
  });
}
cudaError_t pack(const Pack& work, cudaStream_t stream) {
  return launch(stream, [work] {
    std::transform(work.from, work.from + work.elements, work.to, kernel::to_bf16);
  });
}
cudaError_t unpack(const Unpack& work, cudaStream_t stream) {
  return launch(stream, [work] {
    std::transform(work.from, work.from + work.elements, work.to, kernel::from_bf16);
  });
}
cudaError_t finish_tree(const FinishTree& work, const DeviceTree& tree, cudaStream_t stream) {
  struct Stack {
    float values[Tree::kMaxDepth];
    void put(int depth, float value) { values[depth] = value; }
    [[nodiscard]] float get(int depth) const { return values[depth]; }
  };
  return launch(stream, [work, tree] {
    Stack stack;
    std::vector<float> sums(kBlockElements);
    for (std::int64_t at = 0; at < work.end - work.begin; ++at) {
      const float sum = kernel::finish(tree.roots, tree.additions_after, tree.count,
                                       work.begin + at, work.begin, tree.format, stack);
      sums[static_cast<std::size_t>(at % kBlockElements)] = sum;
      if (work.to_format == NumberFormat::kBf16) {
        static_cast<kernel::Bf16*>(work.to)[at] = kernel::to_bf16(sum);
      } else {
        static_cast<float*>(work.to)[at] = sum;
      }
      if (work.square_sums == nullptr || (at + 1) % kBlockElements != 0) continue;
      double lanes[kLanes];
      for (int lane = 0; lane < kLanes; ++lane)
        lanes[lane] = kernel::lane_square_sum(sums.data(), lane);
      work.square_sums[at / kBlockElements] = kernel::sum_of_lanes(lanes);
    }
  });
}

}  // namespace surefoot::cuda

// --- NCCL

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> count = 0;
  std::memset(id, 0, sizeof *id);
  const std::string name = "gang " + std::to_string(++count);
  std::copy(name.begin(), name.end(), id->internal);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  SUREFOOT_CHECK(config->blocking == 0);
  *communicator = new ncclComm;
  (*communicator)->rank = rank;
  (*communicator)->ranks = ranks;
  (*communicator)->mail = &mail_of(id.internal);
  (*communicator)->looks_to_completion = kLooks;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  const InCall in_call(*communicator);
  *state = communicator_state;
  if (*state != ncclSuccess || communicator->looks_to_completion == 0) return ncclSuccess;
  *state = ncclInProgress;
  if (!completes || --communicator->looks_to_completion > 0) return ncclSuccess;
  *state = ncclSuccess;
  if (!communicator->begun.empty()) {
    of(communicator->stream).push([works = std::move(communicator->begun)] {
      for (const auto& work : works) work();
    });
    communicator->begun.clear();
  }
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  const InCall in_call(*communicator);
  communicator->looks_to_completion = kLooks;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  delete communicator;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t answer) {
  return answer == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "a fake error";
}
const char* ncclGetLastError(ncclComm_t) {
  return "the last words of NCCL";
}

ncclResult_t ncclGroupStart() {
  SUREFOOT_CHECK(group.depth++ == 0);
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  const Group done = std::exchange(group, {});
  SUREFOOT_CHECK(done.depth == 1 && done.communicator != nullptr);
  ncclComm& communicator = *done.communicator;
  const InCall in_call(communicator);
  SUREFOOT_CHECK(communicator.looks_to_completion == 0);
  communicator.begun = done.sends;
  communicator.begun.insert(communicator.begun.end(), done.receives.begin(), done.receives.end());
  communicator.stream = done.stream;
  communicator.looks_to_completion = kLooks;
  return ncclInProgress;
}
ncclResult_t ncclSend(const void* bytes, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t c, cudaStream_t stream) {
  const std::size_t size = count * size_of(type);
  return add(
      c, stream, [=] { c->mail->put(c->rank, peer, bytes, size); }, [] {});
}
ncclResult_t ncclRecv(void* bytes, std::size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t stream) {
  const std::size_t size = count * size_of(type);
  return add(
      c, stream, [] {}, [=] { c->mail->take(peer, c->rank, bytes, size); });
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t c, cudaStream_t stream) {
  const std::size_t size = count * size_of(type);
  return add(
      c, stream, [=] { c->broadcast(from, size); },
      [=] {
        for (int peer = 0; peer < c->ranks; ++peer) {
          auto* const part = static_cast<std::byte*>(to) + static_cast<std::size_t>(peer) * size;
          if (peer != c->rank) c->mail->take(peer, c->rank, part, size);
        }
      });
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t c, cudaStream_t stream) {
  const std::size_t size = count * size_of(type);
  if (root == c->rank)
    return add(
        c, stream, [=] { c->broadcast(from, size); }, [] {});
  return add(
      c, stream, [] {}, [=] { c->mail->take(root, c->rank, to, size); });
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t c, cudaStream_t stream) {
  SUREFOOT_CHECK(operation == ncclSum);
  const std::size_t size = count * size_of(type);
  return add(
      c, stream, [=] { c->broadcast(from, size); },
      [=] {
        const auto* const own = static_cast<const std::byte*>(from);
        std::vector<float> sum(count);
        std::vector<std::byte> theirs(own, own + size);
        for (int peer = 0; peer < c->ranks; ++peer) {
          if (peer == c->rank) {
            std::copy(own, own + size, theirs.begin());
          } else {
            c->mail->take(peer, c->rank, theirs.data(), size);
          }
          for (std::size_t i = 0; i < count; ++i) sum[i] += number(theirs.data(), i, type);
        }
        for (std::size_t i = 0; i < count; ++i) {
          if (type == ncclFloat32) {
            static_cast<float*>(to)[i] = sum[i];
          } else {
            static_cast<surefoot::kernel::Bf16*>(to)[i] = surefoot::kernel::to_bf16(sum[i]);
          }
        }
      });
}
