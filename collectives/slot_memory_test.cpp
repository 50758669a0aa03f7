// Memory shared between ranks of a node: who is believed to be a peer.
#include "collectives/slot_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "collectives/collectives.h"
#include "collectives/testing/places.h"
#include "collectives/testing/reducer_check.h"
#include "common/file.h"

namespace surefoot {
namespace {

constexpr std::int64_t kElements = 1000;
constexpr std::int64_t kBytes = 2 * kElements * 4 + 64;  // two slots, then the mark

// As slot_memory.cpp has it.
struct Offer {
  std::uint64_t mark = 0;
  std::int64_t bytes = 0;
  std::int32_t pid = 0;
  std::int32_t fd = -1;
};

Result<SlotMemory> connect(Communicator& communicator) {
  return SlotMemory::connect(communicator, testing::places(2, 2), 2, kElements,
                             now() + testing::kLongEnough);
}

TEST(SlotMemory, RanksOfANodeSeeEachOthersSlots) {
  testing::on_all_ranks(2, [](LocalGang&, Communicator& communicator) {
    auto memory = connect(communicator);
    ASSERT_TRUE(memory) << memory.error().message;
    const int me = communicator.rank();
    const int other = 1 - me;
    EXPECT_TRUE(memory->sees(other));
    EXPECT_TRUE(memory->is_seen_by(other));
    EXPECT_FALSE(memory->sees(me));
    memory->slot(1)[7] = static_cast<float>(me + 1);
    const Time deadline = now() + testing::kLongEnough;
    ASSERT_TRUE(agree(communicator, {}, deadline, "written"));
    EXPECT_EQ(memory->slot_of(other, 1)[7], static_cast<float>(other + 1));
    ASSERT_TRUE(agree(communicator, {}, deadline, "read"));
  });
}

// A pid of another namespace can name a process here whose descriptor of that number is memory of
// the same size, of a second job say. Rank 1 offers such memory; `mark` is what lies at its end.
bool is_believed(std::uint64_t offered, std::uint64_t mark) {
  bool believed = false;
  testing::on_all_ranks(2, [&](LocalGang&, Communicator& communicator) {
    if (communicator.rank() == 0) {
      auto memory = connect(communicator);
      ASSERT_TRUE(memory) << memory.error().message;
      believed = memory->sees(1);
      EXPECT_FALSE(memory->is_seen_by(1));
      return;
    }
    const Time deadline = now() + testing::kLongEnough;
    const Fd fd(::memfd_create("other", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(fd.get(), kBytes), 0);
    ASSERT_EQ(::pwrite(fd.get(), &mark, sizeof mark, kBytes - 64),
              static_cast<ssize_t>(sizeof mark));
    ASSERT_TRUE(agree(communicator, {}, deadline, "memory shared on a node"));
    const Offer offer{offered, kBytes, ::getpid(), fd.get()};
    const std::string_view bytes(reinterpret_cast<const char*>(&offer), sizeof offer);
    ASSERT_TRUE(all_gather(communicator, bytes, deadline, "memory shared on a node"));
    ASSERT_TRUE(all_gather(communicator, "nn", deadline, "memory shared on a node"));
  });
  return believed;
}

TEST(SlotMemory, MemoryWithAnotherMarkIsNoPeers) {
  EXPECT_TRUE(is_believed(0x1234567890abcdef, 0x1234567890abcdef));
  EXPECT_FALSE(is_believed(0x1234567890abcdef, 0x1234567890abcdee));
  EXPECT_FALSE(is_believed(0x1234567890abcdef, 0));
}

}  // namespace
}  // namespace surefoot
