// What goes wrong in one simulated job on many machines: made from a seed alone.
#pragma once

#include <string_view>
#include <vector>

#include "launcher/sim/schedule.h"

namespace surefoot::sim {

enum class FleetFault {
  kPowerOff,       // a machine is gone with its memory; the cloud gives it again when all heals
  kReboot,         // is back a moment later, its memory is not
  kBurst,          // several are gone, or cut, at the same moment
  kOneByOne,       // one after the other while the job regroups
  kCut,            // from supervisor and others, for less or more than heartbeat_timeout
  kUnseen,         // the supervisor cannot reach it, the others can
  kFreeze,         // stands still and goes on later
  kIsolated,       // the supervisor reaches nobody for a while
  kNotice,         // goes after notice: at its time, earlier, or later
  kNoticeNoTime,   // a notice that names no time
  kFalseNotice,    // and stays after all
  kNoticeForAll,   // all machines are to go
  kServiceKilled,  // alone; arena and workers stay
  kStartsFail,     // the next few starts of a service fail (ssh)
  kStartSlow,      // the next one's answer comes late
  kOtherNumerics,  // it is replaced by one whose libraries give other bits
  kOtherData,      // ... that sees other data
  kListed,         // a new machine is found
  kUnlisted,       // one is not named any more
  kRelisted,       // all of those are named again
  kCrash,          // a rank dies by a signal
  kCrashAgain,     // ... and its machine's next ranks too
  kExitCode,       // a rank leaves with 1 or 76
  kLeaveUnasked,   // a machine sends SIGTERM: drains, 75
  kRefuse,         // the next launch leaves with 64..66
  kMpirunKilled,   // workers go on
  kHang,           // nobody makes a step any more
  kLaunchFails,
  kTracesHang,
  kFinishFails,
  kFlushFails,
  kSupervisorKilled,  // at any point of recording and performing a decision
  kClockJump,         // the supervisor's clock goes forward
  kStaleEvents,       // words of older attempts, and words about machines said twice
  kInterrupt,
  kCancel,
  kCount,
};
[[nodiscard]] std::string_view name(FleetFault fault);

struct PlannedFleetFault {
  FleetFault kind;
  Duration at;  // from the start of the job
};

struct FleetSchedule {
  supervisor::Rules rules;
  int machines = 0;              // listed at the start
  bool same_slots = true;        // else 1 to 4
  bool has_own_machine = false;  // the supervisor's own is one of them
  bool heals = true;             // else those that are gone stay gone, and no others come
  Duration step_time;
  std::vector<PlannedFleetFault> faults;
};
// `machines`: 0 for 1 to 16 of them.
[[nodiscard]] FleetSchedule make_fleet_schedule(Rng& rng, int machines);

}  // namespace surefoot::sim
