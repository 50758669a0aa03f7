// How a test reaches memory that may lie on a device: as the model's computation would, in the
// order of its queue.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace surefoot::testing {

class DeviceAccess {
 public:
  virtual ~DeviceAccess() = default;

  // Computation writes this, at some time; `from` is free at once.
  virtual void write_bytes(void* to, std::span<const std::byte> from) = 0;
  // A failure of the test unless computation finds zeros there.
  virtual void expect_zero_bytes(std::span<const std::byte> bytes) = 0;
  // After everything that computation has been given so far.
  virtual std::vector<std::byte> read_bytes(std::span<const std::byte> from) = 0;

  template <class T>
  void write(std::span<T> to, std::span<const T> from) {
    write_bytes(to.data(), std::as_bytes(from));
  }
  void expect_zeros(std::span<const float> values) { expect_zero_bytes(std::as_bytes(values)); }
  template <class T>
  std::vector<T> read(std::span<const T> from) {
    const std::vector<std::byte> bytes = read_bytes(std::as_bytes(from));
    std::vector<T> values(from.size());
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

// Memory of this process, computation done at once.
class HostAccess final : public DeviceAccess {
 public:
  void write_bytes(void* to, std::span<const std::byte> from) override {
    std::memcpy(to, from.data(), from.size());
  }
  void expect_zero_bytes(std::span<const std::byte> bytes) override {
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](auto b) { return b == std::byte{0}; }));
  }
  std::vector<std::byte> read_bytes(std::span<const std::byte> from) override {
    return {from.begin(), from.end()};
  }
};

}  // namespace surefoot::testing
