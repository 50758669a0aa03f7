// The training state on the processor: it is the arena.
#include <algorithm>

#include "worker/state_home.h"
#include "worker/state_sections.h"

namespace surefoot {
namespace {

ElementRange clipped(ElementRange range, std::int64_t begin, std::int64_t end) {
  return {std::clamp(range.begin, begin, end), std::clamp(range.end, begin, end)};
}

class ArenaState final : public StateHome {
 public:
  explicit ArenaState(StateParts parts)
      : parts_(std::move(parts)),
        snapshotter_(*parts_.session.arena, parts_.session.attempt, parts_.session.place.local_rank,
                     parts_.session.place.local_size) {}

  Status start_from(int slot, Time) override {
    snapshotter_.start_from(slot);
    return {};
  }
  Status begin(Step step, Time deadline) override { return snapshotter_.begin(step, deadline); }
  [[nodiscard]] std::span<const std::byte> bytes() const override {
    return snapshotter_.read_bytes();
  }
  Status settle(Time) override { return {}; }
  [[nodiscard]] int slot() const override { return snapshotter_.read_slot(); }
  void update(const StepUpdate& update) override;
  Status commit(std::int64_t samples, bool checkpoint, const StepRecord& record,
                Time deadline) override {
    return snapshotter_.commit(samples, checkpoint, record, deadline);
  }
  void abandon() override { snapshotter_.abandon(); }

 private:
  void update_buffers(const StepUpdate& update);

  const StateParts parts_;
  Snapshotter snapshotter_;
};

void ArenaState::update(const StepUpdate& update) {
  const StateLayout& layout = parts_.layout;
  const auto from = sections_of<OptimizerState>(layout, parts_.options, snapshotter_.read_bytes());
  const auto to =
      sections_of<MutableOptimizerState>(layout, parts_.options, snapshotter_.write_bytes());
  const float* const sum = update.reducer.sum().data();
  const std::int64_t gradients = layout.find("parameters")->bytes / size_of(DType::kF32);
  for (const ElementRange& share : update.reducer.share()) {
    const ElementRange range = clipped(share, 0, gradients);
    if (range.begin < range.end) parts_.optimizer.update(range, from, to, sum, update.scalars);
  }
  if (parts_.session.place.local_rank == 0) {
    parts_.store_other_buffers(snapshotter_.write_bytes());
    clear_gaps(layout, snapshotter_.write_bytes());
  }
  if (parts_.buffer_elements > 0) update_buffers(update);
}

void ArenaState::update_buffers(const StepUpdate& update) {
  const std::int64_t offset = parts_.layout.find("buffers.F32")->offset;
  const auto count = static_cast<std::size_t>(parts_.buffer_elements);
  const std::span before(reinterpret_cast<const float*>(snapshotter_.read_bytes().data() + offset),
                         count);
  const std::span after(reinterpret_cast<float*>(snapshotter_.write_bytes().data() + offset),
                        count);
  const std::int64_t first = update.reducer.buffer_begin();
  for (const ElementRange& share : update.reducer.share()) {
    const ElementRange range = clipped(share, first, first + parts_.buffer_elements);
    const auto begin = static_cast<std::size_t>(range.begin - first);
    const auto length = static_cast<std::size_t>(range.end - range.begin);
    if (length == 0) continue;
    apply_buffer_change(before.subspan(begin, length),
                        update.reducer.sum().subspan(static_cast<std::size_t>(range.begin), length),
                        update.micro_batches, after.subspan(begin, length));
  }
}

}  // namespace

std::unique_ptr<StateHome> make_arena_state(StateParts parts) {
  return std::make_unique<ArenaState>(std::move(parts));
}

}  // namespace surefoot
