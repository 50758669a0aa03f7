#include "checkpoint/snapshot.h"

#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <thread>

#include "checkpoint/arena_test_util.h"

namespace surefoot {
namespace {

constexpr std::int64_t kStateBytes = kChunkBytes + 808;

// The step of these tests: every word of the new state depends on the same word of the old one.
void update(std::span<const std::byte> from, std::span<std::byte> to, int share, int shares) {
  const std::size_t words = to.size() / 8;
  for (std::size_t i = words * share / shares; i < words * (share + 1) / shares; ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, from.data() + i * 8, 8);
    value = value * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(to.data() + i * 8, &value, 8);
  }
}

std::vector<std::byte> state_after(std::int64_t step) {
  std::vector<std::byte> state(kStateBytes);
  fill_state(state, 0);
  for (std::int64_t k = 0; k < step; ++k) update(state, state, 0, 1);
  return state;
}

// Forwards to an arena and dies (SIGKILL) at the nth point: points lie before and after each call
// that changes or waits for something.
class DyingArena final : public Arena {
 private:
  void point() {
    if (--left_ == 0) ::kill(::getpid(), SIGKILL);
  }
  template <class Call>
  auto around(const Call& call) {
    point();
    auto result = call();
    point();
    return result;
  }

 public:
  DyingArena(Arena& arena, int dies_at) : arena_(arena), left_(dies_at) {}
  const ArenaSpec& spec() const override { return arena_.spec(); }
  void set_training_hash(const Digest& hash) override { arena_.set_training_hash(hash); }
  bool unlinked() const override { return arena_.unlinked(); }
  std::int64_t file_bytes() const override { return arena_.file_bytes(); }
  SlotInfo slot(int index) const override { return arena_.slot(index); }
  std::span<std::byte> bytes(int index) override {
    point();
    return arena_.bytes(index);
  }
  std::span<Digest> chunk_digests(int index) override {
    point();
    return arena_.chunk_digests(index);
  }
  std::optional<int> newest_ready() const override { return arena_.newest_ready(); }
  Result<int> take(Attempt attempt, Step step, int keep) override {
    return around([&] { return arena_.take(attempt, step, keep); });
  }
  void prepare_record(int index, const StepRecord& record) override {
    point();
    arena_.prepare_record(index, record);
    point();
  }
  std::optional<StepRecord> prepared_record(int index) const override {
    return arena_.prepared_record(index);
  }
  Status publish(int index, Attempt attempt, Step step, std::int64_t samples, bool pin) override {
    return around([&] { return arena_.publish(index, attempt, step, samples, pin); });
  }
  void discard(int index) override { arena_.discard(index); }
  void unpin(int index) override { arena_.unpin(index); }
  bool pin(int index) override { return arena_.pin(index); }
  Status verify(int index) const override { return arena_.verify(index); }
  RankLine& line(int local_rank) override { return arena_.line(local_rank); }
  const RankLine& line(int local_rank) const override {
    return const_cast<const Arena&>(arena_).line(local_rank);
  }
  std::atomic<std::uint64_t>& requests() override { return arena_.requests(); }
  bool mark_fault(int index) override { return arena_.mark_fault(index); }
  bool fault_fired(int index) const override { return arena_.fault_fired(index); }
  void push(const StepRecord& record) override {
    point();
    arena_.push(record);
    point();
  }
  std::vector<StepRecord> read(std::uint64_t& from) const override { return arena_.read(from); }
  void close_to_earlier(Attempt attempt) override { arena_.close_to_earlier(attempt); }
  void end_below(Attempt attempt) override { arena_.end_below(attempt); }
  [[nodiscard]] bool has_ended(Attempt attempt) const override { return arena_.has_ended(attempt); }
  void set_gang(const Gang& gang) override { arena_.set_gang(gang); }
  Gang gang() const override { return arena_.gang(); }
  std::int64_t last_attempt() const override { return arena_.last_attempt(); }
  void set_service(const ProcessId& service) override { arena_.set_service(service); }
  ProcessId service() const override { return arena_.service(); }
  void service_heartbeat() override { arena_.service_heartbeat(); }
  Time last_service_heartbeat() const override { return arena_.last_service_heartbeat(); }
  std::uint32_t arrive(int index, int barrier, int local_rank) override {
    return around([&] { return arena_.arrive(index, barrier, local_rank); });
  }
  std::uint32_t arrived(int index, int barrier) const override {
    return arena_.arrived(index, barrier);
  }
  bool has_arrived(int index, int barrier, int local_rank) const override {
    return arena_.has_arrived(index, barrier, local_rank);
  }
  bool await_arrivals(int index, int barrier, std::uint32_t count, Time deadline) override {
    return around([&] { return arena_.await_arrivals(index, barrier, count, deadline); });
  }
  std::optional<int> await_taken(Attempt attempt, Step step, Time deadline) override {
    return around([&] { return arena_.await_taken(attempt, step, deadline); });
  }
  bool await_ready(int index, Attempt attempt, Step step, Time deadline) override {
    return around([&] { return arena_.await_ready(index, attempt, step, deadline); });
  }
  Result<int> await_take(Attempt attempt, Step step, int keep, Time deadline) override {
    return around([&] { return arena_.await_take(attempt, step, keep, deadline); });
  }

