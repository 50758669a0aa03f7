#include "worker/fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "checkpoint/arena_test_util.h"
#include "checkpoint/part.h"
#include "collectives/testing/reducer_check.h"

namespace surefoot {
namespace {

// Three chunks, the last one short.
constexpr std::int64_t kStateBytes = 2 * kChunkBytes + 4096;
constexpr std::int64_t kStep = 7;
constexpr Attempt kAttempt{2};

// What all nodes share.
struct FakeStore {
  std::vector<std::byte> state = std::vector<std::byte>(kStateBytes);
  std::vector<Digest> table;
  std::array<std::atomic<int>, 3> reads{};  // by chunk
  FakeStore() {
    fill_state(state, kStep);
    for (std::int64_t chunk = 0; chunk < 3; ++chunk) table.push_back(digest(piece(chunk)));
  }
  [[nodiscard]] std::span<const std::byte> piece(std::int64_t chunk) const {
    const ByteRange range = chunk_bytes({chunk, chunk + 1}, kStateBytes);
    return std::span(state).subspan(range.begin, range.size());
  }
  [[nodiscard]] Candidate candidate(Candidate::Source source) const {
    return {source, Step{kStep}, kAttempt, state_digest(table), 0};
  }
};

// A node's service.
class FakeCopies final : public NodeCopies {
 public:
  FakeCopies(Arena& arena, FakeStore& store) : arena_(arena), store_(store) {}
  bool store_is_bad = false;
  bool is_away = false;  // the service does not answer
  // A bit flips right after the nth look at it (from 1); another look puts it back.
  int flips_after = 0;
  bool flips_back = false;

  Result<Held> verified(const Candidate& candidate) override {
    if (is_away) return error(Code::kRetry, "no answer");
    ++looks_;
    for (int slot = 0; slot < kSlots; ++slot) {
      const SlotInfo info = arena_.slot(slot);
      if (info.state != SlotState::kReady || info.digest != candidate.digest) continue;
      if (flips_back && looks_ == flips_after + 1) flip(slot);
      const Status good = arena_.verify(slot);
      if (!good) {
        arena_.discard(slot);
        return good.error();
      }
      if (looks_ == flips_after) flip(slot);
      return Held{slot, info.samples};
    }
    return error(Code::kCorrupt, "none");
  }
  Result<Held> read_part(const Candidate& candidate, int part, int of) override {
    if (store_is_bad) return error(Code::kCorrupt, "a bad part");
    SUREFOOT_ASSIGN(const int slot, arena_.take(candidate.attempt, candidate.step));
    std::copy(store_.table.begin(), store_.table.end(), arena_.chunk_digests(slot).begin());
    const ChunkRange chunks = part_chunks(3, part, of);
    for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      ++store_.reads[static_cast<std::size_t>(chunk)];
      const auto from = store_.piece(chunk);
      std::copy(from.begin(), from.end(), arena_.bytes(slot).begin() + chunk * kChunkBytes);
    }
    if (of == 1) SUREFOOT_TRY(arena_.publish(slot, candidate.attempt, candidate.step, 70, false));
    return Held{slot, 70};
  }

 private:
  void flip(int slot) { arena_.bytes(slot)[kChunkBytes + 5] ^= std::byte{4}; }
  Arena& arena_;
  FakeStore& store_;
  int looks_ = 0;
};

class FillTest : public ::testing::Test {
 protected:
  void make(int nodes, int ranks_per_node = 1) {
    ranks_per_node_ = ranks_per_node;
    for (int node = 0; node < nodes; ++node) {
      const auto folder = folder_.path() / std::to_string(node);
      std::filesystem::create_directories(folder);
      auto arena = Arena::create(folder, test_spec(kStateBytes));
      ASSERT_TRUE(arena) << arena.error().message;
      arenas_.push_back(std::move(*arena));
      copies_.push_back(std::make_unique<FakeCopies>(*arenas_.back(), store_));
    }
  }
  [[nodiscard]] int nodes() const { return static_cast<int>(arenas_.size()); }
  Arena& arena(int node) { return *arenas_[static_cast<std::size_t>(node)]; }
  FakeCopies& copies(int node) { return *copies_[static_cast<std::size_t>(node)]; }
  void give(int node) { publish_step(arena(node), kAttempt.value, kStep); }

