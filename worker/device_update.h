// What a device is told to do with the sums of a step (device.h). Light: nvcc reads it too.
#pragma once

#include <array>
#include <cstdint>

#include "collectives/element_range.h"
#include "worker/update_arithmetic.h"

namespace surefoot {

// One step's update of the whole state, in place. All pointers but `update` itself are device
// memory.
struct DeviceUpdate {
  UpdateScalars scalars;
  std::int64_t elements = 0;  // of parameters, of each moment, and of the sum's first part
  float* parameters = nullptr;
  std::array<float*, kMaxMoments> moments{};
  const float* gradient_sum = nullptr;
  const ElementRange* decayed = nullptr;  // ascending, disjoint
  std::int64_t decayed_count = 0;
  // The model's floating-point buffers, and the sum of their changes over the micro-batches.
  std::int64_t buffer_elements = 0;
  float* buffers = nullptr;
  const float* buffer_changes = nullptr;
  float micro_batches = 1;
};

}  // namespace surefoot
