// A test's way to the memory of a HostStream: in the order of its computation.
#pragma once

#include <utility>
#include <vector>

#include "collectives/testing/device_access.h"
#include "collectives/testing/host_stream.h"
#include "collectives/testing/reducer_check.h"

namespace surefoot::testing {

class HostStreamAccess final : public DeviceAccess {
 public:
  explicit HostStreamAccess(HostStream& stream) : stream_(stream) {}

  void write_bytes(void* to, std::span<const std::byte> from) override {
    stream_.compute([to, bytes = std::vector<std::byte>(from.begin(), from.end())] {
      std::memcpy(to, bytes.data(), bytes.size());
    });
  }
  void expect_zero_bytes(std::span<const std::byte> bytes) override {
    stream_.compute([bytes] { HostAccess().expect_zero_bytes(bytes); });
  }
  std::vector<std::byte> read_bytes(std::span<const std::byte> from) override {
    const Status done = stream_.finish_computation(now() + kLongEnough, "computation");
    EXPECT_TRUE(done.has_value()) << done.error().message;
    return {from.begin(), from.end()};
  }

 private:
  HostStream& stream_;
};

}  // namespace surefoot::testing
