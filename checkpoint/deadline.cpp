#include "checkpoint/deadline.h"

#include <fmt/format.h>

#include <algorithm>

namespace surefoot {
namespace {

constexpr double kMargin =
    1.25;  // arbitrary: as much as a rate changes from one upload to the next
// Without a measurement: what the slowest disks and networks of rented machines do.
constexpr double kAssumedBytesPerSecond = 20e6;
// Listing, publishing and the calls themselves, on a store far away.
constexpr Duration kPerCheckpoint = std::chrono::milliseconds(500);

Duration time_for(double bytes, double bytes_per_second) {
  const double value = kMargin * std::max(0.0, bytes) / bytes_per_second;
  return kPerCheckpoint + from_seconds(std::min(value, 1e9));
}

}  // namespace

Duration flush_turn(int node_index, std::int64_t state_bytes, double bytes_per_second) {
  constexpr Duration kShortest = std::chrono::seconds(5);  // gangs end everywhere within less
  const double rate = bytes_per_second > 0 ? bytes_per_second : kAssumedBytesPerSecond;
  return std::max(kShortest, time_for(static_cast<double>(state_bytes), rate)) * node_index;
}

DeadlineDecision decide_before_deadline(const DeadlineFacts& facts) {
  if (!facts.ready) return {DeadlineAction::kNothing, {}, "there is no finished step"};
  if (facts.stored && *facts.stored >= *facts.ready) {
    return {DeadlineAction::kNothing,
            {},
            fmt::format("step {} is the newest and in the store", *facts.ready)};
  }
  if (!facts.everyone && facts.nodes > 1) {
    return {DeadlineAction::kMemory, {}, "the other nodes' memory holds every finished step"};
  }
  const bool measured = facts.bytes_per_second > 0;
  const double rate = measured ? facts.bytes_per_second : kAssumedBytesPerSecond;
  const auto bytes = static_cast<double>(facts.state_bytes);
  const Duration left = facts.deadline - facts.now;
  const Duration newest = time_for(bytes, rate);
  const std::string numbers =
      fmt::format("{:.1f} s are left, a checkpoint takes {:.1f} s at {:.1f} MB/s{}", seconds(left),
                  seconds(newest), rate / 1e6, measured ? "" : " (assumed)");
  if (facts.uploading) {
    // What has been written has still to be read back: half of the work at least is left.
    const double done = std::min(static_cast<double>(facts.uploaded_bytes), bytes) / 2;
    const Duration rest = time_for(bytes - done, rate);
    const auto keep = [&](std::string_view why) {
      return DeadlineDecision{
          DeadlineAction::kKeepUpload, rest,
          fmt::format("step {} is being written: {} ({})", *facts.uploading, why, numbers)};
    };
    if (*facts.uploading >= *facts.ready) return keep("it is the newest");
    if (facts.uploading_for_this) return keep("what comes after it is decided then");
    if (rest + newest <= left) return keep("the newest fits after it");
    if (newest > left && rest <= left) return keep("it still fits, the newest does not");
  }
  if (newest <= left || !measured) {
    return {DeadlineAction::kStoreNewest, newest,
            fmt::format("step {} goes to the store now: {}", *facts.ready, numbers)};
  }
  return {DeadlineAction::kMemory,
          {},
          fmt::format("step {} stays in memory only: {}", *facts.ready, numbers)};
}

}  // namespace surefoot
