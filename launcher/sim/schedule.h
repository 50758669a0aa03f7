// What goes wrong in one simulated job: made from a seed alone.
//
// Integers are drawn from std::mt19937_64 itself, so a seed means the same with every standard
// library.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "launcher/supervisor.h"

namespace surefoot::sim {

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : generator_(seed) {}
  // 0 .. bound - 1. The bias of the remainder is far below what a schedule could notice.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(bound));
  }
  bool chance(std::int64_t one_in) { return below(one_in) == 0; }
  Duration ms(std::int64_t low, std::int64_t high) {
    return std::chrono::milliseconds(low + below(high - low + 1));
  }

 private:
  std::mt19937_64 generator_;
};

enum class FaultKind {
  kCrash,          // a rank dies by a signal, the gang follows
  kCrashInjected,  // the same, injected by the user
  kExitCode,       // a rank leaves with 1 or 76
  kLeaveEarly,     // the gang leaves with code 0 before the last step
  kLeaveUnasked,   // its machine sends SIGTERM: drains, 75
  kRefuse,         // the next launch leaves with 64..66
  kMpirunKilled,   // mpirun is gone, its workers go on
  kHang,           // nobody makes a step any more
  kHangInjected,
  kBug,  // from now on each attempt dies at the same step for the same reason
  kServiceKilled,
  kServiceWontStart,  // the next few starts fail
  kServiceSilent,     // the next start is never answered
  kSupervisorKilled,  // at any point of recording and performing a decision
  kReboot,            // everything but journal and store is gone
  kSnapshotBad,       // the newest snapshot fails its digest: an older checkpoint is restored
  kLaunchFails,
  kUnkillable,  // for a while the gang cannot be ended
  kTracesHang,  // traces are never answered
  kFinishFails,
  kFlushFails,
  kFreeFails,
  kInterrupt,  // Ctrl-C once
  kInterruptTwice,
  kInterruptThrice,
  kNotice,
  kCancel,
  kStaleEvents,  // words of older attempts arrive again, out of order, with old times
  kCount,
};
[[nodiscard]] std::string_view name(FaultKind kind);

struct PlannedFault {
  FaultKind kind;
  Duration at;  // from the start of the job
};

struct Schedule {
  supervisor::Rules rules;
  Duration step_time;
  std::vector<PlannedFault> faults;
  bool reruns_a_failed_job = false;  // the user starts it once more after exit code 93
};
[[nodiscard]] Schedule make_schedule(Rng& rng);

}  // namespace surefoot::sim
