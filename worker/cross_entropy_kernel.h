// The kernels of device_cross_entropy.h, a block of threads for each row (kernel_block.h). Memory
// is the limit, so logits are read sixteen bytes at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "collectives/kernel_arithmetic.h"
#include "common/kernel_block.h"
#include "worker/device_cross_entropy.h"

namespace surefoot::kernel {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
inline constexpr int kMostRowThreads = 1024;
inline constexpr int kFewestRowThreads = 32;

// Each thread has sixteen bytes of bf16 at least, where there are so many.
inline int threads_for(const Logits& logits) {
  int threads = kFewestRowThreads;
  while (threads < kMostRowThreads && threads * 8 < logits.classes) threads *= 2;
  return threads;
}

// Shared memory of the block.
struct RowMemory {
  float highest[kMostRowThreads];
  float sums[kMostRowThreads];
};

SUREFOOT_HOST_DEVICE inline float to_float(float value) {
  return value;
}
SUREFOOT_HOST_DEVICE inline float to_float(Bf16 value) {
  return from_bf16(value);
}
SUREFOOT_HOST_DEVICE inline void from_float(float value, float& to) {
  to = value;
}
SUREFOOT_HOST_DEVICE inline void from_float(float value, Bf16& to) {
  to = to_bf16(value);
}

// Sixteen bytes.
template <class T>
struct alignas(16) Wide {
  static constexpr int kCount = 16 / sizeof(T);
  T values[kCount];
};

// The elements of a row that are one thread's: whole groups of sixteen bytes first, where rows
// begin at multiples of them.
template <class T>
struct RowShare {
  std::int64_t classes;
  int thread;
  int threads;

  [[nodiscard]] SUREFOOT_HOST_DEVICE std::int64_t in_groups() const {
    return classes % Wide<T>::kCount == 0 ? classes : 0;
  }
  // Calls body(class, value).
  template <class Body>
  SUREFOOT_HOST_DEVICE void read(const T* row, const Body& body) const {
    constexpr int kCount = Wide<T>::kCount;
    for (std::int64_t c = std::int64_t{thread} * kCount; c < in_groups();
         c += std::int64_t{threads} * kCount) {
      const Wide<T> group = *reinterpret_cast<const Wide<T>*>(row + c);
      for (int i = 0; i < kCount; ++i) body(c + i, to_float(group.values[i]));
    }
    for (std::int64_t c = in_groups() + thread; c < classes; c += threads)
      body(c, to_float(row[c]));
  }
  // Writes body(class, value) to the same place of another row.
  template <class Body>
  SUREFOOT_HOST_DEVICE void transform(const T* row, T* to, const Body& body) const {
    constexpr int kCount = Wide<T>::kCount;
    for (std::int64_t c = std::int64_t{thread} * kCount; c < in_groups();
         c += std::int64_t{threads} * kCount) {
      const Wide<T> group = *reinterpret_cast<const Wide<T>*>(row + c);
      Wide<T> out;
      for (int i = 0; i < kCount; ++i)
        from_float(body(c + i, to_float(group.values[i])), out.values[i]);
      *reinterpret_cast<Wide<T>*>(to + c) = out;
    }
    for (std::int64_t c = in_groups() + thread; c < classes; c += threads)
      from_float(body(c, to_float(row[c])), to[c]);
  }
};

template <class T, class Block>
SUREFOOT_HOST_DEVICE inline void cross_entropy(const Block& block, const CrossEntropy& work,
                                               RowMemory& memory) {
  const std::int64_t classes = work.logits.classes;
  const T* const row = static_cast<const T*>(work.logits.values) + block.index() * classes;
  const auto share = [&](int thread) { return RowShare<T>{classes, thread, block.threads()}; };
  block.each_thread([&](int thread) {
    float highest = -kInfinity;
    share(thread).read(row, [&](std::int64_t, float x) { highest = x > highest ? x : highest; });
    memory.highest[thread] = highest;
  });
  combine_all(block, memory.highest, [](float a, float b) { return a > b ? a : b; });
  const float top = memory.highest[0];
  block.each_thread([&](int thread) {
    float sum = 0;
    share(thread).read(row, [&](std::int64_t, float x) { sum += std::exp(x - top); });
    memory.sums[thread] = sum;
  });
  combine_all(block, memory.sums, [](float a, float b) { return a + b; });
  block.each_thread([&](int thread) {
    if (thread != 0) return;
    const float log_sum = top + std::log(memory.sums[0]);
    const std::int64_t target = work.logits.targets[block.index()];
    const bool is_class = 0 <= target && target < classes;
    work.log_sums[block.index()] = log_sum;
    work.losses[block.index()] = is_class ? log_sum - to_float(row[target]) : kNotANumber;
  });
}

template <class T, class Block>
SUREFOOT_HOST_DEVICE inline void cross_entropy_gradient(const Block& block,
                                                        const CrossEntropyGradient& work) {
  const std::int64_t classes = work.logits.classes;
  const std::int64_t first = block.index() * classes;
  const T* const row = static_cast<const T*>(work.logits.values) + first;
  T* const to = static_cast<T*>(work.gradient) + first;
  const float log_sum = work.log_sums[block.index()];
  const float scale = *work.of_mean / static_cast<float>(work.logits.rows);
  const std::int64_t target = work.logits.targets[block.index()];
  block.each_thread([&](int thread) {
    RowShare<T>{classes, thread, block.threads()}.transform(row, to, [&](std::int64_t c, float x) {
      return (std::exp(x - log_sum) - (c == target ? 1.0F : 0.0F)) * scale;
    });
  });
}

}  // namespace surefoot::kernel
