#include "collectives/testing/host_stream.h"

#include <gtest/gtest.h>

#include "collectives/device_stream_contract.h"
#include "collectives/testing/host_access.h"

namespace surefoot {
namespace {

using testing::HostStream;
using testing::HostStreamAccess;

template <HostStream::Late late>
struct Threads {
  static std::vector<int> sizes() { return {1, 2, 3, 4}; }
  static void run(int ranks, const std::function<void(DeviceRank&)>& body) {
    testing::on_all_ranks(ranks, [&](LocalGang&, Communicator& communicator) {
      HostStream stream(communicator, {.late = late});
      HostStreamAccess access(stream);
      DeviceRank rank{communicator, stream, access};
      body(rank);
    });
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(LateExchange, DeviceStreamContract,
                               Threads<HostStream::Late::kExchange>);
INSTANTIATE_TYPED_TEST_SUITE_P(LateComputation, DeviceStreamContract,
                               Threads<HostStream::Late::kComputation>);

// What the double is for: without order() the results are wrong.
struct OneRank {
  explicit OneRank(HostStream::Late late)
      : stream(gang.communicator(0), {.late = late}), access(stream) {
    values = static_cast<float*>(*stream.allocate(MemoryOf::kDevice, 4, "a test"));
    copy = static_cast<float*>(*stream.allocate(MemoryOf::kHost, 4, "a test"));
  }
  void write(float value) { access.write(std::span(values, 1), std::span<const float>(&value, 1)); }
  float copied() {
    EXPECT_TRUE(stream.wait(now() + testing::kLongEnough, "a test").has_value());
    return *copy;
  }
  LocalGang gang{1};
  HostStream stream;
  HostStreamAccess access;
  float* values = nullptr;
  float* copy = nullptr;
};

TEST(HostStream, ShowsAnExchangeThatIsNotOrderedAfterComputation) {
  OneRank rank(HostStream::Late::kComputation);
  rank.write(1);
  rank.stream.enqueue(Queue::kExchange, CopyToHost{rank.values, rank.copy, 4});
  EXPECT_EQ(rank.copied(), 0);
  rank.stream.order(Queue::kComputation, Queue::kExchange);
  rank.stream.enqueue(Queue::kExchange, CopyToHost{rank.values, rank.copy, 4});
  EXPECT_EQ(rank.copied(), 1);
}

TEST(HostStream, ShowsComputationThatIsNotOrderedAfterTheExchange) {
  OneRank rank(HostStream::Late::kExchange);
  rank.write(1);
  rank.stream.order(Queue::kComputation, Queue::kExchange);
  rank.stream.enqueue(Queue::kExchange, CopyToHost{rank.values, rank.copy, 4});
  rank.write(2);
  EXPECT_EQ(rank.copied(), 2);
  rank.stream.enqueue(Queue::kExchange, CopyToHost{rank.values, rank.copy, 4});
  rank.stream.order(Queue::kExchange, Queue::kComputation);
  rank.write(3);
  EXPECT_EQ(rank.copied(), 2);
  EXPECT_EQ(rank.access.read(std::span<const float>(rank.values, 1)).front(), 3);
}

TEST(HostStream, HasNoMoreMemoryThanItWasGiven) {
  LocalGang gang(1);
  HostStream stream(gang.communicator(0), {.memory_bytes = 1000});
  EXPECT_TRUE(stream.allocate(MemoryOf::kDevice, 600, "one").has_value());
  const auto second = stream.allocate(MemoryOf::kDevice, 500, "another");
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Code::kNoSpace);
}

}  // namespace
}  // namespace surefoot
