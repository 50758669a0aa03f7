// A range of elements of a flat vector. Light: nvcc reads it too.
#pragma once

#include <cstdint>

namespace surefoot {

struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

}  // namespace surefoot
