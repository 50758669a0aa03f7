#include "collectives/aligned_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "common/check.h"

namespace surefoot {
namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}  // namespace

AlignedBuffer::AlignedBuffer(std::int64_t elements) : size_(static_cast<std::size_t>(elements)) {
  const std::size_t bytes = std::max<std::size_t>(size_ * sizeof(float), 1);
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  SUREFOOT_CHECK(memory != nullptr);
  // A hint: without huge pages everything works, only slower.
  (void)madvise(memory, rounded, MADV_HUGEPAGE);
  std::memset(memory, 0, rounded);
  data_.reset(static_cast<float*>(memory));
}

void AlignedBuffer::Free::operator()(float* data) const {
  std::free(data);
}

}  // namespace surefoot
