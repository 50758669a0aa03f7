// What every DeviceStream must do, as one suite for all adapters. An adapter's test program
// includes this, defines a Gang, and says INSTANTIATE_TYPED_TEST_SUITE_P(Name,
// DeviceStreamContract, Gang). A Gang has
//   static std::vector<int> sizes();   // the numbers of ranks it can bring up
//   static void run(int ranks, const std::function<void(DeviceRank&)>& body);   // body on every
//   rank
// Assertions hold on every rank; `run` must make a failure on any of them fail the program.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "collectives/collectives.h"
#include "collectives/device_reducer.h"
#include "collectives/device_stream.h"
#include "collectives/reduction_tree.h"
#include "collectives/reference.h"
#include "collectives/testing/reducer_check.h"

namespace surefoot {

struct DeviceRank {
  Communicator& communicator;
  DeviceStream& stream;
  testing::DeviceAccess& access;
};

template <class Gang>
class DeviceStreamContract : public ::testing::Test {
 protected:
  static void on_all_sizes(const std::function<void(DeviceRank&)>& body) {
    for (int ranks : Gang::sizes()) Gang::run(ranks, body);
  }
  static Time soon() { return now() + testing::kLongEnough; }

  template <class T>
  static std::span<T> take(DeviceRank& rank, std::size_t count) {
    auto memory = rank.stream.allocate(MemoryOf::kDevice,
                                       static_cast<std::int64_t>(count * sizeof(T)), "a test");
    EXPECT_TRUE(memory.has_value()) << memory.error().message;
    return {static_cast<T*>(*memory), count};
  }
  template <class T>
  static std::span<T> put(DeviceRank& rank, const std::vector<T>& values) {
    const std::span<T> memory = take<T>(rank, values.size());
    rank.access.write(memory, std::span<const T>(values));
    return memory;
  }
  // After everything enqueued.
  template <class T>
  static std::vector<T> get(DeviceRank& rank, std::span<T> from) {
    const Status done = rank.stream.wait(soon(), "a test");
    EXPECT_TRUE(done.has_value()) << done.error().message;
    return rank.access.read(std::span<const T>(from));
  }
  // What computation has done comes before the exchange enqueued from here on.
  static void follow(DeviceRank& rank) { rank.stream.order(Queue::kComputation, Queue::kExchange); }
  static std::vector<float> numbers(std::size_t count, std::uint64_t seed, bool special = true) {
    const testing::Expected made({.gradient_elements = static_cast<std::int64_t>(count),
                                  .seed = seed,
                                  .special_values = special});
    std::vector<float> values = made.vectors.front();
    values.resize(count);
    return values;
  }
  static void expect_same(const std::vector<float>& got, const std::vector<float>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_TRUE(testing::same(got[i], expected[i]))
          << i << ": " << got[i] << " instead of " << expected[i];
  }
};
TYPED_TEST_SUITE_P(DeviceStreamContract);

TYPED_TEST_P(DeviceStreamContract, HandsOutZeroedAlignedMemoryAndSaysWhenThereIsNone) {
  this->on_all_sizes([](DeviceRank& rank) {
    for (std::size_t count : {1, 63, 5000}) {
      const std::span<float> memory = TestFixture::template take<float>(rank, count);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 256, 0u);
      EXPECT_EQ(TestFixture::get(rank, memory), std::vector<float>(count));
      auto host = rank.stream.allocate(MemoryOf::kHost, static_cast<std::int64_t>(count), "a test");
      ASSERT_TRUE(host.has_value()) << host.error().message;
    }
    const auto none = rank.stream.allocate(MemoryOf::kDevice, std::int64_t{1} << 50, "the moon");
    ASSERT_FALSE(none.has_value());
    EXPECT_EQ(none.error().code, Code::kNoSpace);
    EXPECT_NE(none.error().message.find("the moon"), std::string::npos) << none.error().message;
    EXPECT_NE(none.error().message.find("1125899906842624"), std::string::npos)
        << none.error().message;
    // It goes on.
    EXPECT_EQ(TestFixture::get(rank, TestFixture::put(rank, std::vector<float>{7})),
              std::vector<float>{7});
  });
}

