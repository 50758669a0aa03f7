// The measurement with ranks as threads, on the device that the program is linked with
// (testing/test_device.h), and on streams that are slow or add up wrongly.
#include "worker/link_speed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "collectives/device_stream.h"
#include "collectives/local/local_communicator.h"
#include "worker/testing/test_device.h"

namespace surefoot {
namespace {

constexpr std::int64_t kBytes = 100'000;

Time soon() {
  return now() + std::chrono::seconds(30);
}

// A stream to which something is done after each all-reduce, or before each wait.
class Altered final : public DeviceStream {
 public:
  Altered(DeviceStream& stream, std::function<void(DeviceStream&, const AllReduce&)> after)
      : stream_(stream), after_(std::move(after)) {}
  Duration slower{};
  int in_a_row = 0;
  int most_in_a_row = 0;

  Result<void*> allocate(MemoryOf memory, std::int64_t bytes, std::string_view what) override {
    return stream_.allocate(memory, bytes, what);
  }
  Result<int> prepare(const Tree& tree) override { return stream_.prepare(tree); }
  void enqueue(Queue queue, const Work& work) override {
    stream_.enqueue(queue, work);
    most_in_a_row = std::max(most_in_a_row, ++in_a_row);
    if (after_) after_(stream_, std::get<AllReduce>(work));
  }
  void order(Queue first, Queue then) override { stream_.order(first, then); }
  Status wait(Time deadline, std::string_view what) override {
    std::this_thread::sleep_for(slower);
    in_a_row = 0;
    return stream_.wait(deadline, what);
  }

 private:
  DeviceStream& stream_;
  std::function<void(DeviceStream&, const AllReduce&)> after_;
};

struct Plan {
  int ranks = 2;
  std::int64_t bytes = kBytes;
  // Of rank 1, the others' are as they are.
  std::function<void(DeviceStream&, const AllReduce&)> after_all_reduce;
  Duration slower{};
};

struct Spent {
  double seconds = 0;
  int in_a_row = 0;  // all-reduces, at most
};

// By rank. `spent`: by rank 0 in all.
std::vector<Result<LinkSpeed>> measure(const Plan& plan, Spent* spent = nullptr) {
  LocalGang gang(plan.ranks);
  std::vector<Result<LinkSpeed>> results(static_cast<std::size_t>(plan.ranks),
                                         error(Code::kInvalid, "never ran"));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Communicator& communicator = gang.communicator(rank);
      const auto device = testing::make_test_device();
      const auto failed = [](const std::string& reason) { ADD_FAILURE() << reason; };
      auto stream = device->connect(communicator, {rank, 0, 1}, failed, soon());
      ASSERT_TRUE(stream) << stream.error().message;
      Altered altered(**stream, rank == 1 ? plan.after_all_reduce : nullptr);
      if (rank == 1) altered.slower = plan.slower;
      const Time begin = now();
      results[static_cast<std::size_t>(rank)] =
          measure_links(communicator, *device, altered, plan.bytes, soon());
      if (rank == 0 && spent != nullptr) *spent = {seconds(now() - begin), altered.most_in_a_row};
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(LinkSpeed, IsThatOfNcclsTests) {
  EXPECT_DOUBLE_EQ((LinkSpeed{2, 100, 0.5}.bus_bandwidth()), 200);
  EXPECT_DOUBLE_EQ((LinkSpeed{4, 100, 0.5}.bus_bandwidth()), 300);
}

TEST(LinkSpeed, IsMeasuredAndTheSameOnAllRanks) {
  for (const int ranks : {2, 3, 4}) {
    const auto results = measure({.ranks = ranks});
    for (const auto& result : results) {
      ASSERT_TRUE(result) << result.error().message;
      EXPECT_EQ(result->ranks, ranks);
      EXPECT_EQ(result->bytes, kBytes);
      EXPECT_GT(result->seconds, 0);
      EXPECT_EQ(result->seconds, results[0]->seconds);
    }
  }
}

TEST(LinkSpeed, IsThatOfTheSlowestRank) {
  constexpr auto kSlower = std::chrono::milliseconds(40);  // longer than a batch is to take
  for (const auto& result : measure({.slower = kSlower})) {
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_GE(result->seconds, seconds(kSlower));
  }
}

TEST(LinkSpeed, IsOfOneAllReduceOfManyInARow) {
  Spent spent;
  std::vector<Result<LinkSpeed>> results;
  // One that happens to take long, on a busy machine, is a batch of its own.
  for (int attempt = 0; attempt < 100 && spent.in_a_row < 2; ++attempt) {
    results = measure({.bytes = 400, .slower = std::chrono::milliseconds(1)}, &spent);
    ASSERT_TRUE(results[0]) << results[0].error().message;
  }
  EXPECT_GT(spent.in_a_row, 1);
  // Three of five batches took the median or longer.
  EXPECT_LT(3 * spent.in_a_row * results[0]->seconds, spent.seconds);
}

TEST(LinkSpeed, IsNoneWhereASumIsWrongAndAllRanksHearIt) {
  const auto wrong = [](DeviceStream& stream, const AllReduce& sum) {
    stream.enqueue(Queue::kExchange, Clear{static_cast<float*>(sum.values) + 5000, 1});
  };
  for (const auto& result : measure({.after_all_reduce = wrong})) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::kCorrupt);
    for (const char* word : {"rank 1", "element 5000"})
      EXPECT_NE(result.error().message.find(word), std::string::npos) << result.error().message;
  }
}

TEST(LinkSpeed, OfOneRankIsRefused) {
  EXPECT_EQ(measure({.ranks = 1})[0].error().code, Code::kInvalid);
}

}  // namespace
}  // namespace surefoot
