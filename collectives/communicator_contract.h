// What every Communicator must do, as one suite for all adapters. An adapter's test program
// includes this, defines a Gang, and says INSTANTIATE_TYPED_TEST_SUITE_P(Name,
// CommunicatorContract, Gang). A Gang has
//   static std::vector<int> sizes();   // the numbers of ranks it can bring up
//   // Runs body on every rank.
//   static void run(int ranks, const std::function<void(Communicator&)>& body);
// Assertions hold on every rank; `run` must make a failure on any of them fail the program.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "collectives/collectives.h"
#include "collectives/communicator.h"
#include "collectives/ring_gather.h"
#include "collectives/testing/reducer_check.h"

namespace surefoot {

template <class Gang>
class CommunicatorContract : public ::testing::Test {
 protected:
  static void on_all_sizes(const std::function<void(Communicator&)>& body) {
    for (int ranks : Gang::sizes()) Gang::run(ranks, body);
  }
  static Time soon() { return now() + testing::kLongEnough; }
  static std::vector<std::byte> pattern(std::size_t size, int seed) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i)
      bytes[i] =
          static_cast<std::byte>((i * 31 + i / 256 + static_cast<std::size_t>(seed) * 7) & 255);
    return bytes;
  }
  // Everybody sends `size` bytes to everybody, itself included, and checks what comes.
  static void exchange(Communicator& communicator, std::size_t size, int tag) {
    const int me = communicator.rank();
    std::vector<std::vector<std::byte>> sent, received;
    std::vector<Request> requests;
    for (int peer = 0; peer < communicator.size(); ++peer) {
      sent.push_back(pattern(size, me * 100 + peer));
      received.emplace_back(size);
    }
    for (int peer = 0; peer < communicator.size(); ++peer) {
      requests.push_back(communicator.receive(received[static_cast<std::size_t>(peer)], peer, tag));
      requests.push_back(communicator.send(sent[static_cast<std::size_t>(peer)], peer, tag));
    }
    const Status status = communicator.wait(requests, soon(), "the exchange");
    ASSERT_TRUE(status.has_value()) << status.error().message;
    for (int peer = 0; peer < communicator.size(); ++peer) {
      ASSERT_EQ(received[static_cast<std::size_t>(peer)], pattern(size, peer * 100 + me));
    }
  }
};
TYPED_TEST_SUITE_P(CommunicatorContract);

TYPED_TEST_P(CommunicatorContract, CarriesBytesBetweenAllPairsAndToItself) {
  this->on_all_sizes([](Communicator& communicator) {
    for (std::size_t size : {0, 1, 7, 4096, 4097, 100000})
      TestFixture::exchange(communicator, size, 3);
    TestFixture::exchange(communicator, 10, 0);
    TestFixture::exchange(communicator, 10, kFirstReservedTag - 1);
  });
}

TYPED_TEST_P(CommunicatorContract, Carries64MiBInOneMessage) {
  this->on_all_sizes([](Communicator& communicator) {
    const std::size_t size = std::size_t{64} << 20;
    const int me = communicator.rank();
    const int to = (me + 1) % communicator.size();
    const int from = (me + communicator.size() - 1) % communicator.size();
    const std::vector<std::byte> sent = TestFixture::pattern(size, me);
    std::vector<std::byte> received(size);
    const std::array requests{communicator.send(sent, to, 1),
                              communicator.receive(received, from, 1)};
    const Status status = communicator.wait(requests, TestFixture::soon(), "64 MiB");
    ASSERT_TRUE(status.has_value()) << status.error().message;
    ASSERT_TRUE(received == TestFixture::pattern(size, from));
  });
}