 private:
  Arena& arena_;
  int left_;
};

Time soon(int milliseconds) {
  return now() + std::chrono::milliseconds(milliseconds);
}

// A rank: from the newest READY slot (or step 0) up to `last`. 0: all steps done.
int run_rank(Arena& arena, Attempt attempt, int rank, int ranks, std::optional<int> start,
             std::int64_t last, Duration patience) {
  Snapshotter snapshotter(arena, attempt, rank, ranks);
  std::int64_t step = -1;
  if (start) {
    snapshotter.start_from(*start);
    step = arena.slot(*start).step.value;
  }
  while (step < last) {
    ++step;
    if (!snapshotter.begin(Step{step}, now() + patience)) return 2;
    if (step == 0) {
      fill_state(snapshotter.write_bytes(), 0, rank, ranks);
    } else {
      update(snapshotter.read_bytes(), snapshotter.write_bytes(), rank, ranks);
    }
    StepRecord record;
    record.attempt = attempt.value;
    record.step = step;
    if (!snapshotter.commit(step * 8, false, record, now() + patience)) return 3;
  }
  return 0;
}

class SnapshotTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Arena::create(temporary_.path() / "surefoot-x", test_spec(kStateBytes));
    ASSERT_TRUE(made) << made.error().message;
    arena_ = std::move(*made);
  }

  void forget_everything() {
    for (int slot = 0; slot < kSlots; ++slot) arena_->discard(slot);
    (void)arena_->read(records_from_);
  }
  std::int64_t next_attempt() { return arena_->last_attempt() + 1; }

  // All ranks as processes up to `last`; `victim` dies at its nth point (0: never). The others are
  // then ended, as mpirun would. True: the victim died.
  bool run_gang(std::int64_t attempt, int ranks, std::int64_t last, int victim, int dies_at) {
    arena_->close_to_earlier(Attempt{attempt});
    arena_->set_gang({attempt, ranks, 0, 1});
    const auto start = newest_good(*arena_);
    std::vector<pid_t> children;
    for (int rank = 0; rank < ranks; ++rank) {
      children.push_back(fork_child([&, rank] {
        DyingArena dying(*arena_, rank == victim ? dies_at : 0);
        return run_rank(dying, Attempt{attempt}, rank, ranks, start, last,
                        std::chrono::seconds(60));
      }));
    }
    const int left = wait_for(children[static_cast<std::size_t>(victim)]);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == victim) continue;
      if (left != 0) ::kill(children[static_cast<std::size_t>(rank)], SIGKILL);
      const int other = wait_for(children[static_cast<std::size_t>(rank)]);
      EXPECT_TRUE(left != 0 || other == 0) << "rank " << rank << " left with " << other;
    }
    return left == -SIGKILL;
  }

  void expect_state_of(std::int64_t step) {
    const auto slot = newest_good(*arena_);
    ASSERT_TRUE(slot);
    ASSERT_EQ(arena_->slot(*slot).step, Step{step});
    const auto bytes = arena_->bytes(*slot);
    ASSERT_EQ(std::memcmp(bytes.data(), state_after(step).data(), bytes.size()), 0);
  }

  TemporaryFolder temporary_;
  std::unique_ptr<Arena> arena_;
  std::uint64_t records_from_ = 0;
};

