#include "worker/testing/host_device.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "collectives/testing/host_stream.h"
#include "worker/cross_entropy_kernel.h"

namespace surefoot::testing {

namespace {

void compute(const DeviceUpdate& update) {
  const ElementRange* next = update.decayed;
  const ElementRange* const end = update.decayed + update.decayed_count;
  for (std::int64_t i = 0; i < update.elements; ++i) {
    while (next != end && next->end <= i) ++next;
    const bool decays = next != end && next->begin <= i;
    float& p = update.parameters[i];
    float& m = update.moments[0][i];
    if (const auto* s = std::get_if<AdamWScalars>(&update.scalars)) {
      float& v = update.moments[1][i];
      adamw_element(*s, decays ? s->keep_decayed : 1.0F, update.gradient_sum[i], p, m, v, p, m, v);
    } else {
      const auto& sgd = std::get<SgdScalars>(update.scalars);
      sgd_element(sgd, decays ? sgd.decay : 0.0F, update.gradient_sum[i], p, m, p, m);
    }
  }
  for (std::int64_t i = 0; i < update.buffer_elements; ++i) {
    update.buffers[i] =
        changed_buffer(update.buffers[i], update.buffer_changes[i], update.micro_batches);
  }
}

template <class Body>
void for_each_row(const Logits& logits, const Body& body) {
  for (std::int64_t row = 0; row < logits.rows; ++row)
    body(kernel::HostBlock(row, kernel::threads_for(logits)));
}

void compute(const CrossEntropy& work) {
  kernel::RowMemory memory;
  for_each_row(work.logits, [&](const kernel::HostBlock& block) {
    if (work.logits.format == NumberFormat::kBf16) {
      kernel::cross_entropy<kernel::Bf16>(block, work, memory);
    } else {
      kernel::cross_entropy<float>(block, work, memory);
    }
  });
}

void compute(const CrossEntropyGradient& work) {
  for_each_row(work.logits, [&](const kernel::HostBlock& block) {
    if (work.logits.format == NumberFormat::kBf16) {
      kernel::cross_entropy_gradient<kernel::Bf16>(block, work);
    } else {
      kernel::cross_entropy_gradient<float>(block, work);
    }
  });
}

}  // namespace

void compute_on_host(const Computation& work) {
  std::visit([](const auto& one) { compute(one); }, work);
}

HostDevice::HostDevice() {
  facts_.name = "double";
  facts_.numerics = "double of a device";
  facts_.is_cuda = false;
}

Result<std::span<std::byte>> HostDevice::allocate(std::int64_t bytes, std::string_view what) {
  constexpr std::int64_t kMemory = std::int64_t{64} << 30;  // arbitrary
  if (bytes > kMemory) {
    return error(Code::kNoSpace, "{}: the double has {} MiB, needed are {} MiB", what,
                 kMemory >> 20, bytes >> 20);
  }
  memory_.emplace_back((bytes + 3) / 4);
  return std::as_writable_bytes(memory_.back().span()).first(static_cast<std::size_t>(bytes));
}

Result<std::unique_ptr<DeviceStream>> HostDevice::connect(Communicator& communicator, const Place&,
                                                          std::function<void(std::string)>, Time) {
  return std::unique_ptr<DeviceStream>(std::make_unique<HostStream>(communicator));
}

void HostDevice::enqueue(const Computation& work) {
  if (std::holds_alternative<DeviceUpdate>(work)) SUREFOOT_CHECK(!owes_snapshot_);
  compute_on_host(work);
}

Status HostDevice::upload(std::span<const std::byte> from, std::byte* to, Time) {
  std::memcpy(to, from.data(), from.size());
  return {};
}

Status HostDevice::mark() {
  SUREFOOT_CHECK(!owes_snapshot_.exchange(true));
  return {};
}

Status HostDevice::download(const std::byte* from, std::span<std::byte> to,
                            std::span<const ByteRange> ranges, Time) {
  SUREFOOT_CHECK(owes_snapshot_);
  constexpr std::int64_t kPiece = 64 << 10;  // arbitrary: several, also of a small state
  for (const ByteRange& range : ranges) {
    for (std::int64_t at = range.begin; at < range.end; at += kPiece) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      std::memcpy(to.data() + at, from + at,
                  static_cast<std::size_t>(std::min(kPiece, range.end - at)));
    }
  }
  owes_snapshot_ = false;
  return {};
}

}  // namespace surefoot::testing
