#include "collectives/reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <set>

#include "collectives/ranges.h"
#include "collectives/reduction_tree.h"
#include "collectives/reference.h"
#include "collectives/testing/reducer_check.h"

namespace surefoot {
namespace {

using testing::check_step;
using testing::Expected;
using testing::kLongEnough;
using testing::losses_of;
using testing::on_all_ranks;
using testing::options_for;
using testing::places;
using testing::StepNumbers;

// A thread costs the thread sanitizer a hundred times what it costs elsewhere, and the sweep starts
// thousands.
#ifdef __SANITIZE_THREAD__
constexpr int kSweepStride = 9;
#else
constexpr int kSweepStride = 1;
#endif

// With roots as messages, and with roots read where they lie.
std::vector<std::unique_ptr<Reducer>> both_kinds(Communicator& communicator,
                                                 const ReducerOptions& options) {
  std::vector<std::unique_ptr<Reducer>> reducers;
  reducers.push_back(make_tree_reducer(communicator, options));
  auto connected = connect_tree_reducer(communicator, options, now() + kLongEnough);
  EXPECT_TRUE(connected.has_value());
  if (connected) reducers.push_back(std::move(connected).value());
  return reducers;
}

// Two steps in a row, so that what the first leaves behind would show.
void expect_reference_bits(const StepNumbers& numbers, const std::vector<Place>& where,
                           std::int64_t bucket_elements) {
  StepNumbers second = numbers;
  second.seed += 1000;
  const Expected first_step(numbers);
  const Expected second_step(second);
  const ReducerOptions options = options_for(numbers, where, bucket_elements);
  const int ranks = static_cast<int>(where.size());
  on_all_ranks(ranks, [&](LocalGang&, Communicator& communicator) {
    for (const auto& reducer : both_kinds(communicator, options)) {
      check_step(*reducer, communicator.rank(), ranks, first_step, 1);
      check_step(*reducer, communicator.rank(), ranks, second_step, 2);
    }
  });
}

TEST(TreeReducer, GivesTheSameBitsForAllRanksUpTo16AndMicroBatchesUpTo64) {
  for (int micro_batches = 1; micro_batches <= 64; micro_batches += kSweepStride) {
    const Expected expected({.gradient_elements = 5000,
                             .buffer_elements = 77,
                             .micro_batches = micro_batches,
                             .seed = 7});
    for (int ranks = 1; ranks <= std::min(16, micro_batches); ++ranks) {
      const ReducerOptions options = options_for(expected.numbers, places(ranks, ranks), 1);
      on_all_ranks(ranks, [&](LocalGang&, Communicator& communicator) {
        const auto reducer = make_tree_reducer(communicator, options);
        check_step(*reducer, communicator.rank(), ranks, expected, 3);
      });
      ASSERT_FALSE(HasFailure()) << "ranks " << ranks << ", micro-batches " << micro_batches;
    }
  }
}

TEST(TreeReducer, GivesTheSameBitsWhenRootsAreReadWhereTheyLie) {
  for (int micro_batches : {1, 7, 16, 37, 64}) {
    for (int ranks = 1; ranks <= std::min(16, micro_batches); ++ranks) {
      expect_reference_bits({.gradient_elements = 5000,
                             .buffer_elements = 77,
                             .micro_batches = micro_batches,
                             .seed = 43},
                            places(ranks, ranks), 1);
      ASSERT_FALSE(HasFailure()) << "ranks " << ranks << ", micro-batches " << micro_batches;
    }
  }
}

TEST(TreeReducer, GivesTheSameBitsAtAllSizesAroundBlockAndBucketBorders) {
  for (int ranks : {1, 2, 3, 5}) {
    const std::int64_t bucket = 2 * ranks * kBlockElements;
    for (std::int64_t gradient :
         {std::int64_t{0}, std::int64_t{1}, kBlockElements - 1, kBlockElements, kBlockElements + 1,
          bucket - 1, bucket, bucket + 1, 3 * bucket + 17}) {
      for (std::int64_t buffers : {std::int64_t{0}, std::int64_t{1}, kBlockElements}) {
        expect_reference_bits({.gradient_elements = gradient,
                               .buffer_elements = buffers,
                               .micro_batches = 7,
                               .seed = 11},
                              places(ranks, ranks), bucket);
        ASSERT_FALSE(HasFailure())
            << ranks << " ranks, gradient " << gradient << ", buffers " << buffers;
      }
    }
  }
}

TEST(TreeReducer, GivesTheSameBitsWhateverTheBucketSize) {
  for (std::int64_t bucket : {std::int64_t{1}, std::int64_t{20000}, std::int64_t{1} << 20}) {
    expect_reference_bits(
        {.gradient_elements = 70000, .buffer_elements = 300, .micro_batches = 9, .seed = 5},
        places(4, 4), bucket);
  }
}

TEST(TreeReducer, BringsTheSumsToEveryNode) {
  for (int ranks : {2, 3, 4, 6}) {
    for (int ranks_per_node = 1; ranks_per_node < ranks; ++ranks_per_node) {
      expect_reference_bits(
          {.gradient_elements = 60001, .buffer_elements = 9, .micro_batches = 11, .seed = 13},
          places(ranks, ranks_per_node), 3 * kBlockElements);
      ASSERT_FALSE(HasFailure()) << ranks << " ranks, " << ranks_per_node << " on a node";
    }
  }
}

TEST(TreeReducer, AddsInfinitiesNotANumbersDenormalsAndSignedZerosLikeTheReference) {
  for (int ranks : {1, 2, 3, 4}) {
    expect_reference_bits({.gradient_elements = 20000,
                           .buffer_elements = 5000,
                           .micro_batches = 6,
                           .seed = 17,
                           .special_values = true},
                          places(ranks, ranks), 1);
  }
}

TEST(TreeReducer, KeepsTheSignOfAZeroSumAndDenormalsAsTheyAre) {
  Expected expected({.gradient_elements = 3, .micro_batches = 4});
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (auto& vector : expected.vectors) vector[0] = -0.0F, vector[1] = tiny, vector[2] = 0.0F;
  expected.sum = reference_sum(expected.vectors);
  expected.square_sum = reference_square_sum(expected.sum, 3);
  ASSERT_TRUE(std::signbit(expected.sum[0]));
  ASSERT_EQ(expected.sum[1], 4 * tiny);
  ASSERT_FALSE(std::signbit(expected.sum[2]));
  on_all_ranks(2, [&](LocalGang&, Communicator& communicator) {
    const auto reducer =
        make_tree_reducer(communicator, options_for(expected.numbers, places(2, 2), 1));
    check_step(*reducer, communicator.rank(), 2, expected, 1);
  });
}

TEST(TreeReducer, HandsOutNoMoreBuffersThanItSays) {
  const Expected expected({.gradient_elements = 10, .micro_batches = 13});
  on_all_ranks(3, [&](LocalGang&, Communicator& communicator) {
    const auto reducer =
        make_tree_reducer(communicator, options_for(expected.numbers, places(3, 3), 1));
    std::set<float*> seen;
    const TreeNode own = micro_batches_of(communicator.rank(), 3, 13);
    for (int step = 0; step < 3; ++step) {
      reducer->begin_step();
      for (int m = own.begin; m < own.end; ++m) {
        seen.insert(reducer->begin_micro_batch().data());
        reducer->end_micro_batch();
      }
      EXPECT_TRUE(reducer->finish({}, losses_of(expected, own), now() + kLongEnough).has_value());
    }
    EXPECT_EQ(static_cast<int>(seen.size()), reducer->gradient_buffers());
  });
}

TEST(TreeReducer, NamesTheRankThatDiedInTheMiddleOfAStep) {
  const Expected expected({.gradient_elements = 50000, .micro_batches = 6});
  // Losing a rank ends the waits of all, so it must not happen while another is still in the step
  // before.
  std::barrier after_first_step(3);
  on_all_ranks(3, [&](LocalGang& gang, Communicator& communicator) {
    const auto reducer =
        make_tree_reducer(communicator, options_for(expected.numbers, places(3, 3), 1));
    check_step(*reducer, communicator.rank(), 3, expected, 1);
    after_first_step.arrive_and_wait();
    reducer->begin_step();
    (void)reducer->begin_micro_batch();
    reducer->end_micro_batch();
    if (communicator.rank() == 1) return gang.lose(1);
    (void)reducer->begin_micro_batch();
    reducer->end_micro_batch();
    const auto step = reducer->finish({}, std::vector<double>(2), now() + kLongEnough);
    ASSERT_FALSE(step.has_value());
    EXPECT_EQ(step.error().code, Code::kRestart);
    EXPECT_NE(step.error().message.find("rank 1"), std::string::npos) << step.error().message;
    // Nobody's buffers may go while another rank could still copy from them.
    gang.lose(communicator.rank());
  });
}

TEST(TreeReducer, NamesTheRankThatIsLateWhenTheDeadlinePasses) {
  const Expected expected({.gradient_elements = 50000, .micro_batches = 3});
  std::atomic<bool> has_ended = false;
  on_all_ranks(2, [&](LocalGang& gang, Communicator& communicator) {
    const auto reducer =
        make_tree_reducer(communicator, options_for(expected.numbers, places(2, 2), 1));
    if (communicator.rank() == 1) {
      has_ended.wait(false);
      return;
    }
    reducer->begin_step();
    (void)reducer->begin_micro_batch();
    reducer->end_micro_batch();
    const auto step =
        reducer->finish({}, std::vector<double>(1), now() + std::chrono::milliseconds(20));
    ASSERT_FALSE(step.has_value());
    EXPECT_EQ(step.error().code, Code::kRestart);
    EXPECT_NE(step.error().message.find("rank 1"), std::string::npos) << step.error().message;
    gang.lose(0);
    has_ended = true;
    has_ended.notify_all();
  });
}

int differing(const std::vector<float>& a, const std::vector<float>& b) {
  int count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += testing::same(a[i], b[i]) ? 0 : 1;
  return count;
}

// The planted changes of the promise: each must be visible in the bits, or equal bits would prove
// nothing.
TEST(PlantedChange, OneMicroBatchOutOfPlaceIsSeen) {
  Expected expected({.gradient_elements = 40000, .micro_batches = 8, .seed = 23});
  std::swap(expected.vectors[2], expected.vectors[5]);
  EXPECT_GT(differing(reference_sum(expected.vectors), expected.sum), 4000);
}

TEST(PlantedChange, AddingInARingIsSeen) {
  const Expected expected({.gradient_elements = 40000, .micro_batches = 16, .seed = 29});
  std::vector<float> ring(expected.sum.size());
  for (const auto& vector : expected.vectors) {
    for (std::size_t i = 0; i < ring.size(); ++i) ring[i] += vector[i];
  }
  EXPECT_GT(differing(ring, expected.sum), 4000);
}

TEST(PlantedChange, OneMicroBatchDoubledIsSeen) {
  Expected expected({.gradient_elements = 1000, .micro_batches = 8, .seed = 31});
  expected.vectors[3] = expected.vectors[4];
  EXPECT_GT(differing(reference_sum(expected.vectors), expected.sum), 900);
}

TEST(FastReducer, GivesTheSumUpToRounding) {
  const Expected expected(
      {.gradient_elements = 30000, .buffer_elements = 10, .micro_batches = 7, .seed = 37});
  for (int ranks : {1, 2, 3}) {
    const ReducerOptions options = options_for(expected.numbers, places(ranks, ranks), 1);
    on_all_ranks(ranks, [&](LocalGang&, Communicator& communicator) {
      const auto reducer = make_fast_reducer(communicator, options);
      const TreeNode own = micro_batches_of(communicator.rank(), ranks, 7);
      for (int step = 0; step < 2; ++step) {
        reducer->begin_step();
        for (int m = own.begin; m < own.end; ++m) {
          const auto& vector = expected.vectors[static_cast<std::size_t>(m)];
          const std::span<float> buffer = reducer->begin_micro_batch();
          ASSERT_TRUE(std::all_of(buffer.begin(), buffer.end(), [](float f) { return f == 0; }));
          std::copy(vector.begin(), vector.end(), buffer.begin());
          reducer->end_micro_batch();
        }
        const auto result = reducer->finish({.bits = 4U << communicator.rank()},
                                            losses_of(expected, own), now() + kLongEnough);
        ASSERT_TRUE(result.has_value());
        EXPECT_EQ(result->control, (4U << ranks) - 4);
        EXPECT_TRUE(testing::same(result->loss_sum, expected.loss_sum));
        EXPECT_NEAR(result->square_sum, expected.square_sum, 1e-4 * expected.square_sum);
        for (std::size_t i = 0; i < expected.sum.size(); ++i)
          ASSERT_NEAR(reducer->sum()[i], expected.sum[i], 1e-2);
      }
    });
  }
}

TEST(Share, CoversEveryElementOnceOnEachNode) {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    for (int ranks_per_node = 1; ranks_per_node <= ranks; ++ranks_per_node) {
      const std::vector<Place> where = places(ranks, ranks_per_node);
      const Ranges ranges(
          options_for({.gradient_elements = 50000, .buffer_elements = 4500}, where, 1));
      std::vector<std::vector<int>> owners(
          static_cast<std::size_t>(where.back().node + 1),
          std::vector<int>(static_cast<std::size_t>(ranges.elements())));
      for (int rank = 0; rank < ranks; ++rank) {
        for (const ElementRange& range : ranges.share(rank)) {
          EXPECT_EQ(range.begin % kBlockElements, 0);
          for (std::int64_t i = range.begin; i < range.end; ++i) {
            ++owners[static_cast<std::size_t>(where[static_cast<std::size_t>(rank)].node)]
                    [static_cast<std::size_t>(i)];
          }
        }
      }
      for (const auto& node : owners)
        EXPECT_TRUE(std::all_of(node.begin(), node.end(), [](int n) { return n == 1; }));
    }
  }
}

TEST(Share, IsTheRanksOwnRangesOnOneNodeSoThatNothingIsSentBack) {
  const Ranges ranges(options_for({.gradient_elements = 60000}, places(3, 3), 1));
  for (int rank = 0; rank < 3; ++rank) {
    for (int bucket = 0; bucket < ranges.bucket_count(); ++bucket) {
      for (int owner = 0; owner < 3; ++owner) {
        const ElementRange range = ranges.range(bucket, owner);
        const std::vector<ElementRange> share = ranges.share(rank);
        const bool has_it = std::any_of(share.begin(), share.end(), [&](ElementRange part) {
          return part.begin <= range.begin && range.begin < part.end;
        });
        EXPECT_EQ(has_it, owner == rank &&
                              range.begin < std::min<std::int64_t>(range.end, ranges.elements()));
      }
    }
  }
}

TEST(SquareSum, EqualsTheReferenceAtAllSizesAroundLanesAndBlocks) {
  for (std::int64_t elements : {0, 1, 15, 16, 17, 4095, 4096, 4097, 12289, 50000}) {
    const Expected expected({.gradient_elements = elements, .seed = 41});
    const std::span<const float> gradient =
        std::span(expected.sum).first(static_cast<std::size_t>(elements));
    EXPECT_TRUE(testing::same(square_sum(gradient), expected.square_sum)) << elements;
  }
}

}  // namespace
}  // namespace surefoot
