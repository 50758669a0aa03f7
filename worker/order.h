// Which sample is where: the order of the data, computed on the spot.
//
// Sample j of micro-batch m of step k is number i = ((k-1) M + m) B + j of one endless stream. It
// lies in epoch i div N at place perm(epoch, i mod N). Micro-batches straddle epochs, none is
// short, and there is no loader state to save or lose: a step's samples follow from its number
// alone, for any number of workers.
//
// perm is a keyed permutation of [0, N): a balanced Feistel network of kRounds rounds over the
// smallest even number of bits that holds N, applied again until the value falls below N (cycle
// walking; fewer than 4 applications on average). Keys: job seed and epoch. It is good enough to
// shuffle data; it is no cryptography.
//
// Pure, thread-safe, integers only.
#pragma once

#include <cstdint>
#include <span>

#include "common/ids.h"

namespace surefoot {

class SampleOrder {
 public:
  // `samples` = N >= 1.
  SampleOrder(std::uint64_t seed, std::int64_t samples);

  [[nodiscard]] std::int64_t samples() const { return samples_; }
  // The sample at `place` (0 <= place < N) of `epoch` (>= 0).
  [[nodiscard]] std::int64_t permuted(std::int64_t epoch, std::int64_t place) const;
  // Number i of the stream (>= 0).
  [[nodiscard]] std::int64_t at(std::int64_t i) const {
    return permuted(i / samples_, i % samples_);
  }

 private:
  std::uint64_t seed_;
  std::int64_t samples_;
  int half_bits_;
};

// The samples of micro-batch `micro_batch` (0 <= . < micro_batches) of `step` (>= 1), into
// `samples`, whose size is the micro-batch size.
void micro_batch_samples(const SampleOrder& order, Step step, std::int64_t micro_batches,
                         std::int64_t micro_batch, std::span<std::int64_t> samples);

// Seed of the generator (dropout) of one micro-batch: a mix of the three numbers.
[[nodiscard]] std::uint64_t generator_seed(std::uint64_t job_seed, Step step,
                                           std::int64_t micro_batch);

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words whose output
// bits all depend on all input bits.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace surefoot
