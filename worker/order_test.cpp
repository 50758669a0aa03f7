#include "worker/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

namespace surefoot {
namespace {

std::vector<std::int64_t> epoch_of(const SampleOrder& order, std::int64_t epoch) {
  std::vector<std::int64_t> samples;
  for (std::int64_t place = 0; place < order.samples(); ++place)
    samples.push_back(order.permuted(epoch, place));
  return samples;
}

TEST(Order, EachEpochHoldsEverySampleOnceForEveryNumberOfSamples) {
  std::vector<std::int64_t> counts = {1000, 1023, 1024,  1025,  4095,
                                      4096, 4097, 60000, 65536, 100003};
  for (std::int64_t n = 1; n <= 300; ++n) counts.push_back(n);
  for (const std::int64_t n : counts) {
    for (const std::int64_t epoch : {0, 1, 7}) {
      std::vector<std::int64_t> samples = epoch_of(SampleOrder(5, n), epoch);
      std::sort(samples.begin(), samples.end());
      std::vector<std::int64_t> all(static_cast<std::size_t>(n));
      std::iota(all.begin(), all.end(), 0);
      ASSERT_EQ(samples, all) << "n " << n << " epoch " << epoch;
    }
  }
}

TEST(Order, EpochsAndSeedsGiveDifferentOrders) {
  const std::vector<std::int64_t> first = epoch_of(SampleOrder(1, 1000), 0);
  EXPECT_NE(first, epoch_of(SampleOrder(1, 1000), 1));
  EXPECT_NE(first, epoch_of(SampleOrder(2, 1000), 0));
  EXPECT_EQ(first, epoch_of(SampleOrder(1, 1000), 0));
  std::set<std::vector<std::int64_t>> orders;
  for (int epoch = 0; epoch < 100; ++epoch) orders.insert(epoch_of(SampleOrder(1, 50), epoch));
  EXPECT_EQ(orders.size(), 100u);
}

TEST(Order, PlacesAreSpreadEvenly) {
  // Mean distance between neighbours of a random order of n is n / 3; a sorted or barely shuffled
  // one has far less.
  const std::vector<std::int64_t> samples = epoch_of(SampleOrder(3, 10000), 2);
  double distance = 0;
  for (std::size_t i = 1; i < samples.size(); ++i)
    distance += static_cast<double>(std::abs(samples[i] - samples[i - 1]));
  EXPECT_NEAR(distance / 9999, 10000 / 3.0, 100);
  // How often is a sample in the half it started in? Half of the time.
  int same_half = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) same_half += (i < 5000) == (samples[i] < 5000);
  EXPECT_NEAR(same_half, 5000, 200);
}

TEST(Order, HugeDataSetsNeedNoTable) {
  const SampleOrder order(1, std::int64_t{1} << 60);
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const std::int64_t sample = order.at((std::int64_t{1} << 59) + i);
    EXPECT_GE(sample, 0);
    EXPECT_LT(sample, std::int64_t{1} << 60);
    seen.insert(sample);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

// The samples of the whole of steps 1..steps, by reading micro-batch after micro-batch.
std::vector<std::int64_t> stream(const SampleOrder& order, std::int64_t steps, std::int64_t m,
                                 std::int64_t b) {
  std::vector<std::int64_t> all;
  for (std::int64_t step = 1; step <= steps; ++step) {
    for (std::int64_t i = 0; i < m; ++i) {
      std::vector<std::int64_t> samples(static_cast<std::size_t>(b));
      micro_batch_samples(order, Step{step}, m, i, samples);
      all.insert(all.end(), samples.begin(), samples.end());
    }
  }
  return all;
}

TEST(Order, MicroBatchesStraddleEpochsAndNoSampleIsLostOrDoubled) {
  const SampleOrder order(9, 10);
  const std::vector<std::int64_t> all =
      stream(order, 5, 3, 4);  // 60 samples: six epochs, borders inside micro-batches
  ASSERT_EQ(all.size(), 60u);
  for (std::int64_t epoch = 0; epoch < 6; ++epoch) {
    const std::vector<std::int64_t> part(all.begin() + epoch * 10, all.begin() + (epoch + 1) * 10);
    EXPECT_EQ(part, epoch_of(order, epoch));
  }
}

TEST(Order, TheStreamDoesNotDependOnTheMicroBatchSize) {
  const SampleOrder order(9, 7);
  EXPECT_EQ(stream(order, 6, 6, 1), stream(order, 6, 1, 6));
  EXPECT_EQ(stream(order, 6, 2, 3), stream(order, 6, 3, 2));
}

TEST(Order, GeneratorSeedsDifferByJobStepAndMicroBatch) {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t job = 0; job < 4; ++job) {
    for (std::int64_t step = 1; step <= 50; ++step) {
      for (std::int64_t m = 0; m < 16; ++m) seeds.insert(generator_seed(job, Step{step}, m));
    }
  }
  EXPECT_EQ(seeds.size(), 4u * 50u * 16u);
  EXPECT_EQ(generator_seed(1, Step{2}, 3), generator_seed(1, Step{2}, 3));
}

}  // namespace
}  // namespace surefoot
