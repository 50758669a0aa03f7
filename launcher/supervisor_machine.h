// Inside of decide(): one machine per decision. Included by supervisor*.cpp only.
//
// supervisor.cpp handles what happens to service and gang; supervisor_end.cpp judges how an attempt
// ended and how the job stops.
#pragma once

#include "launcher/supervisor.h"

namespace surefoot::supervisor {

class Machine {
 public:
  Machine(const Rules& rules, State state) : rules_(rules), s_(std::move(state)) {}
  [[nodiscard]] Decision run(const Event& event);

 private:
  void on(const JobOpened& e);
  void on(const ServiceAnswered& e);
  void on(const ServiceLost& e);
  void on(const ServiceStartFailed& e);
  void on(const GangLaunched& e);
  void on(const LaunchFailed& e);
  void on(const StageReached& e);
  void on(const StepFinished& e);
  void on(const FaultFired& e);
  void on(const GangExited& e);
  void on(const GangEnded& e);
  void on(const GangNotEnded& e);
  void on(const TracesCollected& e);
  void on(const Interrupted& e);
  void on(const NoticeReceived& e);
  void on(const CancelAsked& e);
  void on(const JobFinished& e);
  void on(const FinishFailed& e);
  void ask_to_finish();
  void on(const ArenaFlushed& e);
  void on(const ArenaFreed& e);
  void on(const TimerFired& e);

  // `because`: one static sentence.
  void ignore(std::string_view because) { reason_ = because; }
  void because(std::string_view sentence, bool record = true) {
    reason_ = sentence;
    record_ = record_ || record;
  }
  template <class E>
  void perform(E effect) {
    effects_.emplace_back(std::move(effect));
  }

  // Says whether an event is of the attempt in hand; if not, ignores it.
  [[nodiscard]] bool is_current(Attempt attempt);
  [[nodiscard]] bool gang_may_run() const {
    return s_.doing == Doing::kRunning || s_.doing == Doing::kDraining ||
           s_.doing == Doing::kCollecting || s_.doing == Doing::kEnding;
  }
  [[nodiscard]] bool stopping() const { return s_.stop.exit_code >= 0; }
  [[nodiscard]] Time clamped(Time when) const;

  // What follows when no gang of ours is known to run and no pause is due: end a leftover, stop,
  // start the service, or launch.
  void proceed(std::string_view because);
  void open_attempt_end();
  void launch();
  void start_service();
  void service_failed(const std::string& message);
  void drain(Outcome verdict, Time deadline, std::string_view because);
  void hang();
  void end_gang(Outcome verdict, std::string_view because);
  void learn(Step finished);
  void leave_stage(Time when);  // accounting and recovery of the stage in hand

  // supervisor_end.cpp
  void judge();
  [[nodiscard]] Outcome outcome() const;
  void count_failure(Step step, const std::string& reason, bool progress);
  void count_preemption(bool progress);
  void stop_if_totals_are_used_up();
  [[nodiscard]] bool forgiven() const;
  void after_setback(std::string_view because);  // stop, pause, or go on at once
  void stop_when_free(int exit_code, JobState state, std::string line);
  void close(std::string_view because);
  void free_arena();
  void leave(std::string_view because);
  void give_up_ending();

  const Rules& rules_;
  State s_;
  std::vector<Effect> effects_;
  std::string_view reason_;
  bool record_ = false;
};

}  // namespace surefoot::supervisor
