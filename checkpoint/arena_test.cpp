#include "checkpoint/arena.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "checkpoint/arena_format.h"
#include "checkpoint/arena_test_util.h"

namespace surefoot {
namespace {

using namespace arena_format;

// Changes one byte of the file as a bad memory cell would.
void flip(const std::filesystem::path& folder, std::int64_t at, std::uint8_t mask) {
  Fd fd(::open((folder / "arena").c_str(), O_RDWR | O_CLOEXEC));
  std::uint8_t byte = 0;
  ASSERT_EQ(::pread(fd.get(), &byte, 1, at), 1);
  byte ^= mask;
  ASSERT_EQ(::pwrite(fd.get(), &byte, 1, at), 1);
}

TEST_F(ArenaTest, IsOpenedAsItWasMade) {
  auto other = Arena::open(folder_);
  ASSERT_TRUE(other) << other.error().message;
  EXPECT_EQ((*other)->spec().job_id, arena_->spec().job_id);
  EXPECT_EQ((*other)->spec().layout_digest, arena_->spec().layout_digest);
  EXPECT_EQ((*other)->spec().training_hash, arena_->spec().training_hash);
  EXPECT_EQ((*other)->spec().state_bytes, kStateBytes);
  EXPECT_FALSE((*other)->newest_ready());
  struct stat info {};
  ASSERT_EQ(::stat((folder_ / "arena").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(info.st_size, arena_->file_bytes());
  ASSERT_EQ(::stat(folder_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(ArenaTest, IsNotFoundWhereThereIsNone) {
  auto none = Arena::open(temporary_.path());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kNotFound);
}

TEST_F(ArenaTest, ShowsWhatAnotherMappingPublished) {
  const int slot = publish_step(*arena_, 2, 7, true);
  auto other = Arena::open(folder_);
  ASSERT_TRUE(other);
  const SlotInfo info = (*other)->slot(slot);
  EXPECT_EQ(info.state, SlotState::kReady);
  EXPECT_TRUE(info.pinned && info.checkpoint);
  EXPECT_EQ(info.attempt, Attempt{2});
  EXPECT_EQ(info.step, Step{7});
  EXPECT_EQ(info.samples, 70);
  EXPECT_EQ(info.digest, state_digest(arena_->chunk_digests(slot)));
  EXPECT_EQ((*other)->newest_ready(), slot);
  EXPECT_TRUE((*other)->verify(slot));
  (*other)->unpin(slot);
  EXPECT_FALSE(arena_->slot(slot).pinned);
  EXPECT_EQ(arena_->slot(slot).state, SlotState::kReady);
}

TEST_F(ArenaTest, RefusesAHeaderWithAnyFlippedByte) {
  for (std::int64_t at = 0; at < kPage; ++at) {
    for (const int mask : {1 << (at % 8), 0xFF}) {
      flip(folder_, at, static_cast<std::uint8_t>(mask));
      auto opened = Arena::open(folder_);
      ASSERT_FALSE(opened) << at;
      ASSERT_EQ(opened.error().code, Code::kCorrupt) << at;
      flip(folder_, at, static_cast<std::uint8_t>(mask));
    }
  }
  EXPECT_TRUE(Arena::open(folder_));
}

TEST_F(ArenaTest, RefusesAFileOfAnotherSize) {
  const auto path = folder_ / "arena";
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{100}, kPage,
                                   arena_->file_bytes() - 1, arena_->file_bytes() + 1}) {
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(bytes));
    auto opened = Arena::open(folder_);
    ASSERT_FALSE(opened) << bytes;
    EXPECT_EQ(opened.error().code, Code::kCorrupt);
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(arena_->file_bytes()));
    // The pages that were cut off are zero now, the header among them for the first sizes.
    auto again = Arena::create(folder_, test_spec(kStateBytes));
    ASSERT_TRUE(again);
    arena_ = std::move(*again);
  }
}

TEST_F(ArenaTest, KeepsANewTrainingHashWhereverTheChangeIsInterrupted) {
  std::ifstream before_file(folder_ / "arena", std::ios::binary);
  std::vector<char> before(2 * kPage);
  before_file.read(before.data(), 2 * kPage);
  arena_->set_training_hash(digest("other"));
  std::ifstream after_file(folder_ / "arena", std::ios::binary);
  std::vector<char> after(2 * kPage);
  after_file.read(after.data(), 2 * kPage);
  EXPECT_EQ(std::count(after.begin() + kPage, after.end(), 0), kPage);
  EXPECT_EQ((*Arena::open(folder_))->spec().training_hash, digest("other"));
  // The order of stores: new page into the copy, new page into the header, copy cleared.
  const std::vector<char> fresh(after.begin(), after.begin() + kPage);
  for (std::int64_t stores = 0; stores <= 3 * kPage; stores += 8) {
    std::vector<char> image = before;
    for (std::int64_t i = 0; i < stores; ++i) {
      if (i < kPage) image[kPage + i] = fresh[i];
      if (i >= kPage && i < 2 * kPage) image[i - kPage] = fresh[i - kPage];
      if (i >= 2 * kPage) image[i - kPage] = 0;
    }
    Fd fd(::open((folder_ / "arena").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), image.data(), image.size(), 0), 2 * kPage);
    auto opened = Arena::open(folder_);
    ASSERT_TRUE(opened) << stores << ": " << opened.error().message;
    const Digest hash = (*opened)->spec().training_hash;
    EXPECT_TRUE(hash == digest("training") || hash == digest("other"));
    EXPECT_TRUE(stores < 2 * kPage || hash == digest("other"));
  }
}

TEST_F(ArenaTest, NoticesThatItsFileWasRemovedOrReplaced) {
  EXPECT_FALSE(arena_->unlinked());
  std::filesystem::remove(folder_ / "arena");
  EXPECT_TRUE(arena_->unlinked());
  auto fresh = Arena::create(folder_, test_spec(kStateBytes));
  ASSERT_TRUE(fresh);
  EXPECT_TRUE(arena_->unlinked());
  EXPECT_FALSE((*fresh)->unlinked());
}

// --- slots ---

TEST(ChooseSlot, NeverTakesWhatIsNeededAndFindsOneWheneverThereIs) {
  // Every combination of state, step and pin for three slots, and of the slot to keep.
  std::vector<SlotInfo> kinds;
  for (const SlotState state : {SlotState::kFree, SlotState::kWriting, SlotState::kReady}) {
    for (const std::int64_t step : {1, 2, 3}) {
      for (const bool pinned : {false, true}) {
        if (pinned && state != SlotState::kReady) continue;
        SlotInfo info;
        info.state = state;
        info.step = Step{step};
        info.attempt = Attempt{1};
        info.pinned = pinned;
        kinds.push_back(info);
      }
    }
  }
  int cases = 0;
  for (const SlotInfo& a : kinds) {
    for (const SlotInfo& b : kinds) {
      for (const SlotInfo& c : kinds) {
        for (int keep = -1; keep < kSlots; ++keep) {
          const std::array<SlotInfo, kSlots> slots = {a, b, c};
          const auto chosen = choose_slot(slots, keep);
          ++cases;
          std::int64_t newest = -1;
          for (const SlotInfo& slot : slots) {
            if (slot.state == SlotState::kReady) newest = std::max(newest, slot.step.value);
          }
          int usable = 0;
          for (int i = 0; i < kSlots; ++i) usable += i != keep && !slots[i].pinned ? 1 : 0;
          if (!chosen) {
            // All usable slots hold the newest step: at most one of them.
            EXPECT_LE(usable, 1);
            continue;
          }
          const SlotInfo& taken = slots[*chosen];
          EXPECT_NE(*chosen, keep);
          EXPECT_FALSE(taken.pinned);
          if (taken.state != SlotState::kReady) continue;
          for (int i = 0; i < kSlots; ++i) {
            if (i == *chosen || i == keep || slots[i].pinned) continue;
            EXPECT_EQ(slots[i].state, SlotState::kReady);
          }
          // Some READY slot of the newest step is left.
          int left = 0;
          for (int i = 0; i < kSlots; ++i) {
            const bool newest_ready =
                slots[i].state == SlotState::kReady && slots[i].step.value == newest;
            left += i != *chosen && newest_ready ? 1 : 0;
          }
          EXPECT_GE(left, 1);
        }
      }
    }
  }
  EXPECT_EQ(cases, 12 * 12 * 12 * 4);
}

TEST_F(ArenaTest, KeepsTheNewestAndThePinnedAndReusesTheOldest) {
  const int pinned = publish_step(*arena_, 1, 1, true);
  const int second = publish_step(*arena_, 1, 2);
  const int third = publish_step(*arena_, 1, 3);
  EXPECT_EQ(publish_step(*arena_, 1, 4), second);
  EXPECT_EQ(publish_step(*arena_, 1, 5), third);
  EXPECT_EQ(arena_->slot(pinned).step, Step{1});
  EXPECT_TRUE(arena_->pin(second));
  auto none = arena_->take(Attempt{1}, Step{6});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kRetry);
  arena_->unpin(pinned);
  EXPECT_EQ(publish_step(*arena_, 1, 6), pinned);
}

