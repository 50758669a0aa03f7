// The state on a device, and its way into the arena behind the step: ranks of a node as threads. On
// the device that the program is linked with (testing/test_device.h).
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "checkpoint/arena_test_util.h"
#include "worker/device_contract.h"
#include "worker/state_home.h"
#include "worker/testing/test_device.h"

namespace surefoot {
namespace {

constexpr std::int64_t kElements = 3 * kChunkBytes / 4 / 3 + 4096;  // more than one chunk each
constexpr Attempt kAttempt{1};

StateLayout layout() {
  StateLayout layout;
  const TensorSpec tensor{"w", {kElements / 2, 2}, 0};
  layout.add_section("parameters", DType::kF32, {tensor});
  layout.add_section("exp_avg", DType::kF32, {tensor});
  layout.add_section("exp_avg_sq", DType::kF32, {tensor});
  layout.add_section("buffers.F32", DType::kF32, {{"mean", {100}, 0}});
  return layout;
}

config::Optimizer adamw() {
  config::Optimizer options;
  options.set_kind(config::Optimizer::adamw);
  options.set_lr(1e-2);
  options.add_betas(0.9);
  options.add_betas(0.99);
  options.set_eps(1e-8);
  options.set_weight_decay(0.1);
  return options;
}

Time soon() {
  return now() + std::chrono::seconds(30);
}

// Sums that are there already, where the device has them; all of them are this rank's share.
class GivenSums final : public Reducer {
 public:
  explicit GivenSums(Device* device)
      : device_(device), sums_(static_cast<std::size_t>(buffer_begin() + 128)), there_(sums_) {
    if (device_ == nullptr) return;
    const auto bytes = std::as_bytes(std::span(sums_));
    const auto memory = device_->allocate(static_cast<std::int64_t>(bytes.size()), "the sums");
    SUREFOOT_CHECK(memory.has_value());
    there_ = {reinterpret_cast<float*>(memory->data()), sums_.size()};
  }
  void draw(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (float& value : sums_) value = static_cast<float>(random() % 2000) / 1000 - 1;
    if (device_ == nullptr) return;
    SUREFOOT_CHECK(
        device_
            ->upload(std::as_bytes(std::span(sums_)), std::as_writable_bytes(there_).data(), soon())
            .has_value());
  }
  [[nodiscard]] const std::vector<ElementRange>& share() const override { return share_; }
  [[nodiscard]] int gradient_buffers() const override { return 1; }
  [[nodiscard]] std::int64_t buffer_begin() const override {
    return (kElements + kBlockElements - 1) / kBlockElements * kBlockElements;
  }
  void begin_step() override {}
  std::span<float> begin_micro_batch() override { return there_; }
  void ready(ElementRange) override {}
  void end_micro_batch() override {}
  Result<ReducedStep> finish(const ControlWord&, std::span<const double>, Time) override {
    return ReducedStep{};
  }
  [[nodiscard]] std::span<const float> sum() const override { return there_; }

 private:
  Device* device_;
  std::vector<float> sums_;
  std::span<float> there_;
  std::vector<ElementRange> share_ = {{0, buffer_begin() + 128}};
};

// A node with an arena in which step 0 is READY.
class Node {
 public:
  explicit Node(int ranks) : ranks_(ranks), options_(adamw()), optimizer_(options_, {{0, 1000}}) {
    auto created = Arena::create(folder_.path(), test_spec(layout_.bytes));
    SUREFOOT_CHECK(created.has_value());
    const std::unique_ptr<Arena> arena = std::move(*created);
    arena->set_gang({kAttempt.value, ranks_});
    const auto slot = arena->take(kAttempt, Step{0});
    SUREFOOT_CHECK(slot.has_value());
    std::mt19937_64 random(7);
    const auto bytes = arena->bytes(*slot);
    std::memset(bytes.data(), 0, bytes.size());
    const auto* floats = layout_.find("parameters");
    auto* values = reinterpret_cast<float*>(bytes.data() + floats->offset);
    for (std::int64_t i = 0; i < kElements; ++i)
      values[i] = static_cast<float>(random() % 1000) / 500 - 1;
    digest_slot(*arena, *slot);
    SUREFOOT_CHECK(arena->publish(*slot, kAttempt, Step{0}, 0, false).has_value());
    zero_ = *slot;
  }

