// A zeroed array of floats that starts at a page, on huge pages where the system has them: copies
// between processes pin pages, and pinning 2 MiB at once costs a tenth of pinning 512 small ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace surefoot {

class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::int64_t elements);
  [[nodiscard]] float* data() const { return data_.get(); }
  [[nodiscard]] std::span<float> span() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(float* data) const;
  };
  std::size_t size_;
  std::unique_ptr<float, Free> data_;
};

}  // namespace surefoot