  // On all ranks; returns each node's outcome, which its ranks must agree on.
  std::vector<Result<Held>> fill(Candidate::Source source) {
    const int ranks = nodes() * ranks_per_node_;
    std::vector<Result<Held>> outcomes(static_cast<std::size_t>(ranks), Held{});
    testing_gang(ranks, [&](Communicator& communicator) {
      const int node = communicator.rank() / ranks_per_node_;
      Filler filler(communicator, testing::places(ranks, ranks_per_node_), arena(node),
                    copies(node), now() + testing::kLongEnough);
      outcomes[static_cast<std::size_t>(communicator.rank())] =
          filler.fill(store_.candidate(source));
    });
    std::vector<Result<Held>> by_node;
    for (int rank = 0; rank < ranks; rank += ranks_per_node_) {
      by_node.push_back(outcomes[static_cast<std::size_t>(rank)]);
      for (int other = rank; other < rank + ranks_per_node_; ++other) {
        const auto& outcome = outcomes[static_cast<std::size_t>(other)];
        EXPECT_EQ(outcome.has_value(), by_node.back().has_value());
        if (outcome && by_node.back()) {
          EXPECT_EQ(outcome->slot, by_node.back()->slot);
        }
      }
    }
    return by_node;
  }
  static void testing_gang(int ranks, const std::function<void(Communicator&)>& body) {
    testing::on_all_ranks(ranks,
                          [&](LocalGang&, Communicator& communicator) { body(communicator); });
  }
  void expect_everywhere(const std::vector<Result<Held>>& outcomes, std::int64_t samples) {
    for (int node = 0; node < nodes(); ++node) {
      const auto& outcome = outcomes[static_cast<std::size_t>(node)];
      ASSERT_TRUE(outcome) << outcome.error().message;
      const SlotInfo info = arena(node).slot(outcome->slot);
      EXPECT_EQ(info.state, SlotState::kReady);
      EXPECT_EQ(info.step, Step{kStep});
      EXPECT_EQ(info.attempt, kAttempt);
      EXPECT_EQ(info.samples, samples);
      EXPECT_EQ(info.digest, state_digest(store_.table));
      EXPECT_TRUE(arena(node).verify(outcome->slot));
      EXPECT_TRUE(holds_state(arena(node).bytes(outcome->slot), kStep));
    }
  }
  void expect_everywhere_fails(const std::vector<Result<Held>>& outcomes, Code code) {
    for (int node = 0; node < nodes(); ++node) {
      const auto& outcome = outcomes[static_cast<std::size_t>(node)];
      ASSERT_FALSE(outcome);
      EXPECT_EQ(outcome.error().code, code) << outcome.error().message;
      for (int slot = 0; slot < kSlots; ++slot)
        EXPECT_NE(arena(node).slot(slot).state, SlotState::kWriting);
    }
  }
  [[nodiscard]] std::vector<int> reads() const {
    return {store_.reads[0].load(), store_.reads[1].load(), store_.reads[2].load()};
  }