TEST_F(ArenaTest, TakesTheRequestBackWithTheCheckpointItself) {
  arena_->set_gang({1, 1, 2, 3});
  arena_->requests().store(kRequestCheckpoint | kRequestDrain);
  publish_step(*arena_, 1, 1);
  EXPECT_EQ(arena_->requests().load(), kRequestCheckpoint | kRequestDrain);
  const int slot = publish_step(*arena_, 1, 2, true);
  EXPECT_EQ(arena_->requests().load(), kUploadBusy | kRequestDrain);
  EXPECT_EQ(arena_->slot(slot).part, 2);
  EXPECT_EQ(arena_->slot(slot).of, 3);
}

TEST_F(ArenaTest, NeverOffersASlotThatIsBeingWritten) {
  publish_step(*arena_, 1, 1);
  auto torn = arena_->take(Attempt{1}, Step{2});
  ASSERT_TRUE(torn);
  fill_state(arena_->bytes(*torn), 2);
  EXPECT_EQ(arena_->slot(*arena_->newest_ready()).step, Step{1});
  EXPECT_EQ(arena_->verify(*torn).error().code, Code::kNotFound);
  // Left behind by a dead process: the next attempt takes it before a finished one.
  publish_step(*arena_, 2, 2);
  EXPECT_EQ(*arena_->take(Attempt{2}, Step{3}), *torn);
}

