// Of a worker that was built without CUDA, or against a libtorch without it.
#include "collectives/device_stream.h"
#include "worker/device.h"

namespace surefoot {

Result<std::unique_ptr<Device>> open_device(const config::Job& job, int, int) {
  if (job.resources().device() == config::Resources::cpu) return std::unique_ptr<Device>();
  return error(Code::kInvalid,
               "resources.device: this surefoot-worker was built without CUDA (`make cuda` builds "
               "one with it)");
}

}  // namespace surefoot
