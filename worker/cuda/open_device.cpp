// open_device() of a worker that has CUDA.
#include <cstdlib>

#include "collectives/device_stream.h"
#include "collectives/watchdog.h"
#include "configs/devices.h"
#include "worker/cuda/cuda_device.h"
#include "worker/device_choice.h"

namespace surefoot {

Result<std::unique_ptr<Device>> open_device(const config::Job& job, int local_rank,
                                            int local_size) {
  if (job.resources().device() == config::Resources::cpu) return std::unique_ptr<Device>();
  SUREFOOT_ASSIGN(const DeviceChoice choice,
                  choose_device(job.resources(), visible_devices(), local_rank, local_size));
  for (const auto& [name, value] : choice.environment) ::setenv(name.c_str(), value.c_str(), 1);
  // The driver's start can take for ever, and nothing can interrupt it.
  constexpr int kExitRestart = 76;
  const auto limit = std::chrono::milliseconds(job.recovery().startup_timeout());
  const Watchdog watchdog("CUDA's start", now() + limit, kExitRestart);
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    return error(
        Code::kInvalid,
        "resources.device: cuda, but GPU {} is not to be had on this machine: {}. `surefoot "
        "doctor` tells more",
        choice.device, code != cudaSuccess ? cudaGetErrorString(code) : "there is none");
  }
  SUREFOOT_ASSIGN(auto device, CudaDevice::open(choice.devices_of_node, computation_stream()));
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace surefoot
