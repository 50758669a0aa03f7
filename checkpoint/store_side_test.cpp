// The service's dealings with its store, over a store in memory that reads badly: what a node may
// take back, what it does while it waits for others, and which slots stay.
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/arena_test_util.h"
#include "checkpoint/slot_holds.h"
#include "checkpoint/store_side.h"
#include "checkpoint/testing/memory_store.h"
#include "checkpoint/testing/small_state.h"

namespace surefoot::testing {
namespace {

// What one node sees of the store that all share.
class View : public Store {
 public:
  struct Faults {
    std::string misread;         // the payload of this object comes back with a flipped bit
    int times = 0;               // ... so often
    std::int64_t put_bytes = 0;  // taken from the sources of parts
  };
  View(MemoryStore& store, Faults& faults) : store_(store), faults_(faults) {}
  Status put_if_absent(const std::string& name, std::int64_t bytes, const ByteSource& source,
                       Time deadline) override {
    const ByteSource counted = [&]() -> Result<std::span<const std::byte>> {
      auto piece = source();
      if (piece && parse_name(name)) faults_.put_bytes += static_cast<std::int64_t>(piece->size());
      return piece;
    };
    return store_.put_if_absent(name, bytes, counted, deadline);
  }
  Status read(const std::string& name, std::int64_t offset, std::span<std::byte> into,
              Time deadline) override {
    SUREFOOT_TRY(store_.read(name, offset, into, deadline));
    if (name == faults_.misread && offset > 0 && faults_.times > 0) {
      --faults_.times;
      into[0] ^= std::byte{1};
    }
    return {};
  }
  Result<std::vector<ObjectInfo>> list(const std::string& prefix, Time deadline) override {
    return store_.list(prefix, deadline);
  }
  Status remove(const std::string& name, Time deadline) override {
    return store_.remove(name, deadline);
  }
  [[nodiscard]] std::string url() const override { return store_.url(); }

 private:
  MemoryStore& store_;
  Faults& faults_;
};

constexpr std::int64_t kRows = 30'000;  // two chunks: one for each node

class SideTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto spec = test_spec(layout.bytes);
    auto made = Arena::create(folder.path() / "arena", spec);
    ASSERT_TRUE(made) << made.error().message;
    arena = std::move(*made);
    slot = publish_step(*arena, 1, 10, true);
  }
  [[nodiscard]] UploadTask task(int part, int of) const {
    CheckpointIdentity identity = identity_of(SmallState{layout, {}, {}}, 10, 1);
    return {arena, slot, identity, part, of};
  }
  [[nodiscard]] StoreSide side(View::Faults& faults) {
    return {[this, &faults]() -> Result<std::unique_ptr<Store>> {
              return std::unique_ptr<Store>(std::make_unique<View>(store, faults));
            },
            "0123456789abcdef", "t", Retention(1), nullptr};
  }
  [[nodiscard]] bool has(const std::string& name) const {
    const auto names = store.names();
    return std::find(names.begin(), names.end(), name) != names.end();
  }

  const StateLayout layout = small_layout(kRows);
  const std::string manifest = manifest_name(Step{10});
  const std::string part0 = part_name(Step{10}, Attempt{1}, 0, 2);
  const std::string part1 = part_name(Step{10}, Attempt{1}, 1, 2);
  TemporaryFolder folder;
  std::shared_ptr<Arena> arena;
  int slot = -1;
  MemoryStore store;
  View::Faults faults_of_0;
  View::Faults faults_of_1;
  StoreSide node0 = side(faults_of_0);
  StoreSide node1 = side(faults_of_1);
};

TEST_F(SideTest, ABadReadIsReadOnceMore) {
  ASSERT_EQ(node0.upload(task(0, 2), {}).outcome, UploadOutcome::kWaiting);
  faults_of_1 = {part0, 1};
  EXPECT_EQ(node1.upload(task(1, 2), {}).outcome, UploadOutcome::kDurable);
}

TEST_F(SideTest, ANodeThatReadsBadlyRemovesNothingOfOthers) {
  ASSERT_EQ(node0.upload(task(0, 2), {}).outcome, UploadOutcome::kWaiting);
  faults_of_1 = {part0, 1000};
  const UploadResult bad = node1.upload(task(1, 2), {});
  EXPECT_EQ(bad.outcome, UploadOutcome::kWaiting) << bad.reason;
  ASSERT_EQ(bad.notes.size(), 1U);
  EXPECT_NE(bad.notes[0].find(part0), std::string::npos) << bad.notes[0];
  EXPECT_TRUE(has(manifest) && has(part0) && has(part1));
  EXPECT_EQ(node0.upload(task(0, 2), {}).outcome, UploadOutcome::kDurable);
}

