// open_device() of a worker whose every job runs on the double.
#include "worker/testing/host_device.h"

namespace surefoot {

Result<std::unique_ptr<Device>> open_device(const config::Job&, int, int) {
  return std::unique_ptr<Device>(std::make_unique<testing::HostDevice>());
}

}  // namespace surefoot