TYPED_TEST_P(CommunicatorContract, KeepsTheOrderOfMessagesWithEqualTags) {
  this->on_all_sizes([](Communicator& communicator) {
    constexpr int kCount = 300;
    const int me = communicator.rank();
    const int to = (me + 1) % communicator.size();
    const int from = (me + communicator.size() - 1) % communicator.size();
    // Large ones between small ones, as these may take another way.
    const auto size_of = [](int i) { return static_cast<std::size_t>(i % 7 == 0 ? 20000 : 2); };
    std::vector<std::vector<int>> sent, received;
    std::vector<Request> requests;
    for (int i = 0; i < kCount; ++i) {
      sent.emplace_back(size_of(i), me * kCount + i);
      received.emplace_back(size_of(i));
    }
    for (int i = 0; i < kCount; ++i) {
      const auto at = static_cast<std::size_t>(i);
      requests.push_back(communicator.send(std::as_bytes(std::span(sent[at])), to, 5));
    }
    for (int i = 0; i < kCount; ++i) {
      const auto at = static_cast<std::size_t>(i);
      requests.push_back(
          communicator.receive(std::as_writable_bytes(std::span(received[at])), from, 5));
    }
    const Status status = communicator.wait(requests, TestFixture::soon(), "many messages");
    ASSERT_TRUE(status.has_value()) << status.error().message;
    for (int i = 0; i < kCount; ++i) {
      const auto& got = received[static_cast<std::size_t>(i)];
      ASSERT_EQ(got, std::vector<int>(got.size(), from * kCount + i));
    }
  });
}

TYPED_TEST_P(CommunicatorContract, KeepsTagsApartWhateverTheOrderOfTheReceives) {
  this->on_all_sizes([](Communicator& communicator) {
    const int to = (communicator.rank() + 1) % communicator.size();
    const int from = (communicator.rank() + communicator.size() - 1) % communicator.size();
    std::array<int, 50> sent{}, received{};
    std::iota(sent.begin(), sent.end(), 1000);
    std::vector<Request> requests;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      requests.push_back(
          communicator.send(std::as_bytes(std::span(&sent[i], 1)), to, static_cast<int>(i)));
    }
    for (std::size_t i = sent.size(); i-- > 0;) {
      requests.push_back(communicator.receive(std::as_writable_bytes(std::span(&received[i], 1)),
                                              from, static_cast<int>(i)));
    }
    ASSERT_TRUE(communicator.wait(requests, TestFixture::soon(), "tagged messages").has_value());
    EXPECT_EQ(received, sent);
  });
}

TYPED_TEST_P(CommunicatorContract, TestTellsWhenARequestIsCompleteAndWaitingTwiceIsHarmless) {
  this->on_all_sizes([](Communicator& communicator) {
    EXPECT_TRUE(communicator.test({}));
    int sent = 42, received = 0;
    const std::array receive{communicator.receive(std::as_writable_bytes(std::span(&received, 1)),
                                                  communicator.rank(), 9)};
    EXPECT_FALSE(communicator.test(receive));
    const std::array send{
        communicator.send(std::as_bytes(std::span(&sent, 1)), communicator.rank(), 9)};
    const Time deadline = TestFixture::soon();
    while (!communicator.test(receive) && now() < deadline) communicator.progress();
    EXPECT_EQ(received, 42);
    EXPECT_TRUE(communicator.wait(receive, deadline, "itself").has_value());
    EXPECT_TRUE(communicator.wait(send, deadline, "itself").has_value());
    EXPECT_TRUE(communicator.test(receive));
    EXPECT_TRUE(communicator.wait(receive, deadline, "itself").has_value());
    EXPECT_TRUE(communicator.wait(std::array{Request{}}, deadline, "nothing").has_value());
  });
}

// The only place that goes on after a passed deadline, to end in step: the adapters allow it while
// the buffers live.
TYPED_TEST_P(CommunicatorContract, ADeadlineNamesTheRanksThatAreMissingAndNoOthers) {
  this->on_all_sizes([](Communicator& communicator) {
    const int ranks = communicator.size();
    const int first_missing = ranks == 1 ? 0 : ranks == 2 ? 1 : 2;
    const int me = communicator.rank();
    int value = me, go = 0;
    std::vector<int> values(static_cast<std::size_t>(ranks), -1);
    if (me != 0) {
      if (me >= first_missing) {
        const std::array told{
            communicator.receive(std::as_writable_bytes(std::span(&go, 1)), 0, 8)};
        ASSERT_TRUE(communicator.wait(told, TestFixture::soon(), "the word to go").has_value());
      }
      const std::array sent{communicator.send(std::as_bytes(std::span(&value, 1)), 0, 7)};
      ASSERT_TRUE(communicator.wait(sent, TestFixture::soon(), "rank 0").has_value());
      return;
    }
    std::vector<Request> requests;
    for (int rank = ranks == 1 ? 0 : 1; rank < ranks; ++rank) {
      requests.push_back(communicator.receive(
          std::as_writable_bytes(std::span(&values[static_cast<std::size_t>(rank)], 1)), rank, 7));
    }
    const Time deadline = TestFixture::soon();
    while (ranks > 2 && !communicator.test(std::span(requests).first(1)) && now() < deadline)
      communicator.progress();
    const Status late =
        communicator.wait(requests, now() + std::chrono::milliseconds(20), "a test's values");
    ASSERT_FALSE(late.has_value());
    EXPECT_EQ(late.error().code, Code::kRestart);
    for (int rank = 0; rank < ranks; ++rank) {
      const bool is_named =
          late.error().message.find("rank " + std::to_string(rank)) != std::string::npos;
      EXPECT_EQ(is_named, rank >= first_missing) << rank << ": " << late.error().message;
    }
    EXPECT_NE(late.error().message.find("a test's values"), std::string::npos);
    std::vector<Request> rest = requests;
    for (int rank = first_missing; rank < ranks; ++rank) {
      rest.push_back(communicator.send(std::as_bytes(std::span(rank == 0 ? &value : &go, 1)), rank,
                                       rank == 0 ? 7 : 8));
    }
    ASSERT_TRUE(communicator.wait(rest, TestFixture::soon(), "the late ones").has_value());
    for (int rank = 1; rank < ranks; ++rank)
      EXPECT_EQ(values[static_cast<std::size_t>(rank)], rank);
  });
}

