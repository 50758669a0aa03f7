// A machine, a user and a driver around the supervisor core, on one thread in virtual time.
//
// Fault models of the doubles:
//   gang     any rank may die, leave, hang or drain at any moment; mpirun may die and leave workers
//            that go on making steps; it may be unkillable for a while, but not for ever; when told
//            to end it is gone before GangEnded is said
//   arena    outlives gang, service and supervisor; is lost with the machine (reboot); the newest
//            snapshot may turn out bad
//   store    keeps what was published; writing to it may fail
//   service  may die, not start, or never answer; while it is away no step is seen, but none is
//            lost
//   journal  one call is written whole or not at all; the supervisor may die before it, after it,
//            and between two effects
//   driver   tells steps in their order and before GangEnded; events late by up to 300 ms, the exit
//            of a gang by up to 2 s; may repeat events of older attempts with old times
//   user     interrupts, cancels, starts the job again when it is not running, however it was left
// Faults are finite: after the last one the world heals, and the job must come to its end.
#pragma once

#include "launcher/sim/life.h"

namespace surefoot::sim {

struct SimGang {
  Attempt attempt;
  bool mpirun = true;
  bool workers = true;
  bool own_child = true;  // of the supervisor that runs now
  bool hung = false;
  bool drain = false;     // heard: leaves after the step in hand
  bool injected = false;  // its death is
  bool fault_untold = false;
  bool exit_told = false;
  bool left_by_itself = false;  // exited or died before anybody ended it
  int code = -1;
  int signal = 0;
  supervisor::Stage stage = supervisor::Stage::kLaunching;
  std::int64_t step = 0;          // newest finished or restored
  std::int64_t known_before = 0;  // newest finished step of the world at launch
  Time died{};
  std::string reason;
};

class World : public Life {
 public:
  World(std::uint64_t seed, Plant plant, bool narrate);

 private:
  enum Kind : std::uint8_t {
    kGang,
    kPoll,
    kExited,
    kEnded,
    kNotEnded,
    kServiceUp,
    kServiceFailed,
    kServiceLost,
    kTraces,
    kLaunched,
    kLaunchFailed,
    kFinished,
    kFinishFailed,
    kFlushed,
    kFreed,
    kTimer,
    kFault,
    kStart,
    kInterrupt
  };
  struct Record {
    std::int64_t attempt;
    std::int64_t step;
    Time at;
  };

  void handle(const Item& item) override;

  // The machine (world.cpp).
  SimGang* gang(std::int64_t attempt);
  SimGang* newest_gang();
  void advance(SimGang& gang);
  void restore(SimGang& gang);
  void make_step(SimGang& gang);
  void leave(SimGang& gang, int code, int signal, std::string reason);
  void inject(FaultKind kind);
  void inject_into_gang(FaultKind kind);
  void inject_into_job(FaultKind kind);
  void reboot();
  void kill_service();
  void free_arena();

  // The driver (driver.cpp).
  void start_supervisor();
  void poll(bool with_end_of_gang = false);
  void perform(const supervisor::Effect& effect) override;
  void set_timer(Duration after, std::int64_t number) override {
    schedule(after, Kind::kTimer, number, true);
  }
  void restart_later(Duration after) override {
    steps_unseen_ = true;
    schedule(after, Kind::kStart);
  }
  void perform_start();
  void perform_launch(Attempt attempt);
  void perform_end(Attempt attempt);
  void perform_stop(const supervisor::Stop& stop);
  void deliver(const Item& item);

  // The judge (judge.cpp): it looks at the doubles, not at what the core believes.
  void check_launch(Attempt attempt);
  void check_free();
  void check_end(const supervisor::AttemptEnd& end) override;
  void check_stop(const supervisor::Stop& stop);
  void count_setback(const SimGang& gang, const supervisor::AttemptEnd& end);

  Schedule plan_;

  // The machine.
  std::vector<SimGang> gangs_;
  bool service_ = false;
  std::int64_t ready_ = -1;    // newest READY snapshot; -1: no arena
  std::int64_t durable_ = -1;  // newest checkpoint
  std::int64_t redone_ = 0;
  std::vector<Record> records_;
  bool memory_lost_ = false;  // rebooted or a snapshot turned out bad since the newest step
  bool freed_ = false;
  bool snapshot_bad_ = false;
  std::int64_t bug_step_ = 0;
  int refuse_code_ = 0;
  int starts_fail_ = 0, starts_silent_ = 0, launches_fail_ = 0, traces_hang_ = 0,
      finishes_fail_ = 0, flushes_fail_ = 0, frees_fail_ = 0;
  Time unkillable_until_{};
  bool hard_to_end_ = false;  // at some time it was unkillable, or the service could not be had

  // The supervisor.
  std::size_t records_read_ = 0;
  supervisor::Stage stage_told_ = supervisor::Stage::kLaunching;

  // The judge.
  std::int64_t forgiven_ = 0;
  bool steps_unseen_ = false;  // a supervisor died: its count of lost steps may be short
};

}  // namespace surefoot::sim
