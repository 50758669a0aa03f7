// What the arena holds of a gang beside its state: records of steps, faults that were injected,
// who writes.
#include <thread>

#include "checkpoint/arena_format.h"
#include "checkpoint/arena_test_util.h"

namespace surefoot {
namespace {

using namespace arena_format;

TEST_F(ArenaTest, KeepsTheNewestRecordsInOrder) {
  std::uint64_t from = 0;
  EXPECT_TRUE(arena_->read(from).empty());
  for (int step = 1; step <= kRecords + 10; ++step) {
    StepRecord record;
    record.step = step;
    arena_->push(record);
  }
  const auto records = arena_->read(from);
  ASSERT_EQ(records.size(), static_cast<std::size_t>(kRecords));
  EXPECT_EQ(records.front().step, 11);
  EXPECT_EQ(records.back().step, kRecords + 10);
  EXPECT_EQ(from, static_cast<std::uint64_t>(kRecords + 10));
  EXPECT_TRUE(arena_->read(from).empty());
  from = 1'000'000;  // of an arena that is gone
  EXPECT_EQ(arena_->read(from).size(), static_cast<std::size_t>(kRecords));
}

TEST_F(ArenaTest, NeverShowsATornRecordToAReaderBesideTheWriter) {
  constexpr std::int64_t kSteps = 20000;
  std::thread writer([&] {
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      StepRecord record;
      record.step = step;
      record.samples = step * 3;
      record.phase_seconds[kPhaseCount - 1] = static_cast<double>(step);
      arena_->push(record);
    }
  });
  std::uint64_t from = 0;
  std::int64_t last = 0;
  while (from < kSteps) {
    for (const StepRecord& record : arena_->read(from)) {
      ASSERT_GT(record.step, last);
      ASSERT_EQ(record.samples, record.step * 3);
      ASSERT_EQ(record.phase_seconds[kPhaseCount - 1], static_cast<double>(record.step));
      last = record.step;
    }
  }
  writer.join();
  EXPECT_EQ(last, kSteps);
}

TEST_F(ArenaTest, ReportsAFinishedStepWhoseRecordWasNotPushed) {
  StepRecord record;
  record.attempt = 3;
  record.step = 9;
  record.loss = 1.5;
  auto slot = arena_->take(Attempt{3}, Step{9});
  ASSERT_TRUE(slot);
  arena_->prepare_record(*slot, record);
  for (Digest& chunk : arena_->chunk_digests(*slot)) chunk = Digest();
  ASSERT_TRUE(arena_->publish(*slot, Attempt{3}, Step{9}, 90, false));
  // Killed here, before push.
  arena_->set_gang({4, 1, 0, 1});
  std::uint64_t from = 0;
  auto records = arena_->read(from);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].step, 9);
  EXPECT_EQ(records[0].loss, 1.5);
  EXPECT_GT(records[0].finished_ns, 0);
  arena_->set_gang({5, 1, 0, 1});
  from = 0;
  EXPECT_EQ(arena_->read(from).size(), 1u);
}

TEST_F(ArenaTest, MarksEachFaultOnce) {
  EXPECT_FALSE(arena_->fault_fired(255));
  EXPECT_TRUE(arena_->mark_fault(255));
  EXPECT_FALSE(arena_->mark_fault(255));
  EXPECT_TRUE(arena_->fault_fired(255));
  EXPECT_FALSE(arena_->fault_fired(191));
  EXPECT_TRUE((*Arena::open(folder_))->fault_fired(255));
}

TEST_F(ArenaTest, ClearsLinesAndRequestsForANewGang) {
  arena_->set_gang({3, 2, 0, 1});
  ASSERT_TRUE(register_writer(*arena_, Attempt{3}, 1, 1));
  EXPECT_EQ(registered_process(arena_->line(1)), self_process());
  set_exit(arena_->line(1), 75, std::string(1000, 'x'));
  EXPECT_EQ(reason_of(arena_->line(1)).size(), sizeof(RankLine::reason) - 1);
  arena_->requests().fetch_or(kRequestDrain);
  arena_->set_gang({4, 2, 0, 1});
  EXPECT_EQ(registered_process(arena_->line(1)).pid, 0);
  EXPECT_EQ(arena_->line(1).exit_code.load(), -1);
  EXPECT_EQ(reason_of(arena_->line(1)), "");
  EXPECT_EQ(arena_->requests().load(), 0u);
  EXPECT_EQ(arena_->last_attempt(), 4);
  EXPECT_EQ(register_writer(*arena_, Attempt{3}, 0, 0).error().code, Code::kStale);
}

// --- processes ---

TEST_F(ArenaTest, EndsExactlyTheWritersOfOtherAttempts) {
  arena_->set_gang({3, 3, 0, 1});
  const auto writer = [&](std::int64_t attempt, int rank) {
    return fork_child([&, attempt, rank]() -> int {
      arena_->line(rank).attempt.store(attempt);
      (void)register_writer(*arena_, Attempt{attempt}, rank, rank);
      for (;;) ::pause();
    });
  };
  const pid_t old = writer(3, 0);
  const pid_t current = writer(4, 1);
  for (int rank : {0, 1}) {
    while (registered_process(arena_->line(rank)).pid == 0) ::usleep(1000);
  }
  arena_->close_to_earlier(Attempt{4});
  // A reused pid: the start time is another, so it must not be hit.
  const ProcessId self = self_process();
  auto& line = arena_->line(2);
  ProcessId impostor = *process_of(current);
  impostor.start_ticks -= 1;
  std::memcpy(static_cast<void*>(&line.process), &impostor, sizeof impostor);
  ASSERT_TRUE(end_earlier_writers(*arena_, Attempt{4}, now() + std::chrono::seconds(10)));
  EXPECT_EQ(wait_for(old), -SIGKILL);
  EXPECT_TRUE(is_alive(*process_of(current)));
  // The caller itself is never ended, whatever a line says.
  std::memcpy(static_cast<void*>(&line.process), &self, sizeof self);
  ASSERT_TRUE(end_earlier_writers(*arena_, Attempt{0}, now() + std::chrono::seconds(10)));
  EXPECT_EQ(wait_for(current), -SIGKILL);
}

TEST_F(ArenaTest, LetsNoEarlierWriterSlipThroughWhileANewGangBegins) {
  // Writers of attempt n register while the service closes n and ends them: each either sees it, or
  // is ended.
  for (std::int64_t attempt = 1; attempt <= 40; ++attempt) {
    arena_->set_gang({attempt, 1, 0, 1});
    const pid_t late = fork_child([&]() -> int {
      if (!register_writer(*arena_, Attempt{attempt}, 0, 0)) return 7;
      for (;;) ::pause();
    });
    if (attempt % 2 == 0) ::usleep(static_cast<useconds_t>(attempt * 20));
    arena_->close_to_earlier(Attempt{attempt + 1});
    ASSERT_TRUE(
        end_earlier_writers(*arena_, Attempt{attempt + 1}, now() + std::chrono::seconds(10)));
    const int left = wait_for(late);
    EXPECT_TRUE(left == 7 || left == -SIGKILL) << left;
  }
}

}  // namespace
}  // namespace surefoot
