// What a device can be told to compute (device.h), besides what libtorch enqueues.
#pragma once

#include <variant>

#include "worker/device_cross_entropy.h"
#include "worker/device_update.h"

namespace surefoot {

using Computation = std::variant<DeviceUpdate, CrossEntropy, CrossEntropyGradient>;

}  // namespace surefoot
