#include "launcher/sim/plants.h"

#include <algorithm>
#include <array>

namespace surefoot::sim {

using namespace supervisor;  // NOLINT: the whole file speaks of its types

std::string_view name(Plant plant) {
  static constexpr std::array<std::string_view, static_cast<std::size_t>(Plant::kCount)> kNames = {
      "none",
      "trusts exit",
      "adopts gang",
      "reuses attempt",
      "ignores user error",
      "forgets failures",
      "forgets total",
      "forgets preemptions",
      "forgets reason",
      "forgives all",
      "forgives none",
      "frees always",
      "never times out",
      "drains for ever",
      "drops service loss",
      "records late",
      "believes stale",
      "loses count",
      "drops time",
      "skips retry of end",
      "ignores second interrupt",
      "stops on preemption",
      "done too early",
      "drops node loss",
      "drops notices",
      "forgets notices",
      "takes unlisted",
      "takes any hardware",
      "takes any data",
      "forgets stain",
      "spares all",
      "crowds",
      "takes too few",
      "takes too many",
      "never grows",
      "waits for ever",
      "blames losses",
      "leaves holders",
      "forgets gang",
      "ends too early",
      "stores nothing",
      "names nobody",
      "takes twice"};
  return kNames[static_cast<std::size_t>(plant)];
}

namespace {

struct Habit {
  Rules rules;
  State state;
  Event event;
  bool deaf = false;  // the event is dropped
};

void spoil_counts(Plant plant, Habit& h) {
  History& history = h.state.history;
  if (plant == Plant::kForgetsFailures && h.rules.max_failures > 1) history.failures_in_row = 0;
  if (plant == Plant::kForgetsTotal) h.rules.max_failures_total = -1;
  if (plant == Plant::kForgetsPreemptions) h.rules.max_preemptions = -1;
  if (plant == Plant::kForgetsReason) history.has_last_failure = false;
  if (plant == Plant::kForgivesAll) {
    h.state.fault_fired = true;
    h.rules.faults_count = false;
    h.rules.injected_faults = 1'000'000;
  }
  if (plant == Plant::kForgivesNone) h.state.fault_fired = false;
  if (plant == Plant::kLosesCount) history.steps_lost = 0;
}

// What it believes of machines and of the rules for them.
void spoil_fleet(Plant plant, Habit& h) {
  FleetRules& rules = h.rules.fleet;
  State& state = h.state;
  if (plant == Plant::kCrowds) rules.micro_batches = 1 << 30;
  if (plant == Plant::kTakesTooFew) rules.min_nodes = 1;
  if (plant == Plant::kTakesTooMany) rules.max_nodes = 1 << 30;
  if (plant == Plant::kTakesAnyHardware) rules.allow_mixed_hardware = true;
  if (plant == Plant::kTakesAnyData) state.reference.training_hash.clear();
  if (plant == Plant::kNeverGrows) state.grow_at = Time::max();
  if (plant == Plant::kBlamesLosses) state.lost.clear();
  if (plant == Plant::kLeavesHolders) state.secured = h.rules.max_steps;
  for (Node& node : state.fleet) {
    if (plant == Plant::kForgetsNotices) node.leaves = false;
    if (plant == Plant::kTakesUnlisted) node.listed = true;
    if (plant == Plant::kForgetsStain) node.stain = Attempt{};
    if (plant == Plant::kEndsTooEarly && node.standing == Standing::kPreparing && node.in_gang &&
        std::holds_alternative<GangEnded>(h.event.what))
      node.standing = Standing::kOut;
  }
  h.deaf = h.deaf ||
           (plant == Plant::kDropsNodeLoss && std::holds_alternative<NodeLost>(h.event.what)) ||
           (plant == Plant::kDropsNotices && std::holds_alternative<NoticeReceived>(h.event.what));
  if (plant == Plant::kWaitsForEver && state.doing == Doing::kAssembling)
    state.deadline = state.now + std::chrono::hours(1);
}

void spoil_fleet_output(Plant plant, Decision& decision) {
  for (Effect& effect : decision.effects) {
    if (auto* start = std::get_if<StartService>(&effect); start && plant == Plant::kSparesAll)
      start->spare = Attempt{};
    if (auto* flush = std::get_if<FlushAndKeepArena>(&effect);
        flush && plant == Plant::kStoresNothing && !flush->nodes.empty())
      flush->nodes = {flush->nodes.back()};
    if (auto* stop = std::get_if<Stop>(&effect); stop && plant == Plant::kNamesNobody)
      stop->line = stop->line.substr(0, stop->line.find(':'));
    if (auto* launch = std::get_if<LaunchGang>(&effect); launch && plant == Plant::kTakesTwice)
      launch->members.push_back(launch->members.front());
  }
  if (plant == Plant::kForgetsGang) decision.next.history.gang.clear();
}

template <class E>
void rename(E& e, Attempt attempt) {
  if constexpr (requires { e.attempt; }) e.attempt = attempt;
}

void spoil_input(Plant plant, Habit& h) {
  auto& what = h.event.what;
  const Attempt current = h.state.history.attempt;
  if (auto* exited = std::get_if<GangExited>(&what)) {
    if (plant == Plant::kIgnoresUserError && exited->code >= 64 && exited->code <= 66)
      exited->code = 1;
    if (plant == Plant::kDoneTooEarly && exited->code == 0)
      h.state.history.finished_step = h.rules.max_steps;
    if (plant == Plant::kStopsOnPreemption && exited->code == kExitInterrupted)
      exited->code = kExitUserErrorFirst;
  }
  if (auto* opened = std::get_if<JobOpened>(&what);
      opened != nullptr && plant == Plant::kAdoptsGang)
    opened->history.attempt_open = false;
  if (plant == Plant::kBelievesStale) std::visit([&](auto& e) { rename(e, current); }, what);
  if (std::holds_alternative<ServiceLost>(what) && plant == Plant::kDropsServiceLoss) h.deaf = true;
  if (std::holds_alternative<GangNotEnded>(what) && plant == Plant::kSkipsRetryOfEnd) h.deaf = true;
  if (std::holds_alternative<Interrupted>(what) && plant == Plant::kIgnoresSecondInterrupt &&
      h.state.interrupts > 0)
    h.deaf = true;
  if (std::holds_alternative<TimerFired>(what)) {
    h.deaf = (plant == Plant::kNeverTimesOut && h.state.doing == Doing::kRunning) ||
             (plant == Plant::kDrainsForEver && h.state.doing == Doing::kDraining) ||
             (plant == Plant::kSkipsRetryOfEnd && h.state.doing == Doing::kEnding);
  }
}

void spoil_output(Plant plant, const Rules& rules, Decision& decision, const Event& event) {
  for (Effect& effect : decision.effects) {
    if (plant == Plant::kFreesAlways && std::holds_alternative<FlushAndKeepArena>(effect)) {
      effect = FreeArena{};
      decision.next.freeing = true;
    }
    if (auto* launch = std::get_if<LaunchGang>(&effect);
        launch != nullptr && plant == Plant::kReusesAttempt && launch->attempt.value > 1) {
      launch->attempt.value -= 1;
      decision.next.history.attempt.value -= 1;
    }
    if (plant == Plant::kDropsTime && std::holds_alternative<RecordAttemptEnd>(effect)) {
      decision.next.history.accounting.spent[static_cast<std::size_t>(Cause::kEnd)] = {};
    }
    if (plant == Plant::kRecordsLate && std::holds_alternative<LaunchGang>(effect))
      decision.record = false;
  }
  if (plant == Plant::kTrustsExit && std::holds_alternative<GangExited>(event.what) &&
      decision.next.doing == Doing::kEnding) {
    std::vector<Effect> before;
    std::swap(before, decision.effects);
    decision = decide(rules, std::move(decision.next),
                      Event{event.at, GangEnded{std::get<GangExited>(event.what).attempt}});
  }
}

}  // namespace

Decision decide_with(Plant plant, const Rules& rules, State state, const Event& event) {
  if (plant == Plant::kNone) return decide(rules, std::move(state), event);
  Habit habit{rules, std::move(state), event};
  spoil_counts(plant, habit);
  spoil_input(plant, habit);
  spoil_fleet(plant, habit);
  if (habit.deaf) return Decision{std::move(habit.state), {}, "dropped", false};
  Decision decision = decide(habit.rules, std::move(habit.state), habit.event);
  spoil_output(plant, habit.rules, decision, event);
  spoil_fleet_output(plant, decision);
  return decision;
}

}  // namespace surefoot::sim
