#include "worker/order.h"

#include "common/check.h"

namespace surefoot {
namespace {

// Four rounds make a strong permutation of a good round function (Luby and Rackoff 1988); two more
// cost nothing that matters.
constexpr int kRounds = 6;
constexpr std::uint64_t kGolden =
    0x9e3779b97f4a7c15ULL;  // SplitMix64's increment: 2^64 / golden ratio

}  // namespace

SampleOrder::SampleOrder(std::uint64_t seed, std::int64_t samples)
    : seed_(seed), samples_(samples), half_bits_(1) {
  SUREFOOT_CHECK(samples >= 1);
  while (half_bits_ < 31 && (std::int64_t{1} << (2 * half_bits_)) < samples) ++half_bits_;
  SUREFOOT_CHECK((std::int64_t{1} << (2 * half_bits_)) >= samples);
}

std::int64_t SampleOrder::permuted(std::int64_t epoch, std::int64_t place) const {
  SUREFOOT_CHECK(epoch >= 0 && place >= 0 && place < samples_);
  const std::uint64_t key =
      mix(mix(seed_ + kGolden) + kGolden * static_cast<std::uint64_t>(epoch + 1));
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t value = static_cast<std::uint64_t>(place);
  do {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (mix(right ^ mix(key + round)) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<std::uint64_t>(samples_));
  return static_cast<std::int64_t>(value);
}

void micro_batch_samples(const SampleOrder& order, Step step, std::int64_t micro_batches,
                         std::int64_t micro_batch, std::span<std::int64_t> samples) {
  SUREFOOT_CHECK(step.value >= 1 && micro_batch >= 0 && micro_batch < micro_batches);
  const auto size = static_cast<std::int64_t>(samples.size());
  const std::int64_t first = ((step.value - 1) * micro_batches + micro_batch) * size;
  for (std::int64_t j = 0; j < size; ++j)
    samples[static_cast<std::size_t>(j)] = order.at(first + j);
}

std::uint64_t generator_seed(std::uint64_t job_seed, Step step, std::int64_t micro_batch) {
  const std::uint64_t of_step =
      mix(mix(job_seed + kGolden) + kGolden * static_cast<std::uint64_t>(step.value));
  return mix(of_step + kGolden * static_cast<std::uint64_t>(micro_batch + 1));
}

}  // namespace surefoot
