// Where a job's time went: goodput, and badput by cause.
//
// Every moment from the opening of the job to its stop belongs to exactly one cause, so the causes
// add up to the time elapsed. A cause is known only when its span ends (a step that finished, a
// step that died, a hang), so time is spent from a mark up to the end of a span. Time in which no
// supervisor ran is nobody's: it is not elapsed.
//
// Pure values: no clock, no I/O, no threads.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "common/clock.h"
#include "common/ids.h"

namespace surefoot {

// Stands in the journal by name.
enum class Cause {
  kSteps,       // finished steps that were kept: the only goodput
  kRedone,      // finished steps that had to be done again
  kLaunch,      // starting the service and mpirun, until a worker is seen
  kLoad,        // libraries, communicator, model
  kRestore,     // choosing a copy of the state and filling the arena
  kEvaluation,  // held-out data
  kSnapshot,    // what of snapshots and checkpoints the steps had to wait for
  kUnfinished,  // the step in hand when the gang ended
  kDetect,      // from a death to its being seen
  kHang,        // from the last sign of life to the end of a gang that hung
  kDrain,       // from the last step of a drained gang to its end
  kEnd,         // making sure that an ended gang is gone
  kBackoff,     // pauses before a next attempt
  kFinish,      // last checkpoint, export, storing, freeing
  kCapacity,    // waiting for enough machines
};
inline constexpr std::size_t kCauseCount = 15;
inline constexpr std::array<std::string_view, kCauseCount> kCauseNames = {
    "steps",      "redone_steps", "launch",          "load",   "restore",
    "evaluation", "snapshot",     "unfinished_step", "detect", "hang",
    "drain",      "end",          "backoff",         "finish", "capacity"};
[[nodiscard]] constexpr std::string_view name(Cause cause) {
  return kCauseNames[static_cast<std::size_t>(cause)];
}

struct Accounting {
  std::array<Duration, kCauseCount> spent{};
  Time mark{};  // everything before it has its cause

  void open(Time at) { mark = at; }
  // Gives the time from the mark to `until` to a cause. An `until` before the mark changes nothing.
  void spend(Cause cause, Time until);
  // A finished step: the span up to `until`, of which at most `exposed` was waiting for snapshots.
  void spend_step(bool redone, Duration exposed, Time until);

  [[nodiscard]] Duration of(Cause cause) const { return spent[static_cast<std::size_t>(cause)]; }
  [[nodiscard]] Duration elapsed() const;  // up to the mark
  [[nodiscard]] double goodput() const;    // kSteps / elapsed; 0 when nothing has elapsed
  friend bool operator==(const Accounting&, const Accounting&) = default;
};

// How long it took from the end of an attempt to the next finished step, by phase.
struct Recovery {
  Attempt attempt;              // the one that took over
  Duration detect{};            // from the last sign of life to the old gang verified gone
  Duration wait{};              // backoff, and the restart of the service
  Duration launch{};            // mpirun, until a worker is seen
  Duration load{};              // libraries, communicator, model
  Duration restore{};           // filling the arena
  Duration first_step{};        // until its snapshot is READY
  std::int64_t steps_lost = 0;  // finished steps that it has to do again
  [[nodiscard]] Duration total() const {
    return detect + wait + launch + load + restore + first_step;
  }
  friend bool operator==(const Recovery&, const Recovery&) = default;
};

}  // namespace surefoot
