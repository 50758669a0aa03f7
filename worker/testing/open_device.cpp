// open_device() of a worker whose every job runs on the double. The attempt that
// SUREFOOT_DOUBLE_AWAY names finds none, as when a GPU has fallen off the bus.
#include <cstdlib>

#include "worker/testing/host_device.h"

namespace surefoot {

Result<std::unique_ptr<Device>> open_device(const config::Job&, int, int) {
  const char* const away = std::getenv("SUREFOOT_DOUBLE_AWAY");
  const char* const attempt = std::getenv("SUREFOOT_ATTEMPT");
  if (away != nullptr && attempt != nullptr && std::string_view(away) == attempt)
    return error(Code::kInvalid, "resources.device: the double is not to be had on this machine");
  return std::unique_ptr<Device>(std::make_unique<testing::HostDevice>());
}

}  // namespace surefoot