TYPED_TEST_P(DeviceStreamContract, ClearsOnEitherQueueWhatIsAskedForAndNoMore) {
  this->on_all_sizes([](DeviceRank& rank) {
    for (Queue queue : {Queue::kComputation, Queue::kExchange}) {
      const std::span<float> memory = TestFixture::put(rank, std::vector<float>(10000, 3.0F));
      TestFixture::follow(rank);
      rank.stream.enqueue(queue, Clear{memory.data() + 1, 9001});
      rank.stream.order(Queue::kExchange, Queue::kComputation);
      const std::vector<float> got = TestFixture::get(rank, memory);
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], 1 <= i && i < 9002 ? 0.0F : 3.0F) << i;
    }
  });
}

TYPED_TEST_P(DeviceStreamContract, AddsUpAChainOfSlotsAndLeavesTheOthersClean) {
  this->on_all_sizes([](DeviceRank& rank) {
    constexpr std::size_t kCount = 9001;
    for (NumberFormat format : {NumberFormat::kFp32, NumberFormat::kBf16}) {
      for (int slots : {2, 3, 7}) {
        for (Queue queue : {Queue::kComputation, Queue::kExchange}) {
          AddUp work{.elements = kCount, .format = format};
          std::vector<std::vector<float>> values;
          std::vector<std::span<float>> memory;
          for (int slot = 0; slot < slots; ++slot) {
            values.push_back(TestFixture::numbers(kCount, static_cast<std::uint64_t>(slot + 1)));
            memory.push_back(TestFixture::put(rank, values.back()));
            work.slots.push_back(memory.back().data());
          }
          TestFixture::follow(rank);
          rank.stream.enqueue(queue, work);
          rank.stream.order(Queue::kExchange, Queue::kComputation);
          const bool rounds = format == NumberFormat::kBf16;
          std::vector<float> sum = values.back();
          for (std::size_t slot = values.size() - 1; slot-- > 0;) {
            for (std::size_t i = 0; i < kCount; ++i) {
              const float left = rounds ? reference_bf16(values[slot][i]) : values[slot][i];
              const float right = rounds ? reference_bf16(sum[i]) : sum[i];
              sum[i] = rounds ? reference_bf16(left + right) : left + right;
            }
          }
          TestFixture::expect_same(TestFixture::get(rank, memory[0]), sum);
          for (std::size_t slot = 1; slot < memory.size(); ++slot)
            TestFixture::expect_same(TestFixture::get(rank, memory[slot]),
                                     std::vector<float>(kCount));
        }
      }
    }
  });
}

TYPED_TEST_P(DeviceStreamContract, PacksToTheNearestBf16AndUnpacksIt) {
  this->on_all_sizes([](DeviceRank& rank) {
    // Ordinary and special numbers, and the ties on both sides of even.
    std::vector<float> values = TestFixture::numbers(9001, 5);
    for (std::uint32_t bits : {0x3F808000U, 0x3F818000U, 0x3F808001U, 0x3F807FFFU, 0x7F7F8000U,
                               0x7F7F7FFFU, 0x00008000U, 0x80008001U, 0x7F800001U, 0xFFFFFFFFU})
      values.push_back(std::bit_cast<float>(bits));
    const auto count = static_cast<std::int64_t>(values.size());
    const auto from = TestFixture::put(rank, values);
    const auto packed = TestFixture::template take<kernel::Bf16>(rank, values.size());
    const auto to = TestFixture::template take<float>(rank, values.size());
    TestFixture::follow(rank);
    rank.stream.enqueue(Queue::kExchange, Pack{from.data(), packed.data(), count});
    rank.stream.enqueue(Queue::kExchange, Unpack{packed.data(), to.data(), count});
    std::vector<float> expected;
    for (float value : values) expected.push_back(reference_bf16(value));
    TestFixture::expect_same(TestFixture::get(rank, to), expected);
  });
}

