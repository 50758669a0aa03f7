#include "collectives/local/local_communicator.h"

#include <gtest/gtest.h>

#include "collectives/communicator_contract.h"

namespace surefoot {
namespace {

struct Threads {
  static std::vector<int> sizes() { return {1, 2, 3, 4}; }
  static void run(int ranks, const std::function<void(Communicator&)>& body) {
    testing::on_all_ranks(ranks,
                          [&](LocalGang&, Communicator& communicator) { body(communicator); });
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Local, CommunicatorContract, Threads);

TEST(LocalGang, ALostRankEndsTheWaitsOfAllOthersAndIsNamed) {
  testing::on_all_ranks(3, [](LocalGang& gang, Communicator& communicator) {
    if (communicator.rank() == 2) return gang.lose(2);
    // Rank 0 waits for rank 1, which itself waits for the lost one.
    int value = 0;
    const std::array request{communicator.receive(std::as_writable_bytes(std::span(&value, 1)),
                                                  communicator.rank() + 1, 1)};
    const Status status = communicator.wait(request, now() + testing::kLongEnough, "a value");
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, Code::kRestart);
    EXPECT_NE(status.error().message.find("rank 2"), std::string::npos) << status.error().message;
  });
}

TEST(RingGather, NamesTheRankThatDoesNotCome) {
  testing::on_all_ranks(3, [](LocalGang& gang, Communicator& communicator) {
    if (communicator.rank() == 1) return gang.lose(1);
    RingGather gather;
    gather.ring = {0, 1, 2};
    gather.borders = {0, 3000, 3000, 3000};
    gather.piece_bytes = 1000;
    std::vector<std::byte> block(3000);
    const Status status = ring_gather(
        communicator, gather, block, [](std::int64_t, std::int64_t) {},
        now() + testing::kLongEnough, "the state");
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, Code::kRestart);
    EXPECT_NE(status.error().message.find("rank 1"), std::string::npos) << status.error().message;
  });
}

TEST(LocalGang, NothingOfALostRankIsDelivered) {
  LocalGang gang(2);
  {
    const std::vector<std::byte> gone(100, std::byte{1});
    (void)gang.communicator(0).send(gone, 1, 1);
    gang.lose(0);
  }
  std::vector<std::byte> received(100);
  const std::array request{gang.communicator(1).receive(received, 0, 1)};
  EXPECT_FALSE(
      gang.communicator(1).wait(request, now() + testing::kLongEnough, "bytes").has_value());
}

}  // namespace
}  // namespace surefoot