TEST_F(ArenaTest, RefusesToPublishWhatIsNotBeingWritten) {
  const int slot = publish_step(*arena_, 1, 1);
  EXPECT_EQ(arena_->publish(slot, Attempt{1}, Step{1}, 1, false).error().code, Code::kStale);
  arena_->discard(slot);
  EXPECT_EQ(arena_->publish(slot, Attempt{1}, Step{1}, 1, false).error().code, Code::kStale);
  EXPECT_FALSE(arena_->newest_ready());
}

TEST_F(ArenaTest, RefusesToPublishASlotThatWasTakenForAnotherStepMeanwhile) {
  publish_step(*arena_, 1, 1);
  publish_step(*arena_, 1, 2);
  const int mine = *arena_->take(Attempt{1}, Step{3});
  // Somebody else takes what looks left behind, and has not finished.
  ASSERT_EQ(*arena_->take(Attempt{2}, Step{1}), mine);
  EXPECT_EQ(arena_->publish(mine, Attempt{1}, Step{3}, 1, false).error().code, Code::kStale);
  EXPECT_EQ(arena_->publish(mine, Attempt{2}, Step{3}, 1, false).error().code, Code::kStale);
  EXPECT_EQ(arena_->slot(mine).state, SlotState::kWriting);
  EXPECT_TRUE(arena_->publish(mine, Attempt{2}, Step{1}, 1, false));
}

// After any damage to the newest slot, what the readers find is whole; it is the older step unless
// the damage was to bytes that say nothing about the state.
TEST_F(ArenaTest, FallsBackToTheOlderStepWhateverByteOfASlotHeaderIsFlipped) {
  auto small = Arena::create(folder_, test_spec(5000));
  ASSERT_TRUE(small);
  arena_ = std::move(*small);
  publish_step(*arena_, 1, 1);
  const int newest = publish_step(*arena_, 1, 2);
  const std::int64_t header_at = kSlotHeadersAt + newest * kPage;
  int detected = 0;
  for (std::int64_t at = 0; at < kPage; ++at) {
    for (const int mask : {1 << (at % 8), 0xFF, 3}) {
      flip(folder_, header_at + at, static_cast<std::uint8_t>(mask));
      const auto good = newest_good(*arena_);
      ASSERT_TRUE(good) << at;
      const std::int64_t step = arena_->slot(*good).step.value;
      ASSERT_TRUE(holds_state(arena_->bytes(*good), step)) << at;
      const bool barrier = at >= 8 && at < static_cast<std::int64_t>(offsetof(SlotHeader, body));
      const bool pin = at == 0 && (mask & ~(kPinned | kCheckpoint)) == 0;
      ASSERT_EQ(step, barrier || pin ? 2 : 1) << at << " mask " << mask;
      detected += step == 1 ? 1 : 0;
      // Heal: write the step again into the slot under test; the third one is kept out of the way.
      if (step == 2) flip(folder_, header_at + at, static_cast<std::uint8_t>(mask));
      arena_->unpin(newest);
      arena_->discard(newest);
      const auto third = arena_->take(Attempt{1}, Step{0});
      ASSERT_TRUE(third);
      if (*third != newest) {
        ASSERT_EQ(publish_step(*arena_, 1, 2), newest);
        arena_->discard(*third);
      } else {
        arena_->discard(*third);
        ASSERT_EQ(publish_step(*arena_, 1, 2), newest);
      }
    }
  }
  EXPECT_GT(detected, 3 * 4000);
}