TEST_F(SnapshotTest, MakesTheSameStateForAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    forget_everything();
    ASSERT_FALSE(run_gang(next_attempt(), ranks, 5, 0, 0));
    expect_state_of(5);
    const auto records = arena_->read(records_from_);
    ASSERT_EQ(records.size(), 6u);
    for (std::size_t i = 0; i < records.size(); ++i)
      EXPECT_EQ(records[i].step, static_cast<std::int64_t>(i));
  }
}

TEST_F(SnapshotTest, LosesNoFinishedStepWhereverARankIsKilled) {
  int died_before = 0;
  int died_after = 0;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int victim = 0; victim < ranks; ++victim) {
      for (int point = 1;; ++point) {
        forget_everything();
        ASSERT_FALSE(run_gang(next_attempt(), ranks, 1, victim, 0));
        // From step 1 to 2 with a death on the way.
        if (!run_gang(next_attempt(), ranks, 2, victim, point)) break;
        const auto slot = newest_good(*arena_);
        ASSERT_TRUE(slot);
        const std::int64_t step = arena_->slot(*slot).step.value;
        ASSERT_TRUE(step == 1 || step == 2) << step;
        (step == 1 ? died_before : died_after) += 1;
        expect_state_of(step);
        // The next attempt, of another size, goes on, and reports every step exactly once.
        ASSERT_FALSE(run_gang(next_attempt(), ranks % 4 + 1, 3, 0, 0));
        expect_state_of(3);
        std::vector<std::int64_t> steps;
        for (const StepRecord& record : arena_->read(records_from_)) steps.push_back(record.step);
        ASSERT_EQ(steps, (std::vector<std::int64_t>{0, 1, 2, 3}));
      }
    }
  }
  EXPECT_GT(died_before, 50);
  EXPECT_GT(died_after, 0);
  std::printf("kill points: %d before READY, %d after\n", died_before, died_after);
}

TEST_F(SnapshotTest, LosesNoFinishedStepAtSeededMomentsOfAKill) {
  std::mt19937_64 random(3);
  auto* const reached = static_cast<std::atomic<std::int64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_FALSE(run_gang(1, 2, 0, 0, 0));
  for (std::int64_t attempt = 2; attempt < 40; ++attempt) {
    arena_->set_gang({attempt, 2, 0, 1});
    const auto start = newest_good(*arena_);
    ASSERT_TRUE(start);
    const std::int64_t first = arena_->slot(*start).step.value;
    reached->store(first);
    std::vector<pid_t> children;
    for (int rank = 0; rank < 2; ++rank) {
      children.push_back(fork_child([&, rank] {
        for (std::int64_t last = first + 1;; ++last) {
          const auto from = last == first + 1 ? start : arena_->newest_ready();
          if (run_rank(*arena_, Attempt{attempt}, rank, 2, from, last, std::chrono::seconds(60)) !=
              0) {
            return 1;
          }
          if (rank == 0) reached->store(last);
        }
        return 0;
      }));
    }
    ::usleep(static_cast<useconds_t>(random() % 20000));
    ::kill(children[random() % 2], SIGKILL);
    for (const pid_t child : children) ::kill(child, SIGKILL);
    for (const pid_t child : children) wait_for(child);
    const auto slot = newest_good(*arena_);
    ASSERT_TRUE(slot);
    // What a rank has seen finished is still there.
    ASSERT_GE(arena_->slot(*slot).step.value, reached->load());
    expect_state_of(arena_->slot(*slot).step.value);
  }
  ::munmap(reached, 4096);
}

