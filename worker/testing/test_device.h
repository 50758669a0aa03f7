// The device that a test program is linked with: the double (host_device_test.cpp), a GPU or the
// fake of one (cuda/cuda_device_test.cpp).
#pragma once

#include <memory>

#include "worker/device.h"

namespace surefoot::testing {

// A new one, with streams of its own; null is a failure.
[[nodiscard]] std::unique_ptr<Device> make_test_device();

}  // namespace surefoot::testing
