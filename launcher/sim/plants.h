// Bugs planted on purpose: each turns the supervisor into one with a single wrong habit, by
// changing what goes into or comes out of decide(). The simulation must find every one of them.
#pragma once

#include <string_view>

#include "launcher/supervisor.h"

namespace surefoot::sim {

enum class Plant {
  kNone,
  kTrustsExit,          // takes the exit of mpirun for the end of the gang
  kAdoptsGang,          // goes on as if the gang left by a dead supervisor were gone
  kReusesAttempt,       // launches the number of the last attempt again
  kIgnoresUserError,    // restarts after exit codes 64..66
  kForgetsFailures,     // max_failures never counts beyond one
  kForgetsTotal,        // max_failures_total is not looked at
  kForgetsPreemptions,  // max_preemptions is not looked at
  kForgetsReason,       // the same failure twice is not seen
  kForgivesAll,         // every crash is taken for an injected one
  kForgivesNone,        // injected faults count
  kFreesAlways,         // frees the arena where it should be kept
  kNeverTimesOut,       // a hang is never seen
  kDrainsForEver,       // a drain has no deadline
  kDropsServiceLoss,    // a dead service is not started again
  kRecordsLate,         // performs a launch before it is in the journal
  kBelievesStale,       // takes words of older attempts for those of the present one
  kLosesCount,          // steps done again are not counted
  kDropsTime,           // time of failed attempts has no cause
  kSkipsRetryOfEnd,     // asks once for the end of a gang
  kIgnoresSecondInterrupt,
  kStopsOnPreemption,  // leaves with 93 when a machine asks to leave
  kDoneTooEarly,       // takes exit code 0 for done, whatever the step
  // Of many machines.
  kFirstOfFleet,
  kDropsNodeLoss = kFirstOfFleet,  // a machine that is silent is not lost
  kDropsNotices,
  kForgetsNotices,    // the machine is taken again while its time runs
  kTakesUnlisted,     // what the list does not name any more
  kTakesAnyHardware,  // whatever bits it gives
  kTakesAnyData,
  kForgetsStain,  // takes a lost machine back with what it still runs
  kSparesAll,     // does not let services end what older attempts left
  kCrowds,        // more workers than micro-batches
  kTakesTooFew,   // min_nodes is not looked at
  kTakesTooMany,  // max_nodes is not looked at
  kNeverGrows,
  kWaitsForEver,   // for machines
  kBlamesLosses,   // the loss of a machine is a failure
  kLeavesHolders,  // goes on without those that hold the newest step
  kForgetsGang,    // the journal does not say on what machines an attempt runs
  kEndsTooEarly,   // does not wait for a service that is on its way back
  kStoresNothing,  // asks machines to store that do not hold the newest step
  kNamesNobody,    // does not say for whom it waited
  kTakesTwice,     // one machine twice in an attempt
  kCount,
};
[[nodiscard]] std::string_view name(Plant plant);

// decide() with that habit.
[[nodiscard]] supervisor::Decision decide_with(Plant plant, const supervisor::Rules& rules,
                                               supervisor::State state,
                                               const supervisor::Event& event);

}  // namespace surefoot::sim
