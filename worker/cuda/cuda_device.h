// Device on an NVIDIA GPU, on the plain CUDA runtime. The process sees one GPU only.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "worker/device.h"

namespace surefoot {

// Where the stream comes from on which libtorch computes; the one source that knows c10::cuda
// (torch_stream.cpp). In tests without libtorch: another.
[[nodiscard]] cudaStream_t computation_stream();

class CudaDevice final : public Device {
 public:
  // kInvalid: there is no GPU that this process can use, and why.
  // `devices_of_node`: how many the ranks of this machine have between them; fewer than ranks, and
  // they share.
  [[nodiscard]] static Result<std::unique_ptr<CudaDevice>> open(int devices_of_node,
                                                                cudaStream_t computation);
  // Lets go of the host's memory, which may be used for something else. Frees nothing of the
  // device's: the process ends, and the driver frees all of it at once.
  ~CudaDevice() override;

  [[nodiscard]] const DeviceFacts& facts() const override { return facts_; }
  [[nodiscard]] Result<std::span<std::byte>> allocate(std::int64_t bytes,
                                                      std::string_view what) override;
  void pin(std::span<std::byte> memory) override;
  [[nodiscard]] Result<std::unique_ptr<DeviceStream>> connect(
      Communicator& communicator, const Place& place, std::function<void(std::string)> failed,
      Time deadline) override;
  void enqueue(const Computation& work) override;
  Status wait(Time deadline, std::string_view what) override;
  Status upload(std::span<const std::byte> from, std::byte* to, Time deadline) override;
  Status mark() override;
  Status download(const std::byte* from, std::span<std::byte> to, std::span<const ByteRange> ranges,
                  Time deadline) override;

 private:
  CudaDevice(int devices_of_node, cudaStream_t computation)
      : devices_of_node_(devices_of_node), computation_(computation) {}
  // Keeps the first error of an enqueueing call for the next wait or mark.
  void note(cudaError_t code, const char* call);

  int devices_of_node_;
  DeviceFacts facts_;
  cudaStream_t computation_;
  cudaStream_t copies_ = nullptr;
  cudaEvent_t done_ = nullptr;    // of computation_, in wait()
  cudaEvent_t marked_ = nullptr;  // of computation_, in mark()
  cudaEvent_t copied_ = nullptr;  // of copies_, in download()
  std::vector<std::byte*> pinned_;
  Status failed_;
};

}  // namespace surefoot