TYPED_TEST_P(CommunicatorContract, AllReduceGivesTheSameSumOnEveryRank) {
  this->on_all_sizes([](Communicator& communicator) {
    for (std::size_t size : {0, 1, 5000, 300000}) {
      std::vector<float> values(size);
      for (std::size_t i = 0; i < size; ++i)
        values[i] = static_cast<float>((static_cast<int>(i) % 100) * (communicator.rank() + 1));
      ASSERT_TRUE(communicator.all_reduce_sum(values, TestFixture::soon()).has_value());
      const int sum_of_ranks = communicator.size() * (communicator.size() + 1) / 2;
      for (std::size_t i = 0; i < size; ++i)
        ASSERT_EQ(values[i], static_cast<float>((static_cast<int>(i) % 100) * sum_of_ranks));
    }
  });
}

TYPED_TEST_P(CommunicatorContract, AllGatherBringsEveryRanksBytesToAll) {
  this->on_all_sizes([](Communicator& communicator) {
    for (int round = 0; round < 20; ++round) {
      const std::string mine(static_cast<std::size_t>(communicator.rank() * 1000 + round),
                             static_cast<char>('a' + communicator.rank()));
      const auto all = all_gather(communicator, mine, TestFixture::soon(), "the names");
      ASSERT_TRUE(all.has_value()) << all.error().message;
      ASSERT_EQ(static_cast<int>(all->size()), communicator.size());
      for (int rank = 0; rank < communicator.size(); ++rank) {
        ASSERT_EQ((*all)[static_cast<std::size_t>(rank)],
                  std::string(static_cast<std::size_t>(rank * 1000 + round),
                              static_cast<char>('a' + rank)));
      }
    }
  });
}

TYPED_TEST_P(CommunicatorContract, BroadcastBringsTheRootsBytesToAll) {
  this->on_all_sizes([](Communicator& communicator) {
    for (int root = 0; root < communicator.size(); ++root) {
      const std::string mine =
          communicator.rank() == root
              ? std::string(static_cast<std::size_t>(root) * 70000, 'x') + "end"
              : "not this";
      const auto got = broadcast(communicator, mine, root, TestFixture::soon(), "the plan");
      ASSERT_TRUE(got.has_value()) << got.error().message;
      ASSERT_EQ(*got, std::string(static_cast<std::size_t>(root) * 70000, 'x') + "end");
    }
  });
}

TYPED_TEST_P(CommunicatorContract, AnErrorOnOneRankIsThatErrorOnAll) {
  this->on_all_sizes([](Communicator& communicator) {
    EXPECT_TRUE(agree(communicator, {}, TestFixture::soon(), "start").has_value());
    const int last = communicator.size() - 1;
    const Status mine =
        communicator.rank() == last ? Status(error(Code::kNoSpace, "no room")) : Status();
    const Status all = agree(communicator, mine, TestFixture::soon(), "start");
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code, Code::kNoSpace);
    EXPECT_EQ(all.error().message, "rank " + std::to_string(last) + ": no room");
    // Of several the lowest rank's, so that all say the same.
    const Status several =
        agree(communicator, error(Code::kInvalid, "from {}", communicator.rank()),
              TestFixture::soon(), "start");
    ASSERT_FALSE(several.has_value());
    EXPECT_EQ(several.error().message, "rank 0: from 0");
  });
}