// Messages of many sizes, several between each pair, in the order given.
TYPED_TEST_P(DeviceStreamContract, ExchangesMessagesBetweenAllPairs) {
  this->on_all_sizes([](DeviceRank& rank) {
    const int me = rank.communicator.rank();
    const int ranks = rank.communicator.size();
    const std::array<std::size_t, 5> sizes{1, 7, 4096, 100000, 2};
    const auto pattern = [&](int from, int to, std::size_t i) {
      return std::vector<std::uint8_t>(sizes[i],
                                       static_cast<std::uint8_t>(from * 50 + to * 10 + int(i)));
    };
    for (int round = 0; round < 3; ++round) {
      Exchange exchange;
      std::vector<std::pair<std::span<std::uint8_t>, std::vector<std::uint8_t>>> expected;
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == me) continue;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          const auto bytes = static_cast<std::int64_t>(sizes[i]);
          exchange.sends.push_back(
              {peer, TestFixture::put(rank, pattern(me, peer, i)).data(), bytes});
          const auto into = TestFixture::template take<std::uint8_t>(rank, sizes[i]);
          exchange.receives.push_back({peer, into.data(), bytes});
          expected.emplace_back(into, pattern(peer, me, i));
        }
      }
      TestFixture::follow(rank);
      rank.stream.enqueue(Queue::kExchange, exchange);
      for (const auto& [into, values] : expected) ASSERT_EQ(TestFixture::get(rank, into), values);
    }
  });
}

// Some ranks only send, some only receive.
TYPED_TEST_P(DeviceStreamContract, ExchangesInOneDirectionOnly) {
  this->on_all_sizes([](DeviceRank& rank) {
    const int me = rank.communicator.rank();
    const int ranks = rank.communicator.size();
    Exchange exchange;
    const auto memory = TestFixture::put(rank, std::vector<float>(1000, static_cast<float>(me)));
    if (me == 0 && ranks > 1) exchange.sends.push_back({ranks - 1, memory.data(), 4000});
    if (me == ranks - 1 && ranks > 1) exchange.receives.push_back({0, memory.data(), 4000});
    TestFixture::follow(rank);
    rank.stream.enqueue(Queue::kExchange, exchange);
    ASSERT_EQ(TestFixture::get(rank, memory),
              std::vector<float>(1000, static_cast<float>(me == ranks - 1 ? 0 : me)));
  });
}