TEST_F(SnapshotTest, RunsWithThreadsAsRanks) {
  arena_->set_gang({1, 3, 0, 1});
  // One mapping for all, so that the thread sanitizer sees what they share.
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  std::atomic<bool> done = false;
  std::thread reader([&] {
    std::uint64_t from = 0;
    while (!done) {
      for (int slot = 0; slot < kSlots; ++slot) (void)arena_->slot(slot);
      (void)arena_->read(from);
    }
  });
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      failed += run_rank(*arena_, Attempt{1}, rank, 3, std::nullopt, 30, std::chrono::seconds(60));
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  reader.join();
  EXPECT_EQ(failed, 0);
  expect_state_of(30);
}

TEST_F(SnapshotTest, NamesTheRanksThatDoNotArrive) {
  arena_->set_gang({1, 4, 0, 1});
  Snapshotter leader(*arena_, Attempt{1}, 0, 4);
  Snapshotter second(*arena_, Attempt{1}, 2, 4);
  ASSERT_TRUE(leader.begin(Step{1}, soon(100)));
  ASSERT_TRUE(second.begin(Step{1}, soon(100)));
  EXPECT_EQ(second.commit(1, false, {}, soon(10)).error().code, Code::kRestart);
  const Status late = leader.commit(1, false, {}, soon(10));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kRestart);
  EXPECT_NE(late.error().message.find("local ranks 1 3 to"), std::string::npos)
      << late.error().message;
}

TEST_F(SnapshotTest, GivesUpWhenTheLeaderTakesNoSlot) {
  arena_->set_gang({1, 2, 0, 1});
  Snapshotter other(*arena_, Attempt{1}, 1, 2);
  const Status late = other.begin(Step{1}, soon(10));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kRestart);
}

TEST_F(SnapshotTest, WaitsForASlotUntilTheServiceUnpinsOne) {
  arena_->set_gang({1, 1, 0, 1});
  const int first = publish_step(*arena_, 1, 1, true);
  publish_step(*arena_, 1, 2);
  const int third = publish_step(*arena_, 1, 3);
  ASSERT_TRUE(arena_->pin(third));
  ASSERT_TRUE(arena_->pin(*arena_->newest_ready()));
  for (int slot = 0; slot < kSlots; ++slot) arena_->pin(slot);
  Snapshotter leader(*arena_, Attempt{1}, 0, 1);
  leader.start_from(third);
  EXPECT_EQ(leader.begin(Step{4}, soon(10)).error().code, Code::kRestart);
  std::thread service([&] { arena_->unpin(first); });
  EXPECT_TRUE(leader.begin(Step{4}, soon(10000)));
  service.join();
}

TEST_F(SnapshotTest, RefusesToWriteWhenANewerAttemptHasBegun) {
  arena_->set_gang({2, 1, 0, 1});
  Snapshotter stale(*arena_, Attempt{1}, 0, 1);
  EXPECT_EQ(stale.begin(Step{1}, soon(10)).error().code, Code::kStale);
}

TEST_F(SnapshotTest, GivesBackTheSlotOfAnAbandonedStep) {
  arena_->set_gang({1, 1, 0, 1});
  Snapshotter leader(*arena_, Attempt{1}, 0, 1);
  leader.start_from(publish_step(*arena_, 1, 1));
  ASSERT_TRUE(leader.begin(Step{2}, soon(100)));
  leader.abandon();
  EXPECT_EQ(arena_->slot(*arena_->newest_ready()).step, Step{1});
  ASSERT_TRUE(leader.begin(Step{2}, soon(100)));
  update(leader.read_bytes(), leader.write_bytes(), 0, 1);
  ASSERT_TRUE(leader.commit(2, true, {}, soon(1000)));
  const SlotInfo info = arena_->slot(*arena_->newest_ready());
  EXPECT_EQ(info.step, Step{2});
  EXPECT_TRUE(info.checkpoint && info.pinned);
}

}  // namespace
}  // namespace surefoot
