#include "collectives/device_reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cmath>
#include <set>
#include <thread>

#include "collectives/reduction_tree.h"
#include "collectives/testing/host_access.h"
#include "collectives/testing/host_stream.h"
#include "collectives/testing/reducer_check.h"

namespace surefoot {
namespace {

using testing::check_step;
using testing::Expected;
using testing::HostStream;
using testing::HostStreamAccess;
using testing::kLongEnough;
using testing::losses_of;
using testing::on_all_ranks;
using testing::options_for;
using testing::places;
using testing::StepNumbers;
using Late = HostStream::Late;

#ifdef __SANITIZE_THREAD__
constexpr int kSweepStride = 9;
#else
constexpr int kSweepStride = 1;
#endif
constexpr std::array kFormats{NumberFormat::kFp32, NumberFormat::kBf16};

std::unique_ptr<Reducer> make(Communicator& communicator, DeviceStream& stream,
                              const ReducerOptions& options) {
  auto reducer = make_device_reducer(communicator, stream, options, now() + kLongEnough);
  EXPECT_TRUE(reducer.has_value()) << reducer.error().message;
  return std::move(reducer).value();
}

// Both queues late in turn, two steps in a row, so that what the first leaves behind would show.
void expect_reference_bits(const StepNumbers& numbers, int ranks, std::int64_t bucket_elements) {
  StepNumbers second = numbers;
  second.seed += 1000;
  const Expected first_step(numbers);
  const Expected second_step(second);
  const ReducerOptions options = options_for(numbers, places(ranks, ranks), bucket_elements);
  on_all_ranks(ranks, [&](LocalGang&, Communicator& communicator) {
    for (Late late : {Late::kExchange, Late::kComputation}) {
      HostStream stream(communicator, {.late = late});
      HostStreamAccess access(stream);
      const auto reducer = make(communicator, stream, options);
      check_step(*reducer, communicator.rank(), ranks, first_step, 1, access);
      check_step(*reducer, communicator.rank(), ranks, second_step, 2, access);
    }
  });
}

TEST(DeviceReducer, GivesTheReferencesBitsForAllRanksUpTo16AndMicroBatchesUpTo64) {
  for (NumberFormat format : kFormats) {
    const int stride = format == NumberFormat::kFp32 ? kSweepStride : 3 * kSweepStride;
    for (int micro_batches = 1; micro_batches <= 64; micro_batches += stride) {
      const Expected expected({.gradient_elements = 5000,
                               .buffer_elements = 77,
                               .micro_batches = micro_batches,
                               .seed = 7,
                               .communicate_in = format});
      for (int ranks = 1; ranks <= std::min(16, micro_batches); ++ranks) {
        on_all_ranks(ranks, [&](LocalGang&, Communicator& communicator) {
          HostStream stream(communicator, {.late = micro_batches % 2 == 0 ? Late::kExchange
                                                                          : Late::kComputation});
          HostStreamAccess access(stream);
          const auto reducer =
              make(communicator, stream, options_for(expected.numbers, places(ranks, ranks), 1));
          check_step(*reducer, communicator.rank(), ranks, expected, 3, access);
        });
        ASSERT_FALSE(HasFailure()) << "ranks " << ranks << ", micro-batches " << micro_batches;
      }
    }
  }
}

TEST(DeviceReducer, GivesTheReferencesBitsAtAllSizesAroundBlockAndBucketBorders) {
  for (NumberFormat format : kFormats) {
    for (int ranks : {1, 2, 3, 5}) {
      const std::int64_t bucket = 2 * ranks * kBlockElements;
      for (std::int64_t gradient :
           {std::int64_t{0}, std::int64_t{1}, kBlockElements - 1, kBlockElements,
            kBlockElements + 1, bucket - 1, bucket, bucket + 1, 3 * bucket + 17}) {
        for (std::int64_t buffers : {std::int64_t{0}, std::int64_t{1}, kBlockElements}) {
          expect_reference_bits({.gradient_elements = gradient,
                                 .buffer_elements = buffers,
                                 .micro_batches = 7,
                                 .seed = 11,
                                 .communicate_in = format},
                                ranks, bucket);
          ASSERT_FALSE(HasFailure())
              << ranks << " ranks, gradient " << gradient << ", buffers " << buffers;
        }
      }
    }
  }
}

TEST(DeviceReducer, GivesTheReferencesBitsWhateverTheBucketSize) {
  for (NumberFormat format : kFormats) {
    for (std::int64_t bucket : {std::int64_t{1}, std::int64_t{20000}, std::int64_t{1} << 20}) {
      for (std::int64_t buffers : {0, 300, 30000}) {
        expect_reference_bits({.gradient_elements = 70000,
                               .buffer_elements = buffers,
                               .micro_batches = 9,
                               .seed = 5,
                               .communicate_in = format},
                              4, bucket);
      }
    }
  }
}

TEST(DeviceReducer, AddsInfinitiesNotANumbersDenormalsAndSignedZerosLikeTheReference) {
  for (NumberFormat format : kFormats) {
    for (int ranks : {1, 2, 3, 4}) {
      expect_reference_bits({.gradient_elements = 20000,
                             .buffer_elements = 5000,
                             .micro_batches = 6,
                             .seed = 17,
                             .special_values = true,
                             .communicate_in = format},
                            ranks, 1);
    }
  }
}

TEST(DeviceReducer, GivesWhatTheTreeReducerGives) {
  const Expected expected(
      {.gradient_elements = 60001, .buffer_elements = 900, .micro_batches = 13, .seed = 19});
  for (int ranks : {1, 2, 3, 6, 13}) {
    on_all_ranks(ranks, [&](LocalGang&, Communicator& communicator) {
      const ReducerOptions options = options_for(expected.numbers, places(ranks, 1), 30000);
      HostStream stream(communicator);
      HostStreamAccess access(stream);
      const auto device = make(communicator, stream, options);
      const auto host = make_tree_reducer(communicator, options);
      check_step(*device, communicator.rank(), ranks, expected, 1, access);
      check_step(*host, communicator.rank(), ranks, expected, 1);
      ASSERT_EQ(device->share(), host->share());
      ASSERT_EQ(device->buffer_begin(), host->buffer_begin());
      const std::vector<float> sum = access.read(device->sum());
      ASSERT_TRUE(std::equal(sum.begin(), sum.end(), host->sum().begin(), host->sum().end(),
                             [](float a, float b) { return testing::same(a, b); }));
    });
  }
}

TEST(DeviceReducer, Bf16ChangesTheGradientAndNotTheBuffers) {
  StepNumbers numbers{.gradient_elements = 5000, .buffer_elements = 5000, .micro_batches = 4};
  const Expected wide(numbers);
  numbers.communicate_in = NumberFormat::kBf16;
  const Expected narrow(numbers);
  int changed = 0;
  for (std::size_t i = 0; i < 5000; ++i) changed += wide.sum[i] != narrow.sum[i] ? 1 : 0;
  EXPECT_GT(changed, 4000);
  EXPECT_TRUE(std::equal(wide.sum.begin() + 2 * kBlockElements, wide.sum.end(),
                         narrow.sum.begin() + 2 * kBlockElements));
}

TEST(DeviceReducer, EveryRankHasTheWholeVectorWhateverTheNodes) {
  on_all_ranks(4, [&](LocalGang&, Communicator& communicator) {
    HostStream stream(communicator);
    const auto reducer =
        make(communicator, stream,
             options_for({.gradient_elements = 50000, .buffer_elements = 10, .micro_batches = 4},
                         places(4, 2), 1));
    EXPECT_EQ(reducer->share(), (std::vector<ElementRange>{{0, 13 * kBlockElements + 10}}));
  });
}

TEST(DeviceReducer, HandsOutNoMoreBuffersThanItSays) {
  const Expected expected({.gradient_elements = 10, .micro_batches = 13});
  on_all_ranks(3, [&](LocalGang&, Communicator& communicator) {
    HostStream stream(communicator);
    const auto reducer = make(communicator, stream, options_for(expected.numbers, places(3, 3), 1));
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

// Passes everything on, and notes a call from a thread that is not the rank's.
class OneThread final : public Communicator {
 public:
  explicit OneThread(Communicator& communicator) : communicator_(communicator) {}
  [[nodiscard]] int rank() const override { return communicator_.rank(); }
  [[nodiscard]] int size() const override { return communicator_.size(); }
  Request send(std::span<const std::byte> bytes, int to, int tag) override {
    return check().send(bytes, to, tag);
  }
  Request receive(std::span<std::byte> bytes, int from, int tag) override {
    return check().receive(bytes, from, tag);
  }
  bool test(std::span<const Request> requests) override { return check().test(requests); }
  Status wait(std::span<const Request> requests, Time deadline, std::string_view what) override {
    return check().wait(requests, deadline, what);
  }
  Status all_reduce_sum(std::span<float> values, Time deadline) override {
    return check().all_reduce_sum(values, deadline);
  }

 private:
  Communicator& check() {
    EXPECT_EQ(std::this_thread::get_id(), owner_);
    return communicator_;
  }
  Communicator& communicator_;
  const std::thread::id owner_ = std::this_thread::get_id();
};

TEST(DeviceReducer, IsToldFromAnotherThreadWithoutTouchingTheCommunicator) {
  const Expected expected({.gradient_elements = 100000, .micro_batches = 6, .seed = 3});
  on_all_ranks(2, [&](LocalGang&, Communicator& local) {
    OneThread communicator(local);
    HostStream stream(communicator);
    const auto reducer = make(communicator, stream, options_for(expected.numbers, places(2, 2), 1));
    const TreeNode own = micro_batches_of(communicator.rank(), 2, 6);
    reducer->begin_step();
    for (int m = own.begin; m < own.end; ++m) {
      const std::span<float> buffer = reducer->begin_micro_batch();
      std::copy_n(expected.vectors[static_cast<std::size_t>(m)].begin(), 100000, buffer.begin());
      std::thread backward([&] {
        for (std::int64_t at = 90000; at >= 0; at -= 10000) reducer->ready({at, at + 10000});
      });
      backward.join();
      reducer->end_micro_batch();
    }
    const auto step = reducer->finish({}, losses_of(expected, own), now() + kLongEnough);
    ASSERT_TRUE(step.has_value()) << step.error().message;
    EXPECT_TRUE(testing::same(step->square_sum, expected.square_sum));
  });
}

// One micro-batch each and nothing is reported: only end_micro_batch and finish.
void run_empty_step(Reducer& reducer, int micro_batches) {
  reducer.begin_step();
  for (int m = 0; m < micro_batches; ++m) {
    (void)reducer.begin_micro_batch();
    reducer.end_micro_batch();
  }
}

TEST(DeviceReducer, NamesTheRankThatDiedInTheMiddleOfAStep) {
  const Expected expected({.gradient_elements = 50000, .micro_batches = 6});
  std::barrier after_first_step(3);
  on_all_ranks(3, [&](LocalGang& gang, Communicator& communicator) {
    HostStream stream(communicator);
    HostStreamAccess access(stream);
    const auto reducer = make(communicator, stream, options_for(expected.numbers, places(3, 3), 1));
    check_step(*reducer, communicator.rank(), 3, expected, 1, access);
    after_first_step.arrive_and_wait();
    if (communicator.rank() == 1) return gang.lose(1);
    run_empty_step(*reducer, 2);
    const auto step = reducer->finish({}, std::vector<double>(2), now() + kLongEnough);
    ASSERT_FALSE(step.has_value());
    EXPECT_EQ(step.error().code, Code::kRestart);
    EXPECT_NE(step.error().message.find("rank 1"), std::string::npos) << step.error().message;
    gang.lose(communicator.rank());
  });
}

// Says of a passed deadline what NCCL says: nothing about ranks.
class Tongueless final : public DeviceStream {
 public:
  explicit Tongueless(DeviceStream& stream) : stream_(stream) {}
  Result<void*> allocate(MemoryOf memory, std::int64_t bytes, std::string_view what) override {
    return stream_.allocate(memory, bytes, what);
  }
  Result<int> prepare(const Tree& tree) override { return stream_.prepare(tree); }
  void enqueue(Queue queue, const Work& work) override { stream_.enqueue(queue, work); }
  void order(Queue first, Queue then) override { stream_.order(first, then); }
  Status wait(Time deadline, std::string_view what) override {
    if (stream_.wait(deadline, what)) return {};
    return error(Code::kRestart, "not done in time: {}", what);
  }

 private:
  DeviceStream& stream_;
};

TEST(DeviceReducer, NamesTheRankThatIsLateThoughTheStreamCannot) {
  const Expected expected({.gradient_elements = 50000, .micro_batches = 3});
  std::barrier all_here(3);
  std::barrier all_done(3);
  on_all_ranks(3, [&](LocalGang& gang, Communicator& communicator) {
    HostStream stream(communicator);
    Tongueless tongueless(stream);
    const auto reducer =
        make(communicator, tongueless, options_for(expected.numbers, places(3, 3), 1));
    run_empty_step(*reducer, 1);
    all_here.arrive_and_wait();
    // Rank 1 computes for ever; rank 2 waits for it as rank 0 does.
    if (communicator.rank() != 1) {
      const auto step =
          reducer->finish({}, std::vector<double>(1), now() + std::chrono::seconds(1));
      ASSERT_FALSE(step.has_value());
      EXPECT_EQ(step.error().code, Code::kRestart);
      EXPECT_NE(step.error().message.find("rank 1"), std::string::npos) << step.error().message;
      EXPECT_EQ(step.error().message.find("rank 0"), std::string::npos) << step.error().message;
      EXPECT_EQ(step.error().message.find("rank 2"), std::string::npos) << step.error().message;
    }
    all_done.arrive_and_wait();
    gang.lose(communicator.rank());
  });
}

TEST(DeviceReducer, IsRefusedOnAllRanksWhenTheDeviceOfOneIsTooSmall) {
  on_all_ranks(3, [&](LocalGang&, Communicator& communicator) {
    const std::int64_t bytes = communicator.rank() == 1 ? 100'000 : 1'000'000'000;
    HostStream stream(communicator, {.memory_bytes = bytes});
    const auto reducer = make_device_reducer(
        communicator, stream,
        options_for({.gradient_elements = 100000, .micro_batches = 3}, places(3, 3), 1),
        now() + kLongEnough);
    ASSERT_FALSE(reducer.has_value());
    EXPECT_EQ(reducer.error().code, Code::kNoSpace);
    EXPECT_NE(reducer.error().message.find("rank 1"), std::string::npos);
  });
}

// What it takes beyond the vectors stays bounded by buckets, whatever the model's size.
TEST(DeviceReducer, TakesTheMemoryThatItsHeaderSays) {
  constexpr std::int64_t kVector = 64 * 8 * kBlockElements, kBucket = 8 * kBlockElements;
  for (NumberFormat format : kFormats) {
    on_all_ranks(8, [&](LocalGang&, Communicator& communicator) {
      const std::int64_t staging = 7 * (kBucket / 8) * bytes_of(format);
      const std::int64_t packed = format == NumberFormat::kBf16 ? kBucket * 2 : 0;
      const std::int64_t norm = kVector / kBlockElements / 8 * 8;
      const std::int64_t needed = kVector * 4 + staging + packed + norm;
      for (const bool enough : {false, true}) {
        HostStream stream(communicator, {.memory_bytes = needed - (enough ? 0 : 1)});
        const auto reducer = make_device_reducer(
            communicator, stream,
            options_for(
                {.gradient_elements = kVector, .micro_batches = 8, .communicate_in = format},
                places(8, 8), kBucket),
            now() + kLongEnough);
        EXPECT_EQ(reducer.has_value(), enough);
      }
    });
  }
}

TEST(FastDeviceReducer, GivesTheSumUpToRounding) {
  for (NumberFormat format : kFormats) {
    const Expected expected(
        {.gradient_elements = 30000, .buffer_elements = 10, .micro_batches = 7, .seed = 37});
    StepNumbers numbers = expected.numbers;
    numbers.communicate_in = format;
    for (int ranks : {1, 2, 3, 7}) {
      for (std::int64_t bucket : {1, 1 << 20}) {
        const ReducerOptions options = options_for(numbers, places(ranks, ranks), bucket);
        on_all_ranks(ranks, [&](LocalGang&, Communicator& communicator) {
          HostStream stream(communicator, {.late = Late::kComputation});
          HostStreamAccess access(stream);
          auto made = make_fast_device_reducer(communicator, stream, options, now() + kLongEnough);
          ASSERT_TRUE(made.has_value()) << made.error().message;
          Reducer& reducer = **made;
          const TreeNode own = micro_batches_of(communicator.rank(), ranks, 7);
          for (int step = 0; step < 2; ++step) {
            reducer.begin_step();
            for (int m = own.begin; m < own.end; ++m) {
              const auto& vector = expected.vectors[static_cast<std::size_t>(m)];
              const std::span<float> buffer = reducer.begin_micro_batch();
              access.expect_zeros(buffer);
              access.write(buffer, std::span<const float>(vector));
              reducer.ready({20000, 30000});
              reducer.end_micro_batch();
            }
            const auto result = reducer.finish({.bits = 4U << communicator.rank()},
                                               losses_of(expected, own), now() + kLongEnough);
            ASSERT_TRUE(result.has_value());
            EXPECT_EQ(result->control, (4U << ranks) - 4);
            EXPECT_TRUE(testing::same(result->loss_sum, expected.loss_sum));
            const bool is_exact = format == NumberFormat::kFp32 || ranks == 1;
            EXPECT_NEAR(result->square_sum, expected.square_sum,
                        (is_exact ? 1e-4 : 2e-2) * expected.square_sum);
            const std::vector<float> sum = access.read(reducer.sum());
            double largest = 0;
            for (float value : expected.sum) largest = std::max(largest, std::abs(double{value}));
            for (std::size_t i = 0; i < sum.size(); ++i)
              ASSERT_NEAR(sum[i], expected.sum[i], largest * (is_exact ? 1e-6 : 2e-2));
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace surefoot