TYPED_TEST_P(CommunicatorContract, TheReductionGivesTheReferencesBitsWhereverTheRanksAre) {
  const testing::Expected first(
      {.gradient_elements = 150000, .buffer_elements = 4100, .micro_batches = 11, .seed = 3});
  const testing::Expected second({.gradient_elements = 150000,
                                  .buffer_elements = 4100,
                                  .micro_batches = 11,
                                  .seed = 4,
                                  .special_values = true});
  this->on_all_sizes([&](Communicator& communicator) {
    const int ranks = communicator.size();
    for (int ranks_per_node = 1; ranks_per_node <= ranks; ++ranks_per_node) {
      const ReducerOptions options = testing::options_for(
          first.numbers, testing::places(ranks, ranks_per_node), 4 * kBlockElements);
      auto connected = connect_tree_reducer(communicator, options, TestFixture::soon());
      ASSERT_TRUE(connected.has_value()) << connected.error().message;
      const auto messages_only = make_tree_reducer(communicator, options);
      for (Reducer* reducer : {connected->get(), messages_only.get()}) {
        for (std::uint64_t step = 0; step < 6; ++step) {
          testing::check_step(*reducer, communicator.rank(), ranks, step % 2 == 0 ? first : second,
                              step);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  });
}

// Uneven parts, empty ones too, in pieces that do not fit them evenly; ranks in any order.
TYPED_TEST_P(CommunicatorContract, ARingGatherBringsEveryPartToAllInTheRing) {
  this->on_all_sizes([](Communicator& communicator) {
    const int ranks = communicator.size();
    for (int variant = 0; variant < 4; ++variant) {
      RingGather gather;
      gather.piece_bytes = 1000;
      gather.borders = {0};
      for (int position = 0; position < ranks; ++position) {
        gather.ring.push_back((position + variant) % ranks);
        // Variant 0: the first has everything, as in a broadcast.
        const bool all = variant == 0 && position == 0;
        const bool none = (variant == 0 && position > 0) || (variant == 1 && position == 1);
        gather.borders.push_back(gather.borders.back() + (all    ? 150'000
                                                          : none ? 0
                                                                 : 70'000 + 1'234 * position));
      }
      const auto me = static_cast<std::size_t>((communicator.rank() - variant + 2 * ranks) % ranks);
      const std::vector<std::byte> whole =
          TestFixture::pattern(static_cast<std::size_t>(gather.borders.back()), variant);
      std::vector<std::byte> block(whole.size());
      const std::int64_t begin = gather.borders[me];
      const std::int64_t end = gather.borders[me + 1];
      std::copy(whole.begin() + begin, whole.begin() + end, block.begin() + begin);
      std::int64_t came = 0;
      const Status status = ring_gather(
          communicator, gather, block,
          [&](std::int64_t from, std::int64_t to) {
            came += to - from;
            EXPECT_TRUE(std::equal(whole.begin() + from, whole.begin() + to, block.begin() + from));
          },
          TestFixture::soon(), "the state");
      ASSERT_TRUE(status.has_value()) << status.error().message;
      EXPECT_EQ(came, static_cast<std::int64_t>(whole.size()) - (end - begin));
      ASSERT_EQ(block, whole);
    }
  });
}

REGISTER_TYPED_TEST_SUITE_P(CommunicatorContract, CarriesBytesBetweenAllPairsAndToItself,
                            Carries64MiBInOneMessage, KeepsTheOrderOfMessagesWithEqualTags,
                            KeepsTagsApartWhateverTheOrderOfTheReceives,
                            TestTellsWhenARequestIsCompleteAndWaitingTwiceIsHarmless,
                            ADeadlineNamesTheRanksThatAreMissingAndNoOthers,
                            AllReduceGivesTheSameSumOnEveryRank,
                            AllGatherBringsEveryRanksBytesToAll, BroadcastBringsTheRootsBytesToAll,
                            AnErrorOnOneRankIsThatErrorOnAll,
                            ARingGatherBringsEveryPartToAllInTheRing,
                            TheReductionGivesTheReferencesBitsWhereverTheRanksAre);

}  // namespace surefoot