TEST_F(SideTest, ANodeTakesItsOwnDamagedPartBackAndWritesItAgain) {
  ASSERT_EQ(node0.upload(task(0, 2), {}).outcome, UploadOutcome::kWaiting);
  faults_of_1 = {part1, 1000};
  const UploadResult bad = node1.upload(task(1, 2), {});
  EXPECT_EQ(bad.outcome, UploadOutcome::kFailed) << bad.reason;
  EXPECT_FALSE(bad.part_stored);
  EXPECT_FALSE(has(manifest));
  EXPECT_FALSE(has(part1));
  EXPECT_TRUE(has(part0)) << "it is another node's";
  faults_of_1.times = 0;
  EXPECT_EQ(node1.upload(task(1, 2), {}).outcome, UploadOutcome::kDurable);
  EXPECT_TRUE(has(manifest) && has(part0) && has(part1));
}

TEST_F(SideTest, WhatIsGivenUpAtTheEndLeavesOtherSetsAlone) {
  // Two nodes have made a checkpoint of the last step; its end is stored whole, by one.
  ASSERT_EQ(node0.upload(task(0, 2), {}).outcome, UploadOutcome::kWaiting);
  ASSERT_EQ(node1.upload(task(1, 2), {}).outcome, UploadOutcome::kDurable);
  const auto removed = node0.remove_part(task(0, 1), {});
  EXPECT_TRUE(removed) << removed.error().message;
  EXPECT_TRUE(has(manifest) && has(part0) && has(part1));
  EXPECT_EQ(node0.remove_part(task(0, 2), {}).error().code, Code::kExists) << "it is good";
  EXPECT_TRUE(has(manifest) && has(part0) && has(part1));
}

TEST_F(SideTest, WhileItWaitsForOthersANodeWritesNothing) {
  const UploadResult first = node0.upload(task(0, 2), {});
  ASSERT_EQ(first.outcome, UploadOutcome::kWaiting);
  ASSERT_TRUE(first.part_stored);
  const std::int64_t written = faults_of_0.put_bytes;
  EXPECT_GT(written, 0);
  UploadTask again = task(0, 2);
  again.part_stored = true;
  EXPECT_EQ(node0.upload(again, {}).outcome, UploadOutcome::kWaiting);
  EXPECT_EQ(faults_of_0.put_bytes, written);
  ASSERT_EQ(node1.upload(task(1, 2), {}).outcome, UploadOutcome::kDurable);
  EXPECT_EQ(node0.upload(again, {}).outcome, UploadOutcome::kDurable);
}

// ---- slots that are kept

TEST_F(SideTest, ASlotIsKeptUntilTheLastThatHoldsItLetsGo) {
  const int other = publish_step(*arena, 1, 11);
  SlotHolds holds;
  ASSERT_TRUE(holds.hold(*arena, other));
  ASSERT_TRUE(holds.hold(*arena, other));
  holds.let_go(*arena, other, Attempt{1}, Step{11});
  EXPECT_TRUE(arena->slot(other).pinned);
  holds.let_go(*arena, other, Attempt{1}, Step{11});
  EXPECT_FALSE(arena->slot(other).pinned);
  EXPECT_FALSE(holds.contains(other));
}

TEST_F(SideTest, ACheckpointStaysPinnedUntilItIsStored) {
  SlotHolds holds;
  ASSERT_TRUE(holds.hold(*arena, slot));
  holds.let_go(*arena, slot, Attempt{1}, Step{10});
  EXPECT_TRUE(arena->slot(slot).pinned);
  // Stored while it is held: the pin is the holder's from then on.
  ASSERT_TRUE(holds.hold(*arena, slot));
  holds.release(*arena, slot);
  EXPECT_TRUE(arena->slot(slot).pinned);
  holds.let_go(*arena, slot, Attempt{1}, Step{10});
  EXPECT_FALSE(arena->slot(slot).pinned);
}

TEST_F(SideTest, WhoeverHeldABadCopyDoesNotUnpinWhatCameAfterIt) {
  SlotHolds holds;
  ASSERT_TRUE(holds.hold(*arena, slot));
  ASSERT_TRUE(holds.hold(*arena, slot));
  holds.discard(*arena, slot);
  std::int64_t step = 11;
  while (publish_step(*arena, 1, step, true) != slot) ++step;
  holds.let_go(*arena, slot, Attempt{1}, Step{10});
  EXPECT_TRUE(arena->slot(slot).pinned);
}

}  // namespace
}  // namespace surefoot::testing