  // Runs `body` on every rank with a session on the arena; all at once.
  void run(const std::function<void(int rank, const Session&, StateParts)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        Session session;
        session.attempt = kAttempt;
        session.place = {0, rank, ranks_};
        session.arena = open_arena();
        body(rank, session,
             {session, layout_, optimizer_, options_, 100, [](std::span<std::byte>) {}});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  [[nodiscard]] int zero() const { return zero_; }
  [[nodiscard]] const StateLayout& state_layout() const { return layout_; }
  [[nodiscard]] std::unique_ptr<Arena> open_arena() const {
    auto arena = Arena::open(folder_.path());
    SUREFOOT_CHECK(arena.has_value());
    return std::move(*arena);
  }

 private:
  static void digest_slot(Arena& arena, int slot) {
    const auto bytes = arena.bytes(slot);
    const auto table = arena.chunk_digests(slot);
    for (std::size_t chunk = 0; chunk < table.size(); ++chunk) {
      const std::size_t from = chunk * kChunkBytes;
      table[chunk] =
          digest(bytes.subspan(from, std::min<std::size_t>(kChunkBytes, bytes.size() - from)));
    }
  }
  const int ranks_;
  const StateLayout layout_ = layout();
  const config::Optimizer options_;
  const Optimizer optimizer_;
  TemporaryFolder folder_;
  int zero_ = -1;
};

StepUpdate update_of(const Reducer& sums, std::int64_t step) {
  StepScalars scalars;
  scalars.step = Step{step};
  scalars.learning_rate = 1e-2;
  scalars.gradient_scale = 0.25;
  return {sums, scalars, 4};
}

// Steps 1..last on every rank; the digest of the state after each.
std::vector<Digest> train(Node& node, int last, bool on_device) {
  std::vector<Digest> digests(static_cast<std::size_t>(last) + 1);
  node.run([&](int rank, const Session& session, StateParts parts) {
    std::unique_ptr<Device> device;
    std::unique_ptr<StateHome> home;
    if (on_device) {
      device = surefoot::testing::make_test_device();
      auto made = make_device_state(std::move(parts), *device, soon());
      ASSERT_TRUE(made);
      home = std::move(*made);
    } else {
      home = make_arena_state(std::move(parts));
    }
    ASSERT_TRUE(home->start_from(node.zero(), soon()));
    GivenSums sums(device.get());
    for (std::int64_t step = 1; step <= last; ++step) {
      ASSERT_TRUE(home->begin(Step{step}, soon()));
      ASSERT_TRUE(home->settle(soon()));
      if (rank == 0)
        digests[static_cast<std::size_t>(step) - 1] = session.arena->slot(home->slot()).digest;
      sums.draw(static_cast<std::uint64_t>(step));
      home->update(update_of(sums, step));
      ASSERT_TRUE(home->commit(step * 8, false, {}, soon()));
    }
    const Status settled = home->settle(soon());
    ASSERT_TRUE(settled) << settled.error().message;
    EXPECT_EQ(session.arena->slot(home->slot()).step, Step{last});
    EXPECT_EQ(session.arena->slot(home->slot()).samples, last * 8);
    EXPECT_TRUE(session.arena->verify(home->slot()));
    if (rank == 0)
      digests[static_cast<std::size_t>(last)] = session.arena->slot(home->slot()).digest;
  });
  return digests;
}

TEST(DeviceState, HasTheBitsOfTheProcessorAfterEveryStepForAnyNumberOfRanks) {
  Node alone(1);
  const std::vector<Digest> expected = train(alone, 6, false);
  for (std::size_t i = 1; i < expected.size(); ++i) EXPECT_NE(expected[i], expected[i - 1]);
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    Node node(ranks);
    EXPECT_EQ(train(node, 6, true), expected);
  }
}

TEST(DeviceState, AStepIsReadyOnlyWhenItHasSettled) {
  Node node(1);
  node.run([&](int, const Session& session, StateParts parts) {
    const auto device = surefoot::testing::make_test_device();
    auto home = make_device_state(std::move(parts), *device, soon());
    ASSERT_TRUE(home);
    ASSERT_TRUE((*home)->start_from(node.zero(), soon()));
    GivenSums sums(device.get());
    (void)(*home)->begin(Step{1}, soon());
    (*home)->update(update_of(sums, 1));
    ASSERT_TRUE((*home)->commit(8, false, {}, soon()));
    EXPECT_EQ((*home)->slot(), node.zero()) << "what was there before";
    ASSERT_TRUE((*home)->settle(soon()));
    EXPECT_EQ(session.arena->slot((*home)->slot()).step, Step{1});
  });
}

TEST(DeviceState, GoesBackToAnOlderSlot) {
  Node node(1);
  node.run([&](int, const Session&, StateParts parts) {
    const auto device = surefoot::testing::make_test_device();
    auto home = make_device_state(std::move(parts), *device, soon());
    ASSERT_TRUE(home);
    ASSERT_TRUE((*home)->start_from(node.zero(), soon()));
    const auto state = [&] {
      std::vector<std::byte> copy((*home)->bytes().size());
      const ByteRange all{0, static_cast<std::int64_t>(copy.size())};
      SUREFOOT_CHECK(device->mark().has_value());
      SUREFOOT_CHECK(
          device->download((*home)->bytes().data(), copy, std::span(&all, 1), soon()).has_value());
      return copy;
    };
    const std::vector<std::byte> before = state();
    GivenSums sums(device.get());
    sums.draw(1);
    (void)(*home)->begin(Step{1}, soon());
    (*home)->update(update_of(sums, 1));
    ASSERT_TRUE((*home)->commit(8, false, {}, soon()));
    ASSERT_TRUE((*home)->settle(soon()));
    EXPECT_NE(state(), before);
    ASSERT_TRUE((*home)->start_from(node.zero(), soon()));
    EXPECT_EQ(state(), before);
  });
}

TEST(DeviceState, ARankThatNeverCommitsIsNamedWhenTheOthersSettle) {
  Node node(2);
  node.run([&](int rank, const Session&, StateParts parts) {
    const auto device = surefoot::testing::make_test_device();
    auto home = make_device_state(std::move(parts), *device, soon());
    ASSERT_TRUE(home);
    ASSERT_TRUE((*home)->start_from(node.zero(), soon()));
    GivenSums sums(device.get());
    (void)(*home)->begin(Step{1}, soon());
    (*home)->update(update_of(sums, 1));
    if (rank == 1) return;
    ASSERT_TRUE((*home)->commit(8, false, {}, now() + std::chrono::milliseconds(200)));
    const Status settled = (*home)->settle(soon());
    ASSERT_FALSE(settled);
    EXPECT_EQ(settled.error().code, Code::kRestart);
    EXPECT_NE(settled.error().message.find("local ranks 1"), std::string::npos)
        << settled.error().message;
  });
}

struct Linked {
  static std::unique_ptr<Device> open() { return surefoot::testing::make_test_device(); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Linked, DeviceContract, Linked);

}  // namespace
}  // namespace surefoot