TYPED_TEST_P(DeviceStreamContract, FinishesATreeToTheReferencesBits) {
  this->on_all_sizes([](DeviceRank& rank) {
    constexpr std::size_t kBegin = kBlockElements, kEnd = 3 * kBlockElements;
    // {ranks that would have sent the roots, micro-batches}; the last has hundreds of roots.
    for (const auto& [parts, micro_batches] :
         {std::pair{1, 1}, {1, 5}, {2, 2}, {3, 8}, {5, 37}, {60, 130}}) {
      for (NumberFormat format : {NumberFormat::kFp32, NumberFormat::kBf16}) {
        for (NumberFormat to_format : {NumberFormat::kFp32, NumberFormat::kBf16}) {
          if (format == NumberFormat::kFp32 && to_format == NumberFormat::kBf16) continue;
          const std::size_t rounded = format == NumberFormat::kBf16 ? kEnd : 0;
          const StackSchedule schedule = stack_schedule(parts, micro_batches);
          Tree tree{.additions_after = schedule.additions_after,
                    .depth = schedule.depth,
                    .format = format};
          std::vector<std::vector<float>> leaves;
          for (int m = 0; m < micro_batches; ++m)
            leaves.push_back(TestFixture::numbers(kEnd, static_cast<std::uint64_t>(m + 1),
                                                  micro_batches <= 8));  // or all sums are NaN
          float* last_vector = nullptr;
          for (int part = 0; part < parts; ++part) {
            const TreeNode own = micro_batches_of(part, parts, micro_batches);
            for (const TreeNode& node : subtree_roots(own.begin, own.end, micro_batches)) {
              const std::vector<float> value =
                  reference_sum({leaves.begin() + node.begin, leaves.begin() + node.end}, rounded);
              if (part % 2 == 0) {
                last_vector = TestFixture::put(rank, value).data();
                tree.roots.push_back({last_vector, NumberFormat::kFp32, true});
                continue;
              }
              const std::vector<float> range(value.begin() + kBegin, value.end());
              if (format == NumberFormat::kFp32) {
                tree.roots.push_back({TestFixture::put(rank, range).data(), format, false});
                continue;
              }
              std::vector<kernel::Bf16> packed;
              for (float v : range) packed.push_back(kernel::to_bf16(v));
              tree.roots.push_back({TestFixture::put(rank, packed).data(), format, false});
            }
          }
          const auto name = rank.stream.prepare(tree);
          ASSERT_TRUE(name.has_value()) << name.error().message;
          const auto packed = TestFixture::template take<kernel::Bf16>(rank, kEnd - kBegin);
          const auto squares =
              TestFixture::template take<double>(rank, (kEnd - kBegin) / kBlockElements);
          // fp32 sums lie over an operand.
          const std::span<float> over(last_vector + kBegin, kEnd - kBegin);
          FinishTree work{*name, kBegin, kEnd, over.data(), to_format, squares.data()};
          if (to_format == NumberFormat::kBf16) work.to = packed.data();
          TestFixture::follow(rank);
          rank.stream.enqueue(Queue::kExchange, work);
          const std::vector<float> whole = reference_sum(leaves, rounded);
          const std::vector<float> sum(whole.begin() + kBegin, whole.end());
          std::vector<float> got;
          if (to_format == NumberFormat::kBf16) {
            for (kernel::Bf16 v : TestFixture::get(rank, packed))
              got.push_back(kernel::from_bf16(v));
          } else {
            got = TestFixture::get(rank, over);
          }
          TestFixture::expect_same(got, sum);
          const std::vector<double> got_squares = TestFixture::get(rank, squares);
          for (std::size_t block = 0; block < got_squares.size(); ++block) {
            const auto begin = sum.begin() + static_cast<std::ptrdiff_t>(block) * kBlockElements;
            ASSERT_TRUE(testing::same(
                got_squares[block],
                reference_square_sum({begin, begin + kBlockElements}, kBlockElements)));
          }
        }
      }
    }
  });
}

TYPED_TEST_P(DeviceStreamContract, GathersEqualUnequalAndEmptyParts) {
  this->on_all_sizes([](DeviceRank& rank) {
    const auto me = static_cast<std::size_t>(rank.communicator.rank());
    const auto ranks = static_cast<std::size_t>(rank.communicator.size());
    for (int variant = 0; variant < 3; ++variant) {
      std::vector<std::size_t> borders{0};
      for (std::size_t i = 0; i < ranks; ++i) {
        const std::size_t unequal = i % 3 == 1 ? 0 : 5000 * (i + 1) + i;
        borders.push_back(borders.back() + (variant == 0 ? 4096 : variant == 1 ? unequal : 1));
      }
      std::vector<float> mine(borders.back(), -1.0F), all(borders.back());
      for (std::size_t owner = 0; owner < ranks; ++owner) {
        for (std::size_t i = borders[owner]; i < borders[owner + 1]; ++i) {
          all[i] = static_cast<float>(i + owner);
          if (owner == me) mine[i] = all[i];
        }
      }
      const auto memory = TestFixture::put(rank, mine);
      Gather gather;
      for (std::size_t owner = 0; owner < ranks; ++owner)
        gather.parts.push_back(
            {memory.data() + borders[owner],
             static_cast<std::int64_t>(borders[owner + 1] - borders[owner]) * 4});
      TestFixture::follow(rank);
      rank.stream.enqueue(Queue::kExchange, gather);
      ASSERT_EQ(TestFixture::get(rank, memory), all) << "variant " << variant;
    }
  });
}

