// Inside of decide(): one machine per decision. Included by supervisor*.cpp only.
//
// supervisor.cpp handles what happens to a gang, supervisor_fleet.cpp what happens to machines and
// their services, supervisor_choice.cpp which of them are taken, supervisor_asks.cpp what user and
// clock ask for; supervisor_end.cpp judges how an attempt ended and how the job stops.
#pragma once

#include "launcher/supervisor.h"

namespace surefoot::supervisor {

// Until a worker is known to do steps, nothing is in hand that a drain could save: the newest step
// is READY already. The same goes for an evaluation.
[[nodiscard]] inline bool worth_a_drain(Stage stage) {
  return stage == Stage::kStepping || stage == Stage::kFinishing;
}

// Of what is being done, without the machines'.
[[nodiscard]] Time own_deadline(const State& state);

class Machine {
 public:
  Machine(const Rules& rules, State state) : rules_(rules), s_(std::move(state)) {}
  [[nodiscard]] Decision run(const Event& event);

 private:
  void on(const JobOpened& e);
  void on(const HostsListed& e);
  void on(const ServiceAnswered& e);
  void on(const ServiceLost& e);
  void on(const ServiceStartFailed& e);
  void on(const NodeLost& e);
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
  void own_machine_goes(Node& node, std::optional<Time> leaves);
  void node_goes(Node& node, std::optional<Time> leaves);
  void announce(Node& node, std::optional<Time> leaves);
  void part_from_leavers();
  void grow();
  void on(const CancelAsked& e);
  void on(const JobFinished& e);
  void on(const FinishFailed& e);
  void ask_to_finish();
  void on(const ArenaFlushed& e);
  void steps_secured(const ArenaFlushed& e);
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
  [[nodiscard]] bool is_of_leftover(Attempt attempt) const;
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
  void launch(std::vector<Member> members);
  void drain(Outcome verdict, Time deadline, std::string_view because);
  void hang();
  void end_gang(Outcome verdict, std::string_view because);
  void learn(Step finished);
  void leave_stage(Time when);  // accounting and recovery of the stage in hand

  // supervisor_fleet.cpp
  [[nodiscard]] bool alone() const { return rules_.fleet.alone; }
  [[nodiscard]] Node* node(NodeId id);
  void open_fleet();
  [[nodiscard]] bool tends() const;
  void tend();  // starts the service of each machine that is due
  void start_service(Node& node);
  void set_due(Node& node, Time due);
  [[nodiscard]] bool look_after_machines();
  void service_failed(Node& node, const std::string& message);
  void take_out(Node& node, const std::string& why, Duration pause);
  void go_on_with_machines(std::string_view because);
  void left_out(Node& node, const std::string& why, bool last = true);
  void lose(Node& node, const std::string& message);
  void arrived(Node& node);
  void ask_anew(Node& node, const std::string& why);  // the next launch waits for its answer
  void assemble();                                    // waits for machines
  // Its machines are free again. True: the one that has failed is left out from now on.
  bool close_gang(const AttemptEnd& end);
  void weigh_growth(bool arrival);
  void tell_everyone_if_all_go();
  void settle_reference();
  [[nodiscard]] std::vector<Member> members_for_launch() const;
  [[nodiscard]] bool secures_steps(const std::vector<Member>& members);
  // In it something of the attempt in hand may go on that nobody can end.
  [[nodiscard]] bool is_lost(const Node& node) const {
    return node.in_gang && s_.history.attempt_open && node.stain == s_.history.attempt;
  }
  [[nodiscard]] bool asks_gang_first() const;
  void close_the_asking();
  [[nodiscard]] std::vector<NodeId> holders() const;
  [[nodiscard]] Step newest_held() const;  // by the machines that answer
  [[nodiscard]] NodeId id_of(const Node& node) const {
    return static_cast<NodeId>(&node - s_.fleet.data());
  }

  // supervisor_end.cpp
  void judge();
  [[nodiscard]] Outcome outcome() const;
  // `cured`: by leaving out the machine that failed.
  void count_failure(Step step, const std::string& reason, bool progress, bool cured = false);
  void count_preemption(bool progress);
  void stop_if_totals_are_used_up();
  [[nodiscard]] bool forgiven() const;
  void note_notice(AttemptEnd& end) const;
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