  TemporaryFolder folder_;
  FakeStore store_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<std::unique_ptr<FakeCopies>> copies_;
  int ranks_per_node_ = 1;
};

TEST_F(FillTest, NothingMovesWhereAllHaveItInMemory) {
  make(2);
  give(0);
  give(1);
  expect_everywhere(fill(Candidate::Source::kArena), kStep * 10);
  EXPECT_EQ(reads(), (std::vector{0, 0, 0}));
}

TEST_F(FillTest, AFreshNodeIsFilledFromAnothersMemory) {
  make(2);
  give(1);
  publish_step(arena(0), 1, 3);  // an older step of its own stays
  expect_everywhere(fill(Candidate::Source::kArena), kStep * 10);
  EXPECT_EQ(reads(), (std::vector{0, 0, 0}));
  EXPECT_EQ(arena(0).newest_ready().has_value(), true);
}

TEST_F(FillTest, OneNodeFillsAllOthersWithAnyNumberOfWorkers) {
  make(4, 2);
  give(2);
  expect_everywhere(fill(Candidate::Source::kArena), kStep * 10);
}

TEST_F(FillTest, WhatOneNodeHasInMemoryIsNotReadFromTheStore) {
  make(3);
  give(0);
  give(2);
  expect_everywhere(fill(Candidate::Source::kStore), kStep * 10);
  EXPECT_EQ(reads(), (std::vector{0, 0, 0}));
}

TEST_F(FillTest, EachByteIsReadFromTheStoreOnceByAnyNumberOfNodes) {
  for (const int nodes : {1, 2, 3, 4}) {
    SCOPED_TRACE(nodes);
    arenas_.clear();
    copies_.clear();
    for (auto& read : store_.reads) read = 0;
    make(nodes);
    expect_everywhere(fill(Candidate::Source::kStore), 70);
    EXPECT_EQ(reads(), (std::vector{1, 1, 1}));
  }
}

TEST_F(FillTest, ABadCopyOnOneNodeIsReplacedFromAGoodOne) {
  make(3);
  for (int node = 0; node < 3; ++node) give(node);
  arena(0).bytes(*arena(0).newest_ready())[100] ^= std::byte{1};
  expect_everywhere(fill(Candidate::Source::kArena), kStep * 10);
}

TEST_F(FillTest, WhereNoGoodCopyIsLeftInMemoryItIsRefusedForAll) {
  make(2);
  give(1);
  arena(1).bytes(*arena(1).newest_ready())[100] ^= std::byte{1};
  expect_everywhere_fails(fill(Candidate::Source::kArena), Code::kCorrupt);
  // The next candidate, in the same attempt.
  expect_everywhere(fill(Candidate::Source::kStore), 70);
}

TEST_F(FillTest, ABadPartOnOneNodeRefusesTheCheckpointForAllAndLeavesNoSlotTaken) {
  make(3);
  copies(1).store_is_bad = true;
  expect_everywhere_fails(fill(Candidate::Source::kStore), Code::kCorrupt);
  copies(1).store_is_bad = false;
  expect_everywhere(fill(Candidate::Source::kStore), 70);
}

TEST_F(FillTest, ACopyThatTurnsBadHalfWayIsRefusedAndTheNextOneServes) {
  make(3);
  give(0);
  copies(0).flips_after = 1;
  expect_everywhere_fails(fill(Candidate::Source::kArena), Code::kCorrupt);
  EXPECT_FALSE(arena(0).newest_ready());
  expect_everywhere(fill(Candidate::Source::kStore), 70);
}

TEST_F(FillTest, AGoodCopyIsNotGivenUpBecauseItArrivesDamaged) {
  make(2);
  give(0);
  copies(0).flips_after = 1;
  copies(0).flips_back = true;
  expect_everywhere_fails(fill(Candidate::Source::kArena), Code::kRestart);
  ASSERT_TRUE(arena(0).newest_ready());
  EXPECT_TRUE(arena(0).verify(*arena(0).newest_ready()));
  expect_everywhere(fill(Candidate::Source::kArena), kStep * 10);
}

TEST_F(FillTest, AServiceThatDoesNotAnswerSaysNothingAboutItsCopy) {
  make(2);
  give(0);
  give(1);
  copies(1).is_away = true;
  expect_everywhere_fails(fill(Candidate::Source::kArena), Code::kRetry);
  EXPECT_TRUE(arena(1).newest_ready());
}

TEST_F(FillTest, ANodeThatIsLostMeanwhileIsNamed) {
  make(3);
  give(0);
  testing::on_all_ranks(3, [&](LocalGang& gang, Communicator& communicator) {
    const int node = communicator.rank();
    if (node == 1) return gang.lose(1);
    Filler filler(communicator, testing::places(3, 1), arena(node), copies(node),
                  now() + testing::kLongEnough);
    const auto outcome = filler.fill(store_.candidate(Candidate::Source::kArena));
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, Code::kRestart);
    EXPECT_NE(outcome.error().message.find("rank 1"), std::string::npos) << outcome.error().message;
  });
}

}  // namespace
}  // namespace surefoot
