// The words of the supervisor: names of events, effects and states for the log, the journal and the
// tests.
#include "launcher/supervisor.h"

namespace surefoot::supervisor {
namespace {

template <std::size_t N, class Enum>
std::string_view nth(const std::string_view (&names)[N], Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? names[index] : std::string_view("?");
}

}  // namespace

std::string_view name(Stage stage) {
  static constexpr std::string_view kNames[] = {"launching", "loading",    "restoring",
                                                "stepping",  "evaluating", "finishing"};
  return nth(kNames, stage);
}

std::string_view name(Outcome outcome) {
  static constexpr std::string_view kNames[] = {"done",      "drained", "preempted",
                                                "regrouped", "failed",  "hung",
                                                "refused",   "ended",   "abandoned"};
  return nth(kNames, outcome);
}

std::string_view name(JobState state) {
  static constexpr std::string_view kNames[] = {"running", "done", "interrupted", "failed",
                                                "cancelled"};
  return nth(kNames, state);
}

std::string_view name(Doing doing) {
  static constexpr std::string_view kNames[] = {
      "nothing",           "assembling",  "running",     "draining",
      "collecting traces", "ending gang", "backing off", "saving",
      "finishing job",     "closing",     "stopped"};
  return nth(kNames, doing);
}

// In the order of the variants.
std::string_view name(const Event& event) {
  static constexpr std::string_view kNames[] = {
      "JobOpened",    "HostsListed",    "ServiceAnswered", "ServiceLost",  "ServiceStartFailed",
      "NodeLost",     "GangLaunched",   "LaunchFailed",    "StageReached", "StepFinished",
      "FaultFired",   "GangExited",     "GangEnded",       "GangNotEnded", "TracesCollected",
      "Interrupted",  "NoticeReceived", "CancelAsked",     "JobFinished",  "FinishFailed",
      "ArenaFlushed", "ArenaFreed",     "TimerFired"};
  static_assert(std::size(kNames) == std::variant_size_v<decltype(Event::what)>);
  return kNames[event.what.index()];
}

std::string_view name(const Effect& effect) {
  static constexpr std::string_view kNames[] = {
      "StartService", "LaunchGang",       "RequestDrain",   "CollectTraces",
      "EndGang",      "TellEveryone",     "FinishJob",      "FlushAndKeepArena",
      "FreeArena",    "RecordAttemptEnd", "RecordRecovery", "Stop"};
  static_assert(std::size(kNames) == std::variant_size_v<Effect>);
  return kNames[effect.index()];
}

}  // namespace surefoot::supervisor
