// Decides what is brought to safety before this machine goes: SIGTERM, or a notice with a deadline.
//
// While another node lives, its memory holds every finished step: nothing has to be stored. When
// all nodes go, the newest READY step is written at once, each node its share of it, without
// waiting for the drain; then the last one, if it still fits. An upload in hand is let finish if
// the newest fits after it, or if only it fits; else it is dropped for the newest.
//
// What fits is reckoned from the measured rate of whole checkpoints, written and read back, with a
// margin. Without a measurement a slow one is assumed, and what does not fit by it is tried all
// the same: it is only a guess.
//
// Pure: no clock, I/O, threads or logging. Asked again after each upload and when the drain is
// over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/ids.h"

namespace surefoot {

// Of SIGTERM, which says nothing of when SIGKILL follows: what `docker stop` is often set to and
// Kubernetes gives.
inline constexpr Duration kUnknownDeadline = std::chrono::seconds(30);

struct DeadlineFacts {
  Time now;
  Time deadline;
  bool everyone = true;  // all nodes of the job go
  int nodes = 1;         // of the gang
  std::int64_t state_bytes = 0;
  double bytes_per_second = 0;    // of whole checkpoints, read back; 0: not measured
  std::optional<Step> ready;      // newest READY
  std::optional<Step> stored;     // newest published and verified
  std::optional<Step> uploading;  // being written now
  std::int64_t uploaded_bytes = 0;
  bool uploading_for_this = false;  // it was begun by such a decision: never dropped again
};
enum class DeadlineAction {
  kNothing,      // it is safe, or there is nothing
  kMemory,       // other nodes hold the state, or nothing fits
  kStoreNewest,  // write the newest READY step; an upload in hand is dropped
  kKeepUpload,   // let the one in hand finish, then ask again
};
struct DeadlineDecision {
  DeadlineAction action = DeadlineAction::kNothing;
  Duration needed{};   // until it is done, as reckoned
  std::string reason;  // a sentence with the numbers
};
[[nodiscard]] DeadlineDecision decide_before_deadline(const DeadlineFacts& facts);

// The nodes of a gang hold the same step, and one of them is enough to write it when no supervisor
// says who. So each waits for as long as those before it may take, and looks whether it is there by
// then. Reckoned as before a deadline.
[[nodiscard]] Duration flush_turn(int node_index, std::int64_t state_bytes,
                                  double bytes_per_second);

}  // namespace surefoot
