#include "worker/testing/host_device.h"

#include <gtest/gtest.h>

#include "worker/testing/test_device.h"

namespace surefoot::testing {

std::unique_ptr<Device> make_test_device() {
  return std::make_unique<HostDevice>();
}

namespace {

TEST(HostDeviceDeathTest, AnUpdateOverASnapshotUnderWayEndsTheProcess) {
  HostDevice device;
  ASSERT_TRUE(device.mark());
  EXPECT_DEATH(device.enqueue(DeviceUpdate{}), "owes_snapshot_");
}

}  // namespace
}  // namespace surefoot::testing
