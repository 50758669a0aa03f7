// The training state on a device, and the thread that brings it into the arena.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "worker/state_home.h"
#include "worker/state_sections.h"

namespace surefoot {
namespace {

// Brings one step at a time from the device into the arena, on a thread of its own.
class Courier {
 public:
  struct Order {
    Step step;
    std::int64_t samples = 0;
    bool checkpoint = false;
    StepRecord record;
    Time deadline;
  };

  Courier(const StateParts& parts, Device& device, std::span<const std::byte> state)
      : device_(device),
        state_(state),
        snapshotter_(*parts.session.arena, parts.session.attempt, parts.session.place.local_rank,
                     parts.session.place.local_size) {
    const Place& place = parts.session.place;
    // Those whose digests this rank computes: they are in its caches then.
    for (std::int64_t chunk = place.local_rank; chunk < parts.layout.chunks();
         chunk += place.local_size) {
      own_chunks_.push_back(
          {chunk * kChunkBytes, std::min((chunk + 1) * kChunkBytes, parts.layout.bytes)});
    }
  }

  // Only while nothing is under way.
  void start_from(int slot) { snapshotter_.start_from(slot); }
  void send(const Order& order) {
    const std::lock_guard lock(mutex_);
    SUREFOOT_CHECK(!under_way_);
    under_way_ = order;
    changed_.notify_all();
  }
  // The slot of the newest step that has come.
  Result<int> settle(Time deadline) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [this] { return !under_way_; })) {
      return error(Code::kRestart, "step {}: its snapshot has not come into the arena in time",
                   under_way_->step);
    }
    SUREFOOT_TRY(outcome_);
    return snapshotter_.read_slot();
  }
  // False: something is under way still, and the thread ends after it.
  bool close() {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    return !under_way_;
  }

  void run() {
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [this] { return under_way_ || closing_; });
      if (!under_way_) return;
      const Order order = *under_way_;
      lock.unlock();
      Status outcome = bring(order);
      lock.lock();
      outcome_ = std::move(outcome);
      under_way_.reset();
      changed_.notify_all();
    }
  }

 private:
  Status bring(const Order& order) {
    SUREFOOT_TRY(snapshotter_.begin(order.step, order.deadline));
    SUREFOOT_TRY(
        device_.download(state_.data(), snapshotter_.write_bytes(), own_chunks_, order.deadline));
    return snapshotter_.commit(order.samples, order.checkpoint, order.record, order.deadline);
  }

  Device& device_;
  const std::span<const std::byte> state_;
  std::vector<ByteRange> own_chunks_;
  Snapshotter snapshotter_;  // the thread's while something is under way
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Order> under_way_;
  Status outcome_;  // of the last one
  bool closing_ = false;
};

class DeviceState final : public StateHome {
 public:
  DeviceState(StateParts parts, Device& device, std::span<std::byte> state,
              std::span<std::byte> decayed)
      : parts_(std::move(parts)),
        device_(device),
        state_(state),
        decayed_(reinterpret_cast<const ElementRange*>(decayed.data())),
        courier_(std::make_shared<Courier>(parts_, device, state)),
        thread_([courier = courier_] { courier->run(); }) {}

  // Does not wait for a snapshot that is under way: whoever has not settled is about to leave.
  ~DeviceState() override {
    if (courier_->close()) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }

  Status start_from(int slot, Time deadline) override {
    courier_->start_from(slot);
    slot_ = slot;
    return device_.upload(parts_.session.arena->bytes(slot), state_.data(), deadline);
  }
  Status begin(Step step, Time) override {
    step_ = step;
    return {};
  }
  [[nodiscard]] std::span<const std::byte> bytes() const override { return state_; }
  Status settle(Time deadline) override {
    SUREFOOT_ASSIGN(slot_, courier_->settle(deadline));
    return {};
  }
  [[nodiscard]] int slot() const override { return slot_; }
  void update(const StepUpdate& update) override;
  Status commit(std::int64_t samples, bool checkpoint, const StepRecord& record,
                Time deadline) override {
    SUREFOOT_TRY(device_.mark());
    courier_->send({step_, samples, checkpoint, record, deadline});
    return {};
  }
  void abandon() override {}  // nothing is taken before commit()

 private:
  const StateParts parts_;
  Device& device_;
  const std::span<std::byte> state_;
  const ElementRange* const decayed_;
  Step step_;
  int slot_ = -1;
  std::shared_ptr<Courier> courier_;  // the thread's too
  std::thread thread_;
};

void DeviceState::update(const StepUpdate& step) {
  const auto sections = sections_of<MutableOptimizerState>(parts_.layout, parts_.options, state_);
  DeviceUpdate update;
  update.scalars = parts_.optimizer.scalars(step.scalars);
  update.elements = parts_.layout.find("parameters")->bytes / size_of(DType::kF32);
  update.parameters = sections.parameters;
  update.moments = sections.moments;
  update.gradient_sum = step.reducer.sum().data();
  update.decayed = decayed_;
  update.decayed_count = static_cast<std::int64_t>(parts_.optimizer.decayed().size());
  if (parts_.buffer_elements > 0) {
    update.buffer_elements = parts_.buffer_elements;
    update.buffers =
        reinterpret_cast<float*>(state_.data() + parts_.layout.find("buffers.F32")->offset);
    update.buffer_changes = update.gradient_sum + step.reducer.buffer_begin();
    update.micro_batches = static_cast<float>(step.micro_batches);
  }
  device_.enqueue(update);
  parts_.store_other_buffers(state_);
}

}  // namespace

Result<std::unique_ptr<StateHome>> make_device_state(StateParts parts, Device& device,
                                                     Time deadline) {
  SUREFOOT_ASSIGN(const auto state, device.allocate(parts.layout.bytes, "the training state"));
  const auto ranges = std::as_bytes(std::span(parts.optimizer.decayed()));
  SUREFOOT_ASSIGN(const auto decayed,
                  device.allocate(static_cast<std::int64_t>(ranges.size()), "the decayed tensors"));
  SUREFOOT_TRY(device.upload(ranges, decayed.data(), deadline));
  for (int slot = 0; slot < kSlots; ++slot) device.pin(parts.session.arena->bytes(slot));
  return std::unique_ptr<StateHome>(
      std::make_unique<DeviceState>(std::move(parts), device, state, decayed));
}

}  // namespace surefoot