TYPED_TEST_P(DeviceStreamContract, AllReducesToTheSameSumOnEveryRank) {
  this->on_all_sizes([](DeviceRank& rank) {
    // Whole numbers so small that bf16 holds their sums.
    const int ranks = rank.communicator.size();
    std::vector<float> mine(30001), sum;
    std::vector<kernel::Bf16> packed;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      mine[i] = static_cast<float>(static_cast<int>(i % 10) * (rank.communicator.rank() + 1));
      sum.push_back(static_cast<float>(static_cast<int>(i % 10) * ranks * (ranks + 1) / 2));
      packed.push_back(kernel::to_bf16(mine[i]));
    }
    const auto count = static_cast<std::int64_t>(mine.size());
    const auto wide = TestFixture::put(rank, mine);
    const auto narrow = TestFixture::put(rank, packed);
    TestFixture::follow(rank);
    rank.stream.enqueue(Queue::kExchange, AllReduce{wide.data(), count, NumberFormat::kFp32});
    rank.stream.enqueue(Queue::kExchange, AllReduce{narrow.data(), count, NumberFormat::kBf16});
    ASSERT_EQ(TestFixture::get(rank, wide), sum);
    std::vector<float> got;
    for (kernel::Bf16 v : TestFixture::get(rank, narrow)) got.push_back(kernel::from_bf16(v));
    ASSERT_EQ(got, sum);
  });
}

TYPED_TEST_P(DeviceStreamContract, CopiesToTheHostBeforeTheWaitReturns) {
  this->on_all_sizes([](DeviceRank& rank) {
    const std::vector<double> values{1.5, -2.25, 1e300};
    const auto memory = TestFixture::put(rank, values);
    auto host = rank.stream.allocate(MemoryOf::kHost, 24, "a test");
    ASSERT_TRUE(host.has_value());
    TestFixture::follow(rank);
    rank.stream.enqueue(Queue::kExchange, CopyToHost{memory.data(), *host, 24});
    ASSERT_TRUE(rank.stream.wait(TestFixture::soon(), "a copy").has_value());
    const auto* const got = static_cast<const double*>(*host);
    EXPECT_EQ(std::vector<double>(got, got + 3), values);
  });
}

// Computation writes, the exchange sends it and adds to it, computation overwrites what was sent;
// again and again without a wait between.
TYPED_TEST_P(DeviceStreamContract, OrdersTheQueuesInBothDirections) {
  this->on_all_sizes([](DeviceRank& rank) {
    constexpr std::size_t kCount = 200000;
    constexpr int kRounds = 20;
    const int me = rank.communicator.rank();
    const int ranks = rank.communicator.size();
    const int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;
    const auto sent = TestFixture::template take<float>(rank, kCount);
    const auto sum = TestFixture::template take<float>(rank, kCount);
    const auto received = TestFixture::template take<float>(rank, kCount);
    const auto bytes = static_cast<std::int64_t>(kCount * sizeof(float));
    float expected = 0;
    for (int round = 1; round <= kRounds; ++round) {
      const std::vector<float> values(kCount, static_cast<float>(round * 10 + me));
      rank.access.write(sent, std::span<const float>(values));
      TestFixture::follow(rank);
      Exchange exchange;
      if (ranks > 1) {
        exchange.sends.push_back({to, sent.data(), bytes});
        exchange.receives.push_back({from, received.data(), bytes});
      }
      rank.stream.enqueue(Queue::kExchange, exchange);
      float* const added = ranks > 1 ? received.data() : sent.data();
      rank.stream.enqueue(Queue::kExchange,
                          AddUp{{sum.data(), added}, kCount, NumberFormat::kFp32});
      rank.stream.order(Queue::kExchange, Queue::kComputation);
      expected += static_cast<float>(round * 10 + from);
    }
    EXPECT_EQ(TestFixture::get(rank, sum), std::vector<float>(kCount, expected));
  });
}

