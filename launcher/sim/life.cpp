#include "launcher/sim/life.h"

namespace surefoot::sim {

using namespace supervisor;  // NOLINT: the whole file speaks of its types

void Sights::add(const Sights& o) {
  const auto sum = [&](auto... field) { ((this->*field += o.*field), ...); };
  sum(&Sights::decisions, &Sights::launches, &Sights::steps, &Sights::steps_redone,
      &Sights::drained, &Sights::preempted, &Sights::failed, &Sights::hung, &Sights::forgiven,
      &Sights::refused, &Sights::abandoned, &Sights::ended, &Sights::done, &Sights::cancelled,
      &Sights::do_not_requeue, &Sights::interrupted, &Sights::resumes, &Sights::supervisor_deaths,
      &Sights::reboots, &Sights::service_restarts, &Sights::given_up, &Sights::stale,
      &Sights::recoveries, &Sights::orphans_ended, &Sights::regrouped, &Sights::notices,
      &Sights::losses, &Sights::returns, &Sights::saved, &Sights::too_few);
  most_workers = std::max(most_workers, o.most_workers);
}

std::string Life::run() {
  std::int64_t items = 0;
  while (!over_ && violation_.empty()) {
    if (queue_.empty()) return "nothing will ever happen again and the job has not ended";
    if (++items > most_items_) return "the job never ends";
    const Item item = queue_.top();
    queue_.pop();
    now_ = item.at;
    if (item.life >= 0 && (!alive_ || item.life != life_)) continue;  // its reader is dead
    handle(item);
  }
  return violation_;
}

void Life::open() {
  ++life_;
  alive_ = true;
  state_ = State{};
  timer_at_ = Time::max();
  if (life_ > 1) ++sights_.resumes;
  opened_ = clock();
  elapsed_before_ = journal_.accounting.elapsed();
  rightly_given_up_ = user_stops_ = cancel_asked_ = final_ = false;
  interrupts_ = 0;
  known_step_ = journal_.finished_step.value;
  known_row_ = journal_.failures_in_row;
  // Its last supervisor said how it ended, and the user starts it all the same.
  if (journal_.state != JobState::kRunning) {
    same_twice_ = false;
    setbacks_ = failures_in_row_ = known_row_ = 0;
    known_same_ = false;
  }
  say("the supervisor starts, journal: attempt {}{}, step {}", journal_.attempt,
      journal_.attempt_open ? " open" : "", journal_.finished_step);
}

void Life::die() {
  say("    the supervisor is killed");
  ++sights_.supervisor_deaths;
  alive_ = false;
  dies_after_effects_ = -2;
  restart_later(rng_.ms(100, 20'000));
}

void Life::feed(Event event) {
  if (!alive_) return;
  ++sights_.decisions;
  const Attempt attempt = state_.history.attempt;
  const Step finished = state_.history.finished_step;
  Decision decision = decide_with(plant_, rules_, std::move(state_), event);
  say("{:<18} {} [{}]", name(event), decision.reason, name(decision.next.doing));
  check_decision(decision, attempt, finished);
  // Without an effect there is little to tear; most deaths are to fall between them.
  const bool dies = dies_after_effects_ != -2 && (!decision.effects.empty() || rng_.chance(4));
  if (dies && dies_after_effects_ == -1) return die();
  state_ = std::move(decision.next);
  if (decision.record || rng_.chance(8)) {
    journal_ = state_.history;
    for (const Effect& effect : decision.effects) {
      if (const auto* record = std::get_if<RecordAttemptEnd>(&effect)) check_end(record->end);
      if (std::holds_alternative<RecordRecovery>(effect)) ++sights_.recoveries;
    }
  }
  int performed = 0;
  for (const Effect& effect : decision.effects) {
    if (dies && performed++ == dies_after_effects_) return die();
    if (!violation_.empty() || !alive_) return;
    perform(effect);
  }
  if (dies) return die();
  watch_the_clock();
}

void Life::watch_the_clock() {
  const Time due = deadline(rules_, state_);
  if (!alive_ || due >= timer_at_) return;
  timer_at_ = due;
  set_timer(std::max(due - clock(), Duration::zero()) + rng_.ms(0, 50), ++timer_);
}

void Life::time_is_up(std::int64_t timer) {
  if (timer != timer_) return;  // an earlier one was set since
  timer_at_ = Time::max();
  feed({clock(), TimerFired{}});
}

void Life::tell_stale() {
  for (std::int64_t old = 1; old < state_.history.attempt.value; ++old) {
    const Attempt attempt{old};
    const Time then = clock() - rng_.ms(0, 5000);
    const Event events[] = {
        {then, GangLaunched{attempt}},
        {then, StageReached{attempt, Stage::kFinishing, then}},
        {then, StepFinished{attempt, Step{state_.history.finished_step.value + 1}, then}},
        {then, FaultFired{attempt}},
        {then, GangExited{attempt, static_cast<int>(rng_.below(100)), 0, {}, then}},
        {then, GangEnded{attempt}},
        {then, GangNotEnded{attempt, ""}},
        {then, LaunchFailed{attempt, ""}},
        {then, TracesCollected{attempt}}};
    for (const Event& event : events) {
      if (!alive_ || !violation_.empty()) return;
      const State before = state_;
      feed(event);
      ++sights_.stale;
      if (alive_ && (before.history != state_.history || before.doing != state_.doing ||
                     before.deadline != state_.deadline)) {
        return violated(fmt::format("a stale {} changed the state", name(event)));
      }
    }
  }
}

}  // namespace surefoot::sim
