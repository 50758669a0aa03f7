// One target as a libFuzzer program.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  surefoot::fuzz::SUREFOOT_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