// The only place that goes on after a passed deadline, to end in step.
TYPED_TEST_P(DeviceStreamContract, ADeadlineSaysWhatWasWaitedForAndTheWaitMayBeRepeated) {
  this->on_all_sizes([](DeviceRank& rank) {
    const int me = rank.communicator.rank();
    const int ranks = rank.communicator.size();
    if (ranks == 1) return;
    const auto memory = TestFixture::put(rank, std::vector<float>{static_cast<float>(me)});
    TestFixture::follow(rank);
    Exchange exchange;
    if (me == ranks - 1) exchange.sends.push_back({0, memory.data(), 4});
    if (me == 0) exchange.receives.push_back({ranks - 1, memory.data(), 4});
    if (me == 0) {
      rank.stream.enqueue(Queue::kExchange, exchange);
      const Time begun = now();
      const Status late = rank.stream.wait(begun + std::chrono::milliseconds(50), "a late value");
      ASSERT_FALSE(late.has_value());
      EXPECT_LT(now() - begun, std::chrono::seconds(5));
      EXPECT_EQ(late.error().code, Code::kRestart);
      EXPECT_NE(late.error().message.find("a late value"), std::string::npos)
          << late.error().message;
    }
    // The others come only now.
    const auto word = all_gather(rank.communicator, "", TestFixture::soon(), "the word to go");
    ASSERT_TRUE(word.has_value()) << word.error().message;
    if (me != 0) rank.stream.enqueue(Queue::kExchange, exchange);
    EXPECT_EQ(TestFixture::get(rank, memory),
              std::vector<float>{static_cast<float>(me == 0 ? ranks - 1 : me)});
  });
}

TYPED_TEST_P(DeviceStreamContract, TheReductionGivesTheReferencesBits) {
  for (NumberFormat format : {NumberFormat::kFp32, NumberFormat::kBf16}) {
    testing::StepNumbers numbers{.gradient_elements = 150000,
                                 .buffer_elements = 4100,
                                 .micro_batches = 11,
                                 .seed = 3,
                                 .communicate_in = format};
    const testing::Expected first(numbers);
    numbers.seed = 4;
    numbers.special_values = true;
    const testing::Expected second(numbers);
    this->on_all_sizes([&](DeviceRank& rank) {
      const int ranks = rank.communicator.size();
      for (std::int64_t bucket : {std::int64_t{1}, std::int64_t{1} << 20}) {
        const auto reducer = make_device_reducer(
            rank.communicator, rank.stream,
            testing::options_for(numbers, testing::places(ranks, ranks), bucket),
            TestFixture::soon());
        ASSERT_TRUE(reducer.has_value()) << reducer.error().message;
        for (std::uint64_t step = 0; step < 4; ++step) {
          testing::check_step(**reducer, rank.communicator.rank(), ranks,
                              step % 2 == 0 ? first : second, step, rank.access);
          if (::testing::Test::HasFailure()) return;
        }
      }
    });
  }
}

REGISTER_TYPED_TEST_SUITE_P(DeviceStreamContract, HandsOutZeroedAlignedMemoryAndSaysWhenThereIsNone,
                            ClearsOnEitherQueueWhatIsAskedForAndNoMore,
                            AddsUpAChainOfSlotsAndLeavesTheOthersClean,
                            PacksToTheNearestBf16AndUnpacksIt, ExchangesMessagesBetweenAllPairs,
                            ExchangesInOneDirectionOnly, FinishesATreeToTheReferencesBits,
                            GathersEqualUnequalAndEmptyParts, AllReducesToTheSameSumOnEveryRank,
                            CopiesToTheHostBeforeTheWaitReturns, OrdersTheQueuesInBothDirections,
                            ADeadlineSaysWhatWasWaitedForAndTheWaitMayBeRepeated,
                            TheReductionGivesTheReferencesBits);

}  // namespace surefoot