TEST_F(ArenaTest, FallsBackToTheOlderStepWhateverByteOfTheDigestTableIsFlipped) {
  const int older = publish_step(*arena_, 1, 1);
  const int newest = publish_step(*arena_, 1, 2);
  const std::int64_t table_at = kTablesAt + newest * places(kStateBytes).table_bytes;
  const std::int64_t bytes = places(kStateBytes).chunks * 16;
  for (std::int64_t at = 0; at < bytes; ++at) {
    flip(folder_, table_at + at, static_cast<std::uint8_t>(1 << (at % 8)));
    const Status status = arena_->verify(newest);
    ASSERT_FALSE(status) << at;
    EXPECT_EQ(status.error().code, Code::kCorrupt);
    flip(folder_, table_at + at, static_cast<std::uint8_t>(1 << (at % 8)));
  }
  flip(folder_, table_at, 1);
  EXPECT_EQ(newest_good(*arena_), older);
}

TEST_F(ArenaTest, FindsAFlippedBitInAThousandPlacesOfThePayload) {
  const int older = publish_step(*arena_, 1, 1);
  const int newest = publish_step(*arena_, 1, 2);
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    // The last place is the last byte of the state, which ends in the middle of a page.
    const std::uint64_t at = i == 0 ? kStateBytes - 1 : random() % kStateBytes;
    const auto mask = static_cast<std::byte>(1 << (random() % 8));
    arena_->bytes(newest)[at] ^= mask;
    const Status status = arena_->verify(newest);
    ASSERT_FALSE(status) << at;
    ASSERT_EQ(status.error().code, Code::kCorrupt);
    arena_->bytes(newest)[at] ^= mask;
  }
  ASSERT_TRUE(arena_->verify(newest));
  arena_->bytes(newest)[4711] ^= std::byte{1};
  EXPECT_EQ(newest_good(*arena_), older);
}

// --- words that change: damage must not lead outside the mapping (ASan, SIGSEGV) or into an
// endless loop ---

TEST_F(ArenaTest, SurvivesGarbageInAllItsChangingWords) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    Fd fd(::open((folder_ / "arena").c_str(), O_RDWR | O_CLOEXEC));
    std::vector<std::uint64_t> garbage((kTablesAt - kControlAt) / 8);
    for (auto& word : garbage) word = round == 0 ? ~std::uint64_t{0} : random();
    ASSERT_EQ(::pwrite(fd.get(), garbage.data(), garbage.size() * 8, kControlAt),
              static_cast<ssize_t>(garbage.size() * 8));
    for (int slot = 0; slot < kSlots; ++slot) {
      EXPECT_NE(arena_->slot(slot).state, SlotState::kReady);
      EXPECT_FALSE(arena_->verify(slot));
      (void)arena_->prepared_record(slot);
      (void)arena_->arrived(slot, 0);
      (void)arena_->has_arrived(slot, 1, kMaxLocalRanks - 1);
    }
    EXPECT_FALSE(arena_->newest_ready());
    for (int rank = 0; rank < kMaxLocalRanks; ++rank) {
      EXPECT_LT(reason_of(arena_->line(rank)).size(), sizeof(RankLine::reason) + 1);
      (void)registered_process(arena_->line(rank));
      EXPECT_FALSE(name(arena_->line(rank).phase.load()).empty());
    }
    const Arena::Gang gang = arena_->gang();
    EXPECT_GE(gang.local_size, 0);
    EXPECT_LE(gang.local_size, kMaxLocalRanks);
    std::uint64_t from = random();
    EXPECT_LE(arena_->read(from).size(), static_cast<std::size_t>(kRecords));
    EXPECT_TRUE(end_earlier_writers(*arena_, Attempt{1}, now() + std::chrono::seconds(1)));
    EXPECT_FALSE(is_alive(arena_->service()));
    // And work goes on: whatever stood in the slots is taken.
    arena_->push(StepRecord{});
    arena_->set_gang({5, 2, 0, 1});
    EXPECT_EQ(arena_->gang().attempt, 5);
    publish_step(*arena_, 5, 1);
    EXPECT_TRUE(newest_good(*arena_));
  }
}

}  // namespace
}  // namespace surefoot
