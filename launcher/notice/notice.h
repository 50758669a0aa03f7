// The words of launcher/notice: what a source says about this machine, and what is new in it.
//
//   payload --(payloads.h, pure)--> Finding --(book.h, pure)--> Change --(desk.h, pure)--> what the
//   checkpoint service is told (MachineNotices of checkpoint/service.h)
//
// The edges are thin: watcher.h asks a metadata service (or a file) over and over, post.h takes
// POSTs. watchers.h starts what the job file names.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"

namespace surefoot::notice {

// The clouds' own time, as far as they tell it. On this machine a deadline is a Time.
using WallTime = std::chrono::sys_time<std::chrono::milliseconds>;

enum class Kind {
  kReclaim,      // this machine goes
  kRebalance,    // it may go: the risk is higher than usual
  kMaintenance,  // it is rebooted, moved or stopped at a time that may be far away
};

// One event, as one answer has it.
struct Sighting {
  Kind kind = Kind::kReclaim;
  std::string what;            // "terminate", "Reboot": printable
  std::string id;              // the source's own, the same in every answer; empty: it has none
  std::optional<WallTime> at;  // when it comes
  std::optional<Duration>
      in;  // ... or how long after it is seen; both: the earlier. None: not known
};

// `kind` is what is logged once, until an answer is fine again.
struct Trouble {
  std::string kind;
  std::string message;
};

// What one answer means. Without trouble what it does not name is not there (any more).
struct Finding {
  std::string about;  // the question: events of different ones are different
  std::vector<Sighting> sightings;
  std::optional<Trouble> trouble;
};

struct Notice {
  Kind kind = Kind::kReclaim;
  std::optional<Time> deadline;  // none: not known
  std::string source;            // as in the job file: "aws", "file"
  std::string id;                // tells events of a source apart; printable
  std::string what;
};

struct Change {
  enum class What {
    kCame,     // it was not there before
    kEarlier,  // the same, with an earlier deadline
    kOver,     // it is not there any more; of a reclaim: it was called off
  } what = What::kCame;
  Notice notice;
};

}  // namespace surefoot::notice
