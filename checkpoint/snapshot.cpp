#include "checkpoint/snapshot.h"

#include <algorithm>
#include <string>

namespace surefoot {
namespace {

std::string missing(const Arena& arena, int slot, int barrier, int local_size) {
  std::string ranks;
  for (int rank = 0; rank < local_size; ++rank) {
    if (!arena.has_arrived(slot, barrier, rank)) ranks += fmt::format(" {}", rank);
  }
  return ranks.empty() ? " none" : ranks;
}

}  // namespace

Snapshotter::Snapshotter(Arena& arena, Attempt attempt, int local_rank, int local_size)
    : arena_(arena), attempt_(attempt), local_rank_(local_rank), local_size_(local_size) {
  SUREFOOT_CHECK(local_size > 0 && local_size <= kMaxLocalRanks);
  SUREFOOT_CHECK(local_rank >= 0 && local_rank < local_size);
}

void Snapshotter::start_from(int slot) {
  SUREFOOT_CHECK(write_ < 0);
  read_ = slot;
}

Status Snapshotter::begin(Step step, Time deadline) {
  SUREFOOT_CHECK(write_ < 0);
  const std::int64_t current = arena_.gang().attempt;
  if (current != attempt_.value) {
    return error(Code::kStale, "attempt {} has taken over this node, this is attempt {}", current,
                 attempt_);
  }
  if (local_rank_ == 0) {
    auto taken = arena_.await_take(attempt_, step, read_, deadline);
    if (!taken) return error(Code::kRestart, "step {}: {}", step, taken.error().message);
    write_ = *taken;
  } else {
    const auto taken = arena_.await_taken(attempt_, step, deadline);
    if (!taken)
      return error(Code::kRestart, "step {}: local rank 0 has not taken a snapshot slot in time",
                   step);
    write_ = *taken;
  }
  step_ = step;
  return {};
}

std::span<const std::byte> Snapshotter::read_bytes() const {
  SUREFOOT_CHECK(read_ >= 0);
  return arena_.bytes(read_);
}

std::span<std::byte> Snapshotter::write_bytes() {
  SUREFOOT_CHECK(write_ >= 0);
  return arena_.bytes(write_);
}

Status Snapshotter::commit(std::int64_t samples, bool checkpoint, const StepRecord& record,
                           Time deadline) {
  SUREFOOT_CHECK(write_ >= 0);
  const auto late = [&](std::string_view what, int barrier) {
    return error(Code::kRestart, "step {}: waited for local ranks{} to {}", step_,
                 missing(arena_, write_, barrier, local_size_), what);
  };
  const auto all = static_cast<std::uint32_t>(local_size_);
  if (local_rank_ == 0) arena_.prepare_record(write_, record);
  arena_.arrive(write_, 0, local_rank_);
  if (!arena_.await_arrivals(write_, 0, all, deadline)) return late("write their share", 0);

  const std::span<const std::byte> state = arena_.bytes(write_);
  const std::span<Digest> digests = arena_.chunk_digests(write_);
  for (std::size_t chunk = local_rank_; chunk < digests.size(); chunk += local_size_) {
    const std::size_t from = chunk * kChunkBytes;
    digests[chunk] =
        digest(state.subspan(from, std::min<std::size_t>(kChunkBytes, state.size() - from)));
  }

  if (arena_.arrive(write_, 1, local_rank_) == all) {
    SUREFOOT_TRY(arena_.publish(write_, attempt_, step_, samples, checkpoint));
    if (const auto prepared = arena_.prepared_record(write_)) arena_.push(*prepared);
  } else if (!arena_.await_ready(write_, attempt_, step_, deadline)) {
    return late("digest their share, or for the last of them to publish", 1);
  }
  read_ = write_;
  write_ = -1;
  return {};
}

void Snapshotter::abandon() {
  // Others only forget it: until the leader discards the slot it is WRITING, which nobody uses.
  if (local_rank_ == 0 && write_ >= 0) arena_.discard(write_);
  write_ = -1;
}

}  // namespace surefoot
