// Keys for tests.
#pragma once

#include <array>
#include <random>

#include "checkpoint/seal.h"

namespace surefoot::testing {

inline std::array<std::byte, kKeyBytes> key_bytes(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::array<std::byte, kKeyBytes> bytes;
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}
inline SealKey test_key(std::uint64_t seed) {
  return SealKey(key_bytes(seed));
}
inline Keys test_keys(std::uint64_t seed) {
  return std::make_shared<const KeyRing>(test_key(seed));
}

}  // namespace surefoot::testing
