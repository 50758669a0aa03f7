// The checkpoints of a job over a store: what is written is read back, and whatever is damaged is
// refused for the next older good one.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "checkpoint/checkpoint_store.h"
#include "checkpoint/testing/memory_store.h"
#include "checkpoint/testing/restore_from_store.h"
#include "checkpoint/testing/small_state.h"

namespace surefoot::testing {
namespace {

const std::string kJob = "0123456789abcdef";

class CheckpointTest : public ::testing::Test {
 protected:
  MemoryStore store;
  CheckpointStore checkpoints{store, kJob};

  void store_parts(const SmallState& state, std::int64_t step, std::int64_t attempt, int of) {
    for (int part = 0; part < of; ++part) {
      const auto stored = checkpoints.store_part(identity_of(state, step, attempt), part, of,
                                                 state.bytes, state.digests, {});
      ASSERT_TRUE(stored) << stored.error().message;
    }
  }
  PublishOutcome publish(std::int64_t step, std::int64_t attempt, int of, int own = 0) {
    return checkpoints.try_publish(Step{step}, Attempt{attempt}, own, of, std::nullopt, {}).outcome;
  }
  void checkpoint(const SmallState& state, std::int64_t step, std::int64_t attempt, int of) {
    store_parts(state, step, attempt, of);
    EXPECT_EQ(publish(step, attempt, of), PublishOutcome::kPublished);
  }
};

TEST_F(CheckpointTest, LoadsWhatWasStoredForAnyNumberOfParts) {
  const SmallState state = small_state(100'000, 1);
  std::int64_t step = 10;
  for (const int of : {1, 2, 3, 9}) {
    checkpoint(state, step, 1, of);
    const Restored restored = restore_from_store(checkpoints, Step{step});
    EXPECT_EQ(restored.step, Step{step});
    EXPECT_TRUE(restored.bytes == state.bytes);
    EXPECT_TRUE(restored.refusals.empty());
    step += 10;
  }
}

TEST_F(CheckpointTest, ManifestIsTheSameWhoeverPublishes) {
  const SmallState state = small_state(10, 1);
  store_parts(state, 10, 1, 2);
  EXPECT_EQ(publish(10, 1, 2, 0), PublishOutcome::kPublished);
  const auto first = store.bytes(manifest_name(Step{10}));
  ASSERT_TRUE(store.remove(manifest_name(Step{10}), Time::max()));
  EXPECT_EQ(publish(10, 1, 2, 1), PublishOutcome::kPublished);
  EXPECT_TRUE(store.bytes(manifest_name(Step{10})) == first);
  EXPECT_EQ(publish(10, 1, 2, 0), PublishOutcome::kPublished);
}

TEST_F(CheckpointTest, ReportsEveryByteOfThePayload) {
  const SmallState state = small_state(100'000, 1);
  std::int64_t written = 0;
  Control control;
  control.progress = [&](std::int64_t bytes) { written += bytes; };
  ASSERT_TRUE(
      checkpoints.store_part(identity_of(state, 10, 1), 0, 1, state.bytes, state.digests, control));
  EXPECT_EQ(written, state.layout.bytes);
  EXPECT_EQ(publish(10, 1, 1), PublishOutcome::kPublished);
  written = 0;
  ASSERT_TRUE(checkpoints.verify(Step{10}, control));
  EXPECT_EQ(written, state.layout.bytes);
}

TEST_F(CheckpointTest, TakesAsLongAsItWantsWhileItGoesOn) {
  const SmallState state = small_state(100'000, 1);
  checkpoint(state, 10, 1, 1);
  Control control;
  control.patience = std::chrono::milliseconds(200);
  Duration taken{};
  control.progress = [&](std::int64_t) {  // the throttle
    const Time before = now();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    taken += now() - before;
  };
  EXPECT_TRUE(checkpoints.verify(Step{10}, control));
  EXPECT_GT(taken, control.patience);
  const Time by = control.by();
  EXPECT_LE(by, now() + control.patience);
  control.deadline = now();
  EXPECT_EQ(checkpoints.verify(Step{10}, control).error().code, Code::kRetry);
}

TEST_F(CheckpointTest, StopsWhenToldTo) {
  const SmallState state = small_state(100'000, 1);
  int chunks = 0;
  Control control;
  control.stop = [&] { return ++chunks > 2; };
  const auto stored =
      checkpoints.store_part(identity_of(state, 10, 1), 0, 1, state.bytes, state.digests, control);
  ASSERT_FALSE(stored);
  EXPECT_EQ(stored.error().code, Code::kRetry);
  EXPECT_TRUE(store.names().empty());
  checkpoint(state, 10, 1, 1);
  chunks = 0;
  const auto verified = checkpoints.verify(Step{10}, control);
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code, Code::kRetry);
}

TEST_F(CheckpointTest, StoringAPartAgainIsFineUnlessItDiffers) {
  const SmallState state = small_state(10, 1);
  store_parts(state, 10, 1, 2);
  store_parts(state, 10, 1, 2);
  const SmallState other = small_state(10, 2);
  const auto stored =
      checkpoints.store_part(identity_of(other, 10, 1), 1, 2, other.bytes, other.digests, {});
  ASSERT_FALSE(stored);
  EXPECT_EQ(stored.error().code, Code::kCorrupt);
}

TEST_F(CheckpointTest, RefusesToStoreMemoryThatHasChanged) {
  SmallState state = small_state(100'000, 1);
  state.bytes[5 << 20] ^= std::byte{1};
  const auto stored =
      checkpoints.store_part(identity_of(state, 10, 1), 0, 1, state.bytes, state.digests, {});
  ASSERT_FALSE(stored);
  EXPECT_EQ(stored.error().code, Code::kCorrupt);
  EXPECT_NE(stored.error().message.find("chunk 1"), std::string::npos);
  EXPECT_TRUE(store.names().empty());
}

TEST_F(CheckpointTest, PublishesNothingUntilAllPartsAreThere) {
  const SmallState state = small_state(10, 1);
  ASSERT_TRUE(
      checkpoints.store_part(identity_of(state, 10, 1), 1, 2, state.bytes, state.digests, {}));
  EXPECT_EQ(publish(10, 1, 2, 1), PublishOutcome::kWaiting);
  EXPECT_FALSE(restore_from_store(checkpoints, Step{10}).step);
  // A part of another attempt does not complete the set.
  ASSERT_TRUE(
      checkpoints.store_part(identity_of(state, 10, 2), 0, 2, state.bytes, state.digests, {}));
  EXPECT_EQ(publish(10, 1, 2, 1), PublishOutcome::kWaiting);
  EXPECT_EQ(publish(10, 2, 2, 0), PublishOutcome::kWaiting);
  const auto sets = checkpoints.unpublished(std::nullopt, {});
  ASSERT_TRUE(sets);
  EXPECT_EQ(sets->size(), 2U);
  EXPECT_TRUE(checkpoints.unpublished(Step{10}, {})->empty());
  ASSERT_TRUE(
      checkpoints.store_part(identity_of(state, 10, 1), 0, 2, state.bytes, state.digests, {}));
  EXPECT_EQ(publish(10, 1, 2, 0), PublishOutcome::kPublished);
}

TEST_F(CheckpointTest, OfTwoSetsOfOneStepTheFirstStands) {
  const SmallState state = small_state(10, 1);
  const SmallState other = small_state(10, 2);
  store_parts(other, 10, 2, 1);
  checkpoint(state, 10, 1, 2);
  EXPECT_EQ(publish(10, 2, 1), PublishOutcome::kSuperseded);
  const Restored restored = restore_from_store(checkpoints, Step{10});
  EXPECT_EQ(restored.attempt, Attempt{1});
  EXPECT_TRUE(restored.bytes == state.bytes);
}

TEST_F(CheckpointTest, ASetOfOtherSizeOfTheSameAttemptIsAnotherSet) {
  const SmallState state = small_state(10, 1);
  // Two nodes had agreed on the step; one of them is gone, and the whole state was flushed.
  ASSERT_TRUE(
      checkpoints.store_part(identity_of(state, 10, 1), 1, 2, state.bytes, state.digests, {}));
  checkpoint(state, 10, 1, 1);
  EXPECT_EQ(publish(10, 1, 2, 1), PublishOutcome::kSuperseded);
  EXPECT_EQ(restore_from_store(checkpoints, Step{10}).step, Step{10});
}

TEST_F(CheckpointTest, OfTwoSetsOfOneAttemptTheSmallerReplacesADamagedManifest) {
  const SmallState state = small_state(10, 1);
  checkpoint(state, 10, 1, 2);
  auto& manifest = store.bytes(manifest_name(Step{10}));
  manifest[manifest.size() / 2] ^= std::byte{4};
  store_parts(state, 10, 1, 1);
  EXPECT_EQ(publish(10, 1, 2), PublishOutcome::kWaiting);
  EXPECT_EQ(publish(10, 1, 1), PublishOutcome::kPublished);
}

TEST_F(CheckpointTest, ALaterSetReplacesADamagedCheckpointOfItsStep) {
  const SmallState state = small_state(10, 1);
  for (const bool payload : {true, false}) {
    const std::int64_t step = payload ? 10 : 20;
    checkpoint(state, step, 1, 1);
    auto& damaged =
        store.bytes(payload ? part_name(Step{step}, Attempt{1}, 0, 1) : manifest_name(Step{step}));
    damaged[damaged.size() / 2 + 4096 * payload] ^= std::byte{4};
    store_parts(state, step, 2, 2);
    EXPECT_EQ(publish(step, 2, 2, 1), PublishOutcome::kWaiting);
    EXPECT_EQ(publish(step, 2, 2, 0), PublishOutcome::kPublished);
    const Restored restored = restore_from_store(checkpoints, Step{step});
    EXPECT_EQ(restored.step, Step{step});
    EXPECT_EQ(restored.attempt, Attempt{2});
  }
}

TEST_F(CheckpointTest, APublisherWithdrawsItsManifestWhenPartsAreGone) {
  const SmallState state = small_state(10, 1);
  checkpoint(state, 10, 1, 2);
  ASSERT_TRUE(store.remove(part_name(Step{10}, Attempt{1}, 1, 2), Time::max()));
  EXPECT_EQ(publish(10, 1, 2), PublishOutcome::kWithdrawn);
  EXPECT_EQ(store.names().size(), 1U);
}

TEST_F(CheckpointTest, RefusesToPublishADamagedPart) {
  const SmallState state = small_state(10, 1);
  store_parts(state, 10, 1, 2);
  store.bytes(part_name(Step{10}, Attempt{1}, 1, 2))[100] ^= std::byte{1};
  EXPECT_EQ(publish(10, 1, 2), PublishOutcome::kRefused);
}

TEST_F(CheckpointTest, PublishesNothingBelowTheNewestVerified) {
  store_parts(small_state(10, 1), 10, 1, 1);
  EXPECT_EQ(checkpoints.try_publish(Step{10}, Attempt{1}, 0, 1, Step{10}, {}).outcome,
            PublishOutcome::kSuperseded);
}

// ---- Damage: step 20 is damaged in some way; step 10 must be used, and the refusal must name the
// object.

class DamageTest : public CheckpointTest {
 protected:
  SmallState old = small_state(10, 1);
  SmallState fresh = small_state(10, 2);
  const std::string manifest = manifest_name(Step{20});
  const std::string part0 = part_name(Step{20}, Attempt{1}, 0, 2);
  const std::string part1 = part_name(Step{20}, Attempt{1}, 1, 2);

  void SetUp() override {
    checkpoint(old, 10, 1, 1);
    checkpoint(fresh, 20, 1, 2);
    ASSERT_EQ(restore_from_store(checkpoints, Step{20}).step, Step{20});
  }
  void expect_older(const std::string& named, const std::string& where) {
    const Restored restored = restore_from_store(checkpoints, Step{20});
    ASSERT_EQ(restored.step, Step{10}) << where;
    EXPECT_TRUE(restored.bytes == old.bytes) << where;
    ASSERT_EQ(restored.refusals.size(), 1U) << where;
    EXPECT_NE(restored.refusals[0].find(named), std::string::npos) << restored.refusals[0];
    const auto verified = checkpoints.verify(Step{20}, {});
    ASSERT_FALSE(verified);
    EXPECT_TRUE(verified.error().code == Code::kCorrupt ||
                verified.error().code == Code::kNotFound);
  }
  void expect_flip_is_seen(const std::string& name, std::size_t at, int bit) {
    store.bytes(name)[at] ^= static_cast<std::byte>(1 << bit);
    const auto verified = checkpoints.verify(Step{20}, {});
    ASSERT_FALSE(verified) << name << " byte " << at;
    EXPECT_EQ(verified.error().code, Code::kCorrupt);
    EXPECT_NE(verified.error().message.find(name == manifest ? "manifest" : name),
              std::string::npos);
    // The whole way down to the older checkpoint takes longer: not for each byte.
    if (at % 16 == 0) {
      expect_older(name == manifest ? "manifest" : name,
                   fmt::format("{} byte {} bit {}", name, at, bit));
    }
    store.bytes(name)[at] ^= static_cast<std::byte>(1 << bit);
  }
};

TEST_F(DamageTest, AFlippedBitInAnyByteOfTheManifestIsSeen) {
  for (std::size_t at = 0; at < store.bytes(manifest).size(); ++at)
    expect_flip_is_seen(manifest, at, static_cast<int>(at % 8));
}

TEST_F(DamageTest, AFlippedBitInAnyByteOfAPartsHeaderIsSeen) {
  for (std::size_t at = 0; at < store.bytes(part0).size(); ++at)
    expect_flip_is_seen(part0, at, static_cast<int>(at % 8));
  const std::size_t header =
      store.bytes(part1).size() - static_cast<std::size_t>(fresh.layout.bytes);
  for (std::size_t at = 0; at < header; ++at)
    expect_flip_is_seen(part1, at, static_cast<int>(at % 8));
}

TEST_F(DamageTest, AFlippedBitInAThousandPlacesOfThePayloadIsSeen) {
  std::mt19937_64 random(17);
  const std::size_t size = store.bytes(part1).size();
  const std::size_t header = size - static_cast<std::size_t>(fresh.layout.bytes);
  for (int i = 0; i < 1000; ++i) {
    const std::size_t at = header + random() % (size - header);
    expect_flip_is_seen(part1, at, static_cast<int>(random() % 8));
  }
}

TEST_F(DamageTest, AnyTruncationIsSeen) {
  for (const std::string& name : {manifest, part0, part1}) {
    const auto whole = store.bytes(name);
    for (std::size_t length = 0; length < whole.size(); length += 1 + length / 3) {
      store.set(name, {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)});
      expect_older(name == manifest ? "manifest" : name, fmt::format("{} cut at {}", name, length));
    }
    store.set(name, {whole.begin(), whole.end() - 1});
    expect_older(name == manifest ? "manifest" : name, name + " without its last byte");
    store.set(name, whole);
  }
  auto longer = store.bytes(part1);
  longer.push_back(std::byte{0});
  store.set(part1, longer);
  expect_older(part1, "one byte more");
}

TEST_F(DamageTest, AMissingPartIsSeen) {
  for (const std::string& name : {part0, part1}) {
    const auto whole = store.bytes(name);
    ASSERT_TRUE(store.remove(name, Time::max()));
    expect_older(name, "missing " + name);
    store.set(name, whole);
  }
}

TEST_F(DamageTest, APartOfAnotherStepJobOrAttemptIsSeen) {
  MemoryStore elsewhere;
  const auto foreign_part = [&](const std::string& job, std::int64_t step, std::int64_t attempt) {
    CheckpointStore other(elsewhere, job);
    auto identity = identity_of(fresh, step, attempt);
    identity.job_id = job;
    EXPECT_TRUE(other.store_part(identity, 1, 2, fresh.bytes, fresh.digests, {}));
    const std::string name = part_name(Step{step}, Attempt{attempt}, 1, 2);
    auto bytes = elsewhere.bytes(name);
    EXPECT_TRUE(elsewhere.remove(name, Time::max()));
    return bytes;
  };
  for (const auto& bytes : {foreign_part("fedcba9876543210", 20, 1), foreign_part(kJob, 21, 1),
                            foreign_part(kJob, 20, 2)}) {
    // The payload is the right one, and the size as well: only the header tells.
    ASSERT_EQ(bytes.size(), store.bytes(part1).size());
    store.set(part1, bytes);
    expect_older(part1, "foreign part");
  }
  store.set(part1, store.bytes(part0));
  expect_older(part1, "the other part");
}

TEST_F(DamageTest, AMissingManifestIsSeen) {
  ASSERT_TRUE(store.remove(manifest, Time::max()));
  expect_older("no manifest", "missing manifest");
}

TEST_F(DamageTest, AManifestWithoutPartsIsSeen) {
  ASSERT_TRUE(store.remove(part0, Time::max()));
  ASSERT_TRUE(store.remove(part1, Time::max()));
  expect_older(part0, "manifest without parts");
}

TEST_F(DamageTest, AManifestOfAnotherStepOrJobIsSeen) {
  store.set(manifest, store.bytes(manifest_name(Step{10})));
  expect_older("is of step 10", "manifest of step 10");
  MemoryStore elsewhere;
  CheckpointStore other(elsewhere, "fedcba9876543210");
  auto identity = identity_of(fresh, 20, 1);
  identity.job_id = "fedcba9876543210";
  ASSERT_TRUE(other.store_part(identity, 0, 1, fresh.bytes, fresh.digests, {}));
  ASSERT_EQ(other.try_publish(Step{20}, Attempt{1}, 0, 1, std::nullopt, {}).outcome,
            PublishOutcome::kPublished);
  store.set(manifest, elsewhere.bytes(manifest));
  expect_older("of job fedcba9876543210", "manifest of another job");
}

TEST_F(DamageTest, WithoutAnyGoodCopyThereIsOneClearLine) {
  store.bytes(part1)[5000] ^= std::byte{1};
  store.bytes(part_name(Step{10}, Attempt{1}, 0, 1))[5000] ^= std::byte{1};
  const Restored restored = restore_from_store(checkpoints, Step{20});
  EXPECT_FALSE(restored.step);
  EXPECT_EQ(restored.refusals.size(), 2U);
  EXPECT_NE(restored.error.find("step 20"), std::string::npos);
}

// ---- Deleting

TEST_F(CheckpointTest, CleansOnlyBelowAVerifiedCheckpoint) {
  const SmallState state = small_state(10, 1);
  for (const std::int64_t step : {10, 20, 30, 40}) checkpoint(state, step, 1, 2);
  store_parts(state, 25, 1, 1);  // never published
  store.age(std::chrono::minutes(11));
  store_parts(state, 35, 1, 1);  // never published, and young
  const auto verified = checkpoints.verify(Step{40}, {});
  ASSERT_TRUE(verified);
  const auto report = checkpoints.clean(*verified, 2, {});
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->failures.empty());
  std::vector<std::string> expected;
  for (const std::int64_t step : {30, 40}) {
    expected.push_back(part_name(Step{step}, Attempt{1}, 0, 2));
    expected.push_back(part_name(Step{step}, Attempt{1}, 1, 2));
    expected.push_back(manifest_name(Step{step}));
  }
  expected.push_back(part_name(Step{35}, Attempt{1}, 0, 1));
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(store.names(), expected);
}

TEST_F(CheckpointTest, CleansNothingWhenTheVerifiedOneIsGone) {
  const SmallState state = small_state(10, 1);
  checkpoint(state, 10, 1, 1);
  checkpoint(state, 20, 1, 1);
  const auto verified = checkpoints.verify(Step{20}, {});
  ASSERT_TRUE(verified);
  ASSERT_TRUE(store.remove(part_name(Step{20}, Attempt{1}, 0, 1), Time::max()));
  EXPECT_FALSE(checkpoints.clean(*verified, 1, {}));
  EXPECT_EQ(restore_from_store(checkpoints, Step{20}).step, Step{10});
}

TEST_F(CheckpointTest, RemovesAStepAtTheUsersWord) {
  const SmallState state = small_state(10, 1);
  checkpoint(state, 10, 1, 2);
  EXPECT_TRUE(checkpoints.remove_step(Step{10}, {}));
  EXPECT_TRUE(store.names().empty());
  EXPECT_EQ(checkpoints.remove_step(Step{10}, {}).error().code, Code::kNotFound);
}

TEST_F(CheckpointTest, AFolderBelongsToOneJob) {
  EXPECT_TRUE(checkpoints.claim("dictionary-gpt", {}));
  EXPECT_TRUE(checkpoints.claim("dictionary-gpt", {}));
  CheckpointStore other(store, "fedcba9876543210");
  const auto claimed = other.claim("dictionary-gpt", {});
  ASSERT_FALSE(claimed);
  EXPECT_EQ(claimed.error().code, Code::kInvalid);
  // Neither deletes, replaces nor offers what is the other's.
  const SmallState state = small_state(10, 1);
  checkpoint(state, 10, 1, 1);
  EXPECT_EQ(other.list({})->at(0).inventory.state, StepState::kUnknown);
  EXPECT_FALSE(other.verify(Step{10}, {}));
  auto identity = identity_of(state, 10, 2);
  identity.job_id = "fedcba9876543210";
  ASSERT_TRUE(other.store_part(identity, 0, 1, state.bytes, state.digests, {}));
  EXPECT_EQ(other.try_publish(Step{10}, Attempt{2}, 0, 1, std::nullopt, {}).outcome,
            PublishOutcome::kFailed);
  EXPECT_TRUE(checkpoints.verify(Step{10}, {}));
}

TEST_F(CheckpointTest, ListsNewestFirstWithReasons) {
  const SmallState state = small_state(10, 1);
  checkpoint(state, 10, 1, 1);
  checkpoint(state, 20, 1, 1);
  store_parts(state, 30, 1, 1);
  ASSERT_TRUE(store.remove(part_name(Step{20}, Attempt{1}, 0, 1), Time::max()));
  const auto entries = checkpoints.list({});
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 3U);
  EXPECT_EQ((*entries)[0].inventory.state, StepState::kUnpublished);
  EXPECT_EQ((*entries)[1].inventory.state, StepState::kDamaged);
  EXPECT_NE((*entries)[1].reason.find("is missing"), std::string::npos);
  EXPECT_EQ((*entries)[2].inventory.state, StepState::kWhole);
  EXPECT_EQ((*entries)[2].manifest->identity.samples, 320);
}

}  // namespace
}  // namespace surefoot::testing
