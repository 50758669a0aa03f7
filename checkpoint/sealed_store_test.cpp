// Encrypted checkpoints over a store: nothing of the weights gets out, whatever is changed or moved
// is refused, and a missing or wrong key is an error that costs nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <unordered_set>

#include "checkpoint/checkpoint_store.h"
#include "checkpoint/hex_digests.h"
#include "checkpoint/testing/memory_store.h"
#include "checkpoint/testing/restore_from_store.h"
#include "checkpoint/testing/small_state.h"
#include "checkpoint/testing/test_keys.h"

namespace surefoot::testing {
namespace {

const std::string kJob = "0123456789abcdef";

void checkpoint(CheckpointStore& in, const SmallState& state, std::int64_t step,
                std::int64_t attempt, int of) {
  for (int part = 0; part < of; ++part) {
    const auto stored =
        in.store_part(identity_of(state, step, attempt), part, of, state.bytes, state.digests, {});
    ASSERT_TRUE(stored) << stored.error().message;
  }
  const auto published = in.try_publish(Step{step}, Attempt{attempt}, 0, of, std::nullopt, {});
  ASSERT_EQ(published.outcome, PublishOutcome::kPublished) << published.reason;
}

// Any 16 bytes of the state, or any of its digests, in binary or in hex: how many are in there?
int traces_of(const SmallState& state, MemoryStore& store) {
  std::unordered_set<std::string_view> windows;
  const std::string_view plain(reinterpret_cast<const char*>(state.bytes.data()),
                               state.bytes.size());
  for (std::size_t at = 0; at + 16 <= plain.size(); ++at) windows.insert(plain.substr(at, 16));
  std::vector<Digest> digests = state.digests;
  digests.push_back(state_digest(state.digests));
  int found = 0;
  for (const std::string& name : store.names()) {
    const auto& bytes = store.bytes(name);
    const std::string_view content(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    for (std::size_t at = 0; at + 16 <= content.size(); ++at)
      found += windows.contains(content.substr(at, 16)) ? 1 : 0;
    for (const Digest& digest : digests) {
      const std::string_view raw(reinterpret_cast<const char*>(digest.bytes.data()), 16);
      found += content.find(raw) != std::string_view::npos ? 1 : 0;
      found += content.find(digest.hex()) != std::string_view::npos ? 1 : 0;
    }
  }
  return found;
}

class SealedStoreTest : public ::testing::Test {
 protected:
  MemoryStore store;
  CheckpointStore checkpoints{store, kJob, test_keys(1)};
};

TEST_F(SealedStoreTest, LoadsWhatWasStoredForAnyNumberOfParts) {
  const SmallState state = small_state(100'000, 1);
  std::int64_t step = 10;
  for (const int of : {1, 2, 3, 9}) {
    checkpoint(checkpoints, state, step, 1, of);
    const Restored restored = restore_from_store(checkpoints, Step{step});
    EXPECT_EQ(restored.step, Step{step});
    EXPECT_TRUE(restored.bytes == state.bytes);
    EXPECT_TRUE(restored.refusals.empty());
    EXPECT_TRUE(checkpoints.verify(Step{step}, {}));
    const auto manifest = checkpoints.read_manifest(Step{step}, {});
    ASSERT_TRUE(manifest);
    EXPECT_EQ(manifest->chunk_digests, state.digests);
    EXPECT_EQ(manifest->state_digest, state_digest(state.digests));
    step += 10;
  }
}

TEST_F(SealedStoreTest, NothingOfTheStateIsInTheStore) {
  const SmallState state = small_state(100, 1);
  checkpoint(checkpoints, state, 10, 1, 2);
  ASSERT_TRUE(checkpoints.claim("job", {}));
  EXPECT_EQ(traces_of(state, store), 0);
  // The search finds what there is to be found.
  MemoryStore open;
  CheckpointStore in_the_clear(open, kJob);
  checkpoint(in_the_clear, state, 10, 1, 2);
  EXPECT_GE(traces_of(state, open), static_cast<int>(state.bytes.size()) - 16);
}

// Whoever writes it, however often: every object has the same bytes, and publishing needs no key.
TEST_F(SealedStoreTest, EqualStatesGiveEqualObjects) {
  const SmallState state = small_state(100'000, 1);
  checkpoint(checkpoints, state, 10, 1, 2);
  MemoryStore again;
  CheckpointStore other(again, kJob, test_keys(1));
  CheckpointStore publisher(again, kJob);
  for (const int part : {1, 0}) {
    ASSERT_TRUE(
        other.store_part(identity_of(state, 10, 1), part, 2, state.bytes, state.digests, {}));
  }
  EXPECT_EQ(publisher.try_publish(Step{10}, Attempt{1}, 1, 2, std::nullopt, {}).outcome,
            PublishOutcome::kPublished);
  ASSERT_EQ(again.names(), store.names());
  for (const std::string& name : store.names())
    EXPECT_TRUE(again.bytes(name) == store.bytes(name)) << name;
}

TEST_F(SealedStoreTest, StoringAPartAgainIsFineUnlessItDiffers) {
  const SmallState state = small_state(10, 1);
  checkpoint(checkpoints, state, 10, 1, 1);
  EXPECT_TRUE(
      checkpoints.store_part(identity_of(state, 10, 1), 0, 1, state.bytes, state.digests, {}));
  const SmallState other = small_state(10, 2);
  const auto stored =
      checkpoints.store_part(identity_of(other, 10, 1), 0, 1, other.bytes, other.digests, {});
  ASSERT_FALSE(stored);
  EXPECT_EQ(stored.error().code, Code::kCorrupt);
}

TEST_F(SealedStoreTest, RefusesToStoreMemoryThatHasChanged) {
  SmallState state = small_state(100'000, 1);
  state.bytes[5 << 20] ^= std::byte{1};
  const auto stored =
      checkpoints.store_part(identity_of(state, 10, 1), 0, 1, state.bytes, state.digests, {});
  ASSERT_FALSE(stored);
  EXPECT_EQ(stored.error().code, Code::kCorrupt);
  EXPECT_TRUE(store.names().empty());
}

TEST_F(SealedStoreTest, ReportsEveryByteOfTheState) {
  const SmallState state = small_state(100'000, 1);
  std::int64_t done = 0;
  Control control;
  control.progress = [&](std::int64_t bytes) { done += bytes; };
  ASSERT_TRUE(
      checkpoints.store_part(identity_of(state, 10, 1), 0, 1, state.bytes, state.digests, control));
  EXPECT_EQ(done, state.layout.bytes);
}

// ---- Damage

class SealedDamageTest : public SealedStoreTest {
 protected:
  SmallState old = small_state(10, 1);
  SmallState fresh = small_state(10, 2);
  const std::string manifest = manifest_name(Step{20});
  const std::string part0 = part_name(Step{20}, Attempt{1}, 0, 2);
  const std::string part1 = part_name(Step{20}, Attempt{1}, 1, 2);  // it has the only chunk

  void SetUp() override {
    checkpoint(checkpoints, old, 10, 1, 1);
    checkpoint(checkpoints, fresh, 20, 1, 2);
    ASSERT_EQ(restore_from_store(checkpoints, Step{20}).step, Step{20});
  }
  void expect_refused(const std::string& what, bool whole_way = true) {
    const auto verified = checkpoints.verify(Step{20}, {});
    ASSERT_FALSE(verified) << what;
    EXPECT_EQ(verified.error().code, Code::kCorrupt) << verified.error().message;
    if (!whole_way) return;
    const Restored restored = restore_from_store(checkpoints, Step{20});
    EXPECT_EQ(restored.step, Step{10}) << what;
    EXPECT_TRUE(restored.bytes == old.bytes) << what;
  }
  [[nodiscard]] std::size_t payload_of(const std::string& part, const SmallState& state) {
    return store.bytes(part).size() - static_cast<std::size_t>(sealed_bytes(state.layout.bytes));
  }
};

TEST_F(SealedDamageTest, AFlippedBitInAnyByteOfAnyObjectIsSeen) {
  for (const std::string& name : {manifest, part0, part1}) {
    for (std::size_t at = 0; at < store.bytes(name).size(); ++at) {
      const auto bit = static_cast<std::byte>(1 << (at % 8));
      store.bytes(name)[at] ^= bit;
      expect_refused(name + " byte " + std::to_string(at), at % 64 == 0);
      store.bytes(name)[at] ^= bit;
    }
  }
}

TEST_F(SealedDamageTest, AnyTruncationIsSeen) {
  for (const std::string& name : {manifest, part0, part1}) {
    const auto whole = store.bytes(name);
    for (std::size_t length = 0; length < whole.size(); length += 1 + length / 5) {
      store.set(name, {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)});
      expect_refused(name + " cut at " + std::to_string(length));
    }
    store.set(name, whole);
  }
}

// A part of another step, attempt, job, or place, in the place of one that has the same size.
TEST_F(SealedDamageTest, AForeignPartIsSeen) {
  const auto part_of = [&](const std::string& job, std::int64_t step, std::int64_t attempt) {
    MemoryStore elsewhere;
    CheckpointStore other(elsewhere, job, test_keys(1));
    auto identity = identity_of(fresh, step, attempt);
    identity.job_id = job;
    EXPECT_TRUE(other.store_part(identity, 1, 2, fresh.bytes, fresh.digests, {}));
    return elsewhere.bytes(part_name(Step{step}, Attempt{attempt}, 1, 2));
  };
  const auto good = store.bytes(part1);
  const auto header = static_cast<std::ptrdiff_t>(payload_of(part1, fresh));
  for (const auto& foreign :
       {part_of("fedcba9876543210", 20, 1), part_of(kJob, 21, 1), part_of(kJob, 20, 2)}) {
    ASSERT_EQ(foreign.size(), good.size());
    store.set(part1, foreign);
    expect_refused("a foreign part");
    // With the right header before it, which says nothing against it: the plain bytes are the same.
    auto mixed = foreign;
    std::copy(good.begin(), good.begin() + header, mixed.begin());
    ASSERT_TRUE(mixed != good);
    store.set(part1, mixed);
    expect_refused("a foreign payload");
  }
}

// Step 10 again, as step 20: what a thief of one step could offer, all unkeyed digests made anew.
TEST_F(SealedDamageTest, AReplayedCheckpointIsSeen) {
  auto replayed = checkpoints.read_manifest(Step{10}, {});
  ASSERT_TRUE(replayed);
  PartHeader header = header_of(*replayed, 0);
  header.identity.step = Step{20};
  const std::string encoded = encode_part_header(header);
  auto bytes = store.bytes(part_name(Step{10}, Attempt{1}, 0, 1));
  std::memcpy(bytes.data(), encoded.data(), encoded.size());
  const auto forged = make_manifest({{static_cast<std::int64_t>(bytes.size()), encoded}});
  ASSERT_TRUE(forged) << forged.error().message;
  const std::string text = encode_manifest(*forged);
  store.set(part_name(Step{20}, Attempt{1}, 0, 1), bytes);
  const auto raw = as_bytes(text);
  store.set(manifest, {raw.begin(), raw.end()});
  expect_refused("step 10 as step 20");
}

// Every piece in every other place, and in its place at another step.
TEST(SealedPieces, FitNowhereElse) {
  const SmallState state = small_state(60'000, 3);  // 13 MB: 4 chunks, 13 pieces
  MemoryStore store;
  CheckpointStore checkpoints(store, kJob, test_keys(1));
  checkpoint(checkpoints, state, 10, 1, 2);
  checkpoint(checkpoints, state, 20, 1, 2);
  constexpr std::int64_t kPiece = kSealPieceBytes + kSealExtraBytes;
  const auto place = [&](std::int64_t step, int part, std::int64_t piece) {
    auto& bytes = store.bytes(part_name(Step{step}, Attempt{1}, part, 2));
    const auto chunks = part_chunks(state.layout.chunks(), part, 2);
    const auto header = static_cast<std::int64_t>(bytes.size()) -
                        stored_payload_bytes(chunks, state.layout.bytes, true);
    return std::span(bytes).subspan(header + piece * kPiece, kPiece);
  };
  const std::vector<std::byte> kept(place(20, 0, 1).begin(), place(20, 0, 1).end());
  int tried = 0;
  for (const std::int64_t step : {10, 20}) {
    for (const int part : {0, 1}) {
      for (const std::int64_t piece : {0, 1, 2, 4, 5}) {
        if (part == 1 && piece > 4) continue;  // the last of part 1 is shorter
        if (step == 20 && part == 0 && piece == 1) continue;
        const auto from = place(step, part, piece);
        std::copy(from.begin(), from.end(), place(20, 0, 1).begin());
        const auto verified = checkpoints.verify(Step{20}, {});
        ASSERT_FALSE(verified) << step << " " << part << " " << piece;
        EXPECT_EQ(verified.error().code, Code::kCorrupt);
        EXPECT_NE(verified.error().message.find("piece 1 of part"), std::string::npos);
        std::copy(kept.begin(), kept.end(), place(20, 0, 1).begin());
        ++tried;
      }
    }
  }
  EXPECT_EQ(tried, 17);
  EXPECT_TRUE(checkpoints.verify(Step{20}, {}));
}

// ---- Keys that are missing, wrong, or new

class KeyTest : public ::testing::Test {
 protected:
  MemoryStore store;
  SmallState state = small_state(10, 1);
  CheckpointStore right{store, kJob, test_keys(1)};

  void expect_locked_out(CheckpointStore& locked) {
    const auto before = store.names();
    const auto expect = [&](const Status& status) {
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Code::kInvalid) << status.error().message;
      EXPECT_NE(status.error().message.find(test_key(1).id()), std::string::npos)
          << status.error().message;
    };
    const auto status_of = [](const auto& result) {
      return result ? Status() : Status(result.error());
    };
    expect(locked.claim("job", {}));
    expect(status_of(locked.read_manifest(Step{20}, {})));
    expect(status_of(locked.verify(Step{20}, {})));
    expect(status_of(
        locked.store_part(identity_of(state, 20, 1), 0, 1, state.bytes, state.digests, {})));
    const auto entries = locked.list({});
    ASSERT_TRUE(entries);
    ASSERT_EQ(entries->size(), 2U);
    for (const StepEntry& entry : *entries) {
      EXPECT_TRUE(entry.locked);
      EXPECT_EQ(entry.inventory.state, StepState::kUnknown);
      EXPECT_EQ(entry.manifest->key_id, test_key(1).id());
      EXPECT_NE(entry.reason.find(test_key(1).id()), std::string::npos);
    }
    EXPECT_FALSE(restore_from_store(locked, Step{20}).step);
    // Another set of the step is not published over it either.
    EXPECT_NE(locked.try_publish(Step{20}, Attempt{1}, 0, 1, std::nullopt, {}).outcome,
              PublishOutcome::kWithdrawn);
    EXPECT_EQ(store.names(), before);
  }
};

TEST_F(KeyTest, AMissingOrWrongKeyIsAnErrorThatRemovesNothing) {
  ASSERT_TRUE(right.claim("job", {}));
  checkpoint(right, state, 10, 1, 1);
  checkpoint(right, state, 20, 1, 1);
  CheckpointStore without(store, kJob);
  expect_locked_out(without);
  CheckpointStore wrong(store, kJob, test_keys(2));
  expect_locked_out(wrong);
  EXPECT_EQ(restore_from_store(right, Step{20}).step, Step{20});
}

TEST_F(KeyTest, ASetUnderAnotherKeyIsNotReplaced) {
  ASSERT_TRUE(right.claim("job", {}));
  checkpoint(right, state, 20, 1, 1);
  CheckpointStore wrong(store, kJob, test_keys(2));
  ASSERT_TRUE(wrong.store_part(identity_of(state, 20, 2), 0, 1, state.bytes, state.digests, {}));
  EXPECT_EQ(wrong.try_publish(Step{20}, Attempt{2}, 0, 1, std::nullopt, {}).outcome,
            PublishOutcome::kFailed);
  EXPECT_TRUE(right.verify(Step{20}, {}));
}

TEST_F(KeyTest, WhatNoKeyOpensIsNeverCleanedAway) {
  checkpoint(right, state, 10, 1, 1);
  store.age(std::chrono::hours(1));
  CheckpointStore other(store, kJob, test_keys(2));
  checkpoint(other, state, 20, 1, 1);
  checkpoint(other, state, 30, 1, 1);
  const auto verified = other.verify(Step{30}, {});
  ASSERT_TRUE(verified);
  ASSERT_TRUE(other.clean(*verified, 1, {}));
  EXPECT_TRUE(right.verify(Step{10}, {}));
  EXPECT_FALSE(other.read_manifest(Step{20}, {}));
}

TEST_F(KeyTest, SwitchedOnInTheMiddleOlderCheckpointsStillLoad) {
  CheckpointStore before(store, kJob);
  ASSERT_TRUE(before.claim("job", {}));
  checkpoint(before, state, 10, 1, 1);
  ASSERT_TRUE(right.claim("job", {}));
  EXPECT_EQ(restore_from_store(right, Step{10}).step, Step{10});
  checkpoint(right, state, 20, 2, 1);
  EXPECT_TRUE(right.read_manifest(Step{20}, {})->is_encrypted());
  EXPECT_EQ(right.list({})->size(), 2U);
  EXPECT_TRUE(right.verify(Step{10}, {}));
  // ... and never off again in silence.
  const auto refused = before.claim("job", {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_NE(refused.error().message.find("key_file"), std::string::npos);
}

// The last step of an earlier life stands there in the clear, or under the key before: the same
// state needs no second copy.
TEST_F(KeyTest, APartOfTheSameContentUnderAnotherKeyIsFine) {
  CheckpointStore before(store, kJob);
  const auto identity = identity_of(state, 10, 1);
  ASSERT_TRUE(before.store_part(identity, 0, 1, state.bytes, state.digests, {}));
  EXPECT_TRUE(right.store_part(identity, 0, 1, state.bytes, state.digests, {}));
  const SmallState other = small_state(10, 2);
  EXPECT_EQ(right.store_part(identity_of(other, 10, 1), 0, 1, other.bytes, other.digests, {})
                .error()
                .code,
            Code::kCorrupt);
  std::vector<SealKey> old;
  old.push_back(test_key(1));
  CheckpointStore rotated(store, kJob,
                          std::make_shared<const KeyRing>(test_key(2), std::move(old)));
  checkpoint(right, state, 20, 1, 1);
  EXPECT_TRUE(rotated.store_part(identity_of(state, 20, 1), 0, 1, state.bytes, state.digests, {}));
}

TEST_F(KeyTest, AReplacedKeyStillOpensWhatItSealed) {
  ASSERT_TRUE(right.claim("job", {}));
  checkpoint(right, state, 10, 1, 2);
  std::vector<SealKey> old;
  old.push_back(test_key(1));
  CheckpointStore rotated(store, kJob,
                          std::make_shared<const KeyRing>(test_key(2), std::move(old)));
  ASSERT_TRUE(rotated.claim("job", {}));
  EXPECT_EQ(restore_from_store(rotated, Step{10}).step, Step{10});
  checkpoint(rotated, state, 20, 1, 2);
  EXPECT_EQ(rotated.read_manifest(Step{20}, {})->key_id, test_key(2).id());
  const auto verified = rotated.verify(Step{20}, {});
  ASSERT_TRUE(verified);
  ASSERT_TRUE(rotated.clean(*verified, 1, {}));
  EXPECT_EQ(rotated.list({})->size(), 1U);
}

// Damaged manifests on the way to the newest good one do not hide that it is encrypted.
TEST_F(KeyTest, ADamagedManifestDoesNotOpenTheWayForPlainBytes) {
  ASSERT_TRUE(right.claim("job", {}));
  checkpoint(right, state, 10, 1, 1);
  checkpoint(right, state, 20, 1, 1);
  store.bytes(manifest_name(Step{20}))[100] ^= std::byte{1};
  CheckpointStore without(store, kJob);
  EXPECT_FALSE(without.claim("job", {}));
  EXPECT_TRUE(right.claim("job", {}));
}

}  // namespace
}  // namespace surefoot::testing
