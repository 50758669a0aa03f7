#include "worker/cuda/cuda_device.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "collectives/nccl/nccl_host_id.h"
#include "collectives/nccl/nccl_stream.h"
#include "common/log.h"
#include "worker/cuda/kernels.h"
#include "worker/device_choice.h"

namespace surefoot {
namespace {

Error failure(cudaError_t code, std::string_view call) {
  return error(Code::kRestart, "CUDA: {}: {} ({})", call, cudaGetErrorString(code),
               cudaGetErrorName(code));
}

Status checked(cudaError_t code, std::string_view call) {
  if (code == cudaSuccess) return {};
  return failure(code, call);
}

// The runtime's own wait has no deadline. Asking costs about a microsecond; pauses grow, so that a
// long wait leaves the core to others.
Status await(cudaEvent_t event, Time deadline, std::string_view what) {
  constexpr auto kLongestPause = std::chrono::microseconds(200);
  auto pause = std::chrono::microseconds(5);
  for (;;) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return {};
    if (state != cudaErrorNotReady) return failure(state, what);
    if (now() > deadline) return error(Code::kRestart, "the GPU has not finished {} in time", what);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

Status make_event(cudaEvent_t& event) {
  return checked(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
}

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(int devices_of_node,
                                                     cudaStream_t computation) {
  auto device = std::unique_ptr<CudaDevice>(new CudaDevice(devices_of_node, computation));
  cudaDeviceProp properties{};
  int runtime = 0;
  SUREFOOT_TRY(checked(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties"));
  SUREFOOT_TRY(checked(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion"));
  device->facts_.name = properties.name;
  device->facts_.numerics = fmt::format("{}, {} SMs, capability {}.{}, CUDA {}.{}", properties.name,
                                        properties.multiProcessorCount, properties.major,
                                        properties.minor, runtime / 1000, runtime % 1000 / 10) +
                            bits_by_environment(::getenv);
  SUREFOOT_TRY(checked(cuda::load_update(), "loading the kernels of the update"));
  SUREFOOT_TRY(checked(cuda::load_cross_entropy(), "loading the kernels of the loss"));
  SUREFOOT_TRY(checked(cudaStreamCreateWithFlags(&device->copies_, cudaStreamNonBlocking),
                       "cudaStreamCreate"));
  for (cudaEvent_t* event : {&device->done_, &device->marked_, &device->copied_})
    SUREFOOT_TRY(make_event(*event));
  return device;
}

CudaDevice::~CudaDevice() {
  for (std::byte* memory : pinned_) (void)cudaHostUnregister(memory);
}

void CudaDevice::note(cudaError_t code, const char* call) {
  if (failed_) failed_ = checked(code, call);
}

Result<std::span<std::byte>> CudaDevice::allocate(std::int64_t bytes, std::string_view what) {
  void* memory = nullptr;
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  if (const cudaError_t code = cudaMalloc(&memory, size); code != cudaSuccess) {
    (void)cudaGetLastError();
    if (code != cudaErrorMemoryAllocation) return failure(code, "cudaMalloc");
    std::size_t free = 0;
    std::size_t total = 0;
    (void)cudaMemGetInfo(&free, &total);
    return error(Code::kNoSpace, "{}: the GPU ({}) has {} MiB of {} MiB free, needed are {} MiB",
                 what, facts_.name, free >> 20, total >> 20, size >> 20);
  }
  SUREFOOT_TRY(checked(cudaMemsetAsync(memory, 0, size, computation_), "cudaMemset"));
  return std::span(static_cast<std::byte*>(memory), static_cast<std::size_t>(bytes));
}

void CudaDevice::pin(std::span<std::byte> memory) {
  const cudaError_t code = cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  if (code == cudaSuccess) {
    pinned_.push_back(memory.data());
    return;
  }
  (void)cudaGetLastError();  // otherwise the next launch would report it
  spdlog::warn("the snapshots' memory could not be registered with CUDA ({}): copies are slower",
               cudaGetErrorString(code));
}

Result<std::unique_ptr<DeviceStream>> CudaDevice::connect(Communicator& communicator,
                                                          const Place& place,
                                                          std::function<void(std::string)> failed,
                                                          Time deadline) {
  set_nccl_host_id(place, devices_of_node_);
  NcclOptions options;
  options.computation = computation_;
  options.on_failure = std::move(failed);
  SUREFOOT_ASSIGN(auto stream, NcclStream::open(communicator, options, deadline));
  return std::unique_ptr<DeviceStream>(std::move(stream));
}

void CudaDevice::enqueue(const Computation& work) {
  const char* const name = std::holds_alternative<DeviceUpdate>(work) ? "the update" : "the loss";
  note(std::visit([&](const auto& one) { return cuda::launch(one, computation_); }, work), name);
}

Status CudaDevice::wait(Time deadline, std::string_view what) {
  SUREFOOT_TRY(failed_);
  SUREFOOT_TRY(checked(cudaEventRecord(done_, computation_), "cudaEventRecord"));
  return await(done_, deadline, what);
}

Status CudaDevice::upload(std::span<const std::byte> from, std::byte* to, Time deadline) {
  SUREFOOT_TRY(
      checked(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, computation_),
              "the copy to the GPU"));
  return wait(deadline, "the copy to the GPU");
}

Status CudaDevice::mark() {
  note(cudaEventRecord(marked_, computation_), "cudaEventRecord");
  return failed_;
}

Status CudaDevice::download(const std::byte* from, std::span<std::byte> to,
                            std::span<const ByteRange> ranges, Time deadline) {
  constexpr std::string_view kWhat = "the copy of the snapshot";
  SUREFOOT_TRY(checked(cudaStreamWaitEvent(copies_, marked_, 0), "cudaStreamWaitEvent"));
  for (const ByteRange& range : ranges) {
    const auto begin = static_cast<std::size_t>(range.begin);
    SUREFOOT_TRY(checked(cudaMemcpyAsync(to.data() + begin, from + begin,
                                         static_cast<std::size_t>(range.end) - begin,
                                         cudaMemcpyDeviceToHost, copies_),
                         kWhat));
  }
  SUREFOOT_TRY(checked(cudaEventRecord(copied_, copies_), "cudaEventRecord"));
  return await(copied_, deadline, kWhat);
}

}  // namespace surefoot
