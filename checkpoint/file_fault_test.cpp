// Fail the Nth file operation, for N = 1, 2, ... until a run is clean, during commit, delete and
// restore; then again during the recovery.
//
// The disk (testing/memory_file_ops.h) loses what was not synced. After each failure a fresh reader
// looks: a checkpoint that it is offered loads to the right bytes, the newest good one is never
// older than before, and what was reported as published is there.
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_store.h"
#include "checkpoint/store/file/file_store.h"
#include "checkpoint/testing/memory_file_ops.h"
#include "checkpoint/testing/restore_from_store.h"
#include "checkpoint/testing/small_state.h"

namespace surefoot::testing {
namespace {

using Fault = MemoryFileOps::Fault;
const std::string kJob = "0123456789abcdef";

const SmallState& state_of(std::int64_t step) {
  static const SmallState ten = small_state(30, 10);
  static const SmallState twenty = small_state(30, 20);
  static const SmallState thirty = small_state(30, 30);
  return step == 10 ? ten : step == 20 ? twenty : thirty;
}

// One life of a service: stores step 20 in two parts, publishes, verifies, deletes step 10; goes as
// far as it gets.
struct Life {
  bool published = false;
  bool verified = false;
  bool cleaned = false;
  std::string error;
};

Life live(MemoryFileOps& ops, std::int64_t step) {
  Life life;
  auto store = FileStore::open("/to/job", ops);
  if (!store) return life.error = store.error().message, life;
  CheckpointStore checkpoints(**store, kJob);
  if (auto claimed = checkpoints.claim("job", {}); !claimed)
    return life.error = claimed.error().message, life;
  const SmallState& state = state_of(step);
  for (int part = 0; part < 2; ++part) {
    const auto stored = checkpoints.store_part(identity_of(state, step, 1), part, 2, state.bytes,
                                               state.digests, {});
    if (!stored) return life.error = stored.error().message, life;
  }
  const auto outcome = checkpoints.try_publish(Step{step}, Attempt{1}, 0, 2, std::nullopt, {});
  life.published = outcome.outcome == PublishOutcome::kPublished;
  if (!life.published) return life.error = outcome.reason, life;
  const auto verified = checkpoints.verify(Step{step}, {});
  life.verified = verified.has_value();
  if (!verified) return life.error = verified.error().message, life;
  const auto cleaned = checkpoints.clean(*verified, 1, {});
  life.cleaned = cleaned && cleaned->failures.empty();
  return life;
}

// A disk with step 10 published.
const MemoryFileOps& disk() {
  static const MemoryFileOps prepared = [] {
    MemoryFileOps ops;
    EXPECT_TRUE(live(ops, 10).cleaned);
    ops.pass(std::chrono::hours(1));
    return ops;
  }();
  return prepared;
}

// What a fresh reader finds. `at_least`: the newest good checkpoint must not be older.
void expect_sound(MemoryFileOps& ops, std::int64_t at_least, const std::string& where) {
  ops.heal();
  auto store = FileStore::open("/to/job", ops);
  ASSERT_TRUE(store) << where;
  CheckpointStore checkpoints(**store, kJob);
  const Restored restored = restore_from_store(checkpoints, Step{at_least});
  ASSERT_TRUE(restored.step) << where << ": " << restored.error;
  EXPECT_GE(restored.step->value, at_least) << where;
  EXPECT_TRUE(restored.bytes == state_of(restored.step->value).bytes) << where;
  const auto entries = checkpoints.list({});
  ASSERT_TRUE(entries);
  for (const StepEntry& entry : *entries) {
    if (entry.inventory.state != StepState::kWhole) continue;
    EXPECT_TRUE(checkpoints.verify(entry.inventory.step, {})) << where;
  }
}

// The service starts anew on a healthy disk: it must come to the same end, with nothing left over.
void expect_recovery(MemoryFileOps& ops, const std::string& where) {
  ops.heal();
  ops.pass(std::chrono::hours(1));
  const Life life = live(ops, 20);
  EXPECT_TRUE(life.cleaned) << where << ": " << life.error;
  const std::vector<std::string> expected{"/to/job/job.json",
                                          "/to/job/step-00000000020/a001-part-00-of-02.safetensors",
                                          "/to/job/step-00000000020/a001-part-01-of-02.safetensors",
                                          "/to/job/step-00000000020/manifest.json"};
  EXPECT_EQ(ops.files(), expected) << where;
}

int run_errors(Fault fault, int error_number) {
  for (int operation = 1;; ++operation) {
    MemoryFileOps ops(disk());
    ops.fail_at(operation, fault, error_number);
    const Life life = live(ops, 20);
    const bool fired = ops.fired();
    const std::string where = fmt::format("operation {}", operation);
    EXPECT_TRUE(fired || life.cleaned) << life.error;
    expect_sound(ops, life.published ? 20 : 10, where);
    expect_recovery(ops, where);
    if (!fired || ::testing::Test::HasFailure()) return operation;
  }
}

TEST(FileFault, AnyOperationMayFailDuringCommitAndDelete) {
  EXPECT_GT(run_errors(Fault::kError, EIO), 60);
}
TEST(FileFault, TheDiskMayBeFullAtAnyOperation) {
  EXPECT_GT(run_errors(Fault::kError, ENOSPC), 60);
}
TEST(FileFault, AnyOperationMayFailAndTakeEffectAllTheSame) {
  EXPECT_GT(run_errors(Fault::kErrorAfter, EIO), 60);
}
TEST(FileFault, AnyWriteOrReadMayBeShort) {
  EXPECT_GT(run_errors(Fault::kShort, EIO), 60);
}

TEST(FileFault, TheMachineMayCrashAtAnyOperation) {
  int before = 0;
  int after = 0;
  for (int operation = 1;; ++operation) {
    bool fired = false;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      MemoryFileOps ops(disk());
      ops.fail_at(operation, Fault::kCrash);
      const Life life = live(ops, 20);
      fired = ops.fired();
      ops.reboot(seed);
      const std::string where = fmt::format("operation {} seed {}", operation, seed);
      ++(life.published ? after : before);
      expect_sound(ops, life.published ? 20 : 10, where);
      expect_recovery(ops, where);
    }
    if (!fired || HasFailure()) break;
  }
  EXPECT_GT(before, 100);
  EXPECT_GT(after, 100);
}

// A second crash while the service recovers from the first.
TEST(FileFault, TheMachineMayCrashAgainDuringRecovery) {
  int second = 0;
  for (int first = 1;; first += 3) {
    bool fired = false;
    for (int operation = 1;; operation += 5) {
      MemoryFileOps ops(disk());
      ops.fail_at(first, Fault::kCrash);
      const bool published = live(ops, 20).published;
      fired = ops.fired();
      ops.reboot(static_cast<std::uint64_t>(first));
      ops.fail_at(operation, Fault::kCrash);
      const bool published_now = live(ops, 20).published;
      const bool fired_again = ops.fired();
      ops.reboot(static_cast<std::uint64_t>(operation));
      const std::string where = fmt::format("operation {}, then {}", first, operation);
      expect_sound(ops, published || published_now ? 20 : 10, where);
      expect_recovery(ops, where);
      ++second;
      if (!fired_again || HasFailure()) break;
    }
    if (!fired || HasFailure()) break;
  }
  EXPECT_GT(second, 300);
}

TEST(FileFault, AnyOperationMayFailDuringRestore) {
  MemoryFileOps prepared(disk());
  ASSERT_TRUE(live(prepared, 20).published);
  for (const Fault fault : {Fault::kError, Fault::kCrash, Fault::kShort}) {
    int clean = 0;
    for (int operation = 1; clean == 0; ++operation) {
      MemoryFileOps ops(prepared);
      ops.fail_at(operation, fault);
      bool loaded = false;
      if (auto store = FileStore::open("/to/job", ops)) {
        CheckpointStore checkpoints(**store, kJob);
        if (const auto manifest = checkpoints.read_manifest(Step{20}, {})) {
          std::vector<std::byte> bytes(static_cast<std::size_t>(manifest->identity.layout.bytes));
          const auto outcome = checkpoints.load(*manifest, bytes, {});
          loaded = outcome.has_value();
          EXPECT_TRUE(!loaded || bytes == state_of(20).bytes);
          // A disk that fails is no proof against the copy.
          EXPECT_TRUE(loaded || outcome.error().code == Code::kRetry);
        } else {
          EXPECT_EQ(manifest.error().code, Code::kRetry);
        }
      }
      if (!ops.fired()) clean = operation;
      EXPECT_TRUE(loaded || ops.fired());
      expect_sound(ops, 20, fmt::format("operation {}", operation));
    }
    EXPECT_GT(clean, 8);
  }
}

}  // namespace
}  // namespace surefoot::testing
