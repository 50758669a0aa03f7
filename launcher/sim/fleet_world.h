// Many machines, the networks between them, a cloud and a driver around the supervisor core.
//
// Fault models of the doubles:
//   machine  may lose power (memory, service and workers are gone), reboot, or freeze and go on;
//            several at the same moment, or one after the other while the job regroups; may come
//            back as one of other numerics or other data; after a notice it goes at the time named,
//            earlier, later, or not at all
//   network  of a machine to all others may be cut, for less and for more than heartbeat_timeout;
//            only that to the supervisor may be, and the gang goes on unseen; all machines may be
//            unseen at once. Workers on a machine that is cut off go on waiting until its lease,
//            a sweep by StartService, or EndGang ends them
//   service  may be killed alone; may not start, or answer late: after its attempt is over
//   gang     makes steps only while all its machines live and reach each other; a finished step is
//            READY on all of them. A rank may crash, leave or hang; mpirun may notice a dead
//            machine or not, and may be killed and leave workers that go on
//   arena    of each machine: outlives everything but the machine's power
//   store    keeps what was published; storing may fail
//   list     names new machines, or no longer names some, at any moment
//   clock    of the supervisor may jump forward
//   driver   keeps the contracts that stand with the events and effects in supervisor.h: it tells
//            NodeLost heartbeat_timeout after the last answer and again while it is so, before
//            GangEnded also of each member that cannot be asked then; only the last StartService of
//            a machine is answered
// Faults are finite: after the last one the world heals (or, in some schedules, does not: then
// there may be too few machines), and the job must come to its end.
#pragma once

#include <map>

#include "launcher/sim/fleet_schedule.h"
#include "launcher/sim/life.h"

namespace surefoot::sim {

struct SimHost {
  std::string name;
  int slots = 1;
  bool here = false;  // the supervisor runs on it too, though it does not die with it
  bool listed = true;
  bool powered = true;
  bool frozen = false;
  bool linked = true;  // with the supervisor
  bool among = true;   // with the others
  int boot = 1;
  std::string numerics = "x", training = "t";
  bool service = false;
  std::int64_t ready = -1;            // newest snapshot in its arena; -1: none
  std::vector<std::int64_t> workers;  // attempts of which workers live here
  int starts_fail = 0;
  bool start_slow = false;
  bool crashes = false;  // the next attempt's ranks here die too
  Time changed{};        // when it became reachable, or stopped being so
  bool reachable = true;

  // Of the driver, for the supervisor that runs now.
  supervisor::NodeId id = -1;
  std::int64_t ask = 0;  // number of the newest StartService
  Time asked{};
  bool in_hand = false;  // it is not answered
  Attempt spare;
  supervisor::ServiceAnswered answer;
  // What was told of it last, and whether a notice was that still counts.
  enum class Told { kNothing, kUp, kAway, kLost } told = Told::kNothing;
  bool told_listed = false;
  bool announced = false;
  int announced_boot = 0;
  Time leaves{};
  Time until{};       // the supervisor believes it for so long
  int goes_boot = 0;  // which of its lives a notice is about
};

struct FleetGang {
  Attempt attempt;
  std::vector<supervisor::Member> members;  // .node: index of the host
  std::vector<int> boots;                   // of their machines at the launch
  bool mpirun = true;
  bool own_child = true;
  bool hung = false;
  bool drain = false;
  bool crashed = false;  // by a rank, or left by itself
  bool launched = true;  // else the launch failed
  bool lost = false;     // it was told that a member is lost or goes
  bool jumped = false;   // the clock jumped, or it stood still for want of a machine
  int code = -1;
  int signal = 0;
  int culprit = -1;  // host
  supervisor::Stage stage = supervisor::Stage::kLaunching;
  std::int64_t step = 0;
  int stalls = 0;
  int tries = 0;  // to end it where a service was away
  Time died{};
  std::string reason;
};

class FleetWorld : public Life {
 public:
  // `machines`: 0 for 1 to 16 of them.
  FleetWorld(std::uint64_t seed, Plant plant, bool narrate, int machines);

 private:
  enum Kind : std::uint8_t {
    kGang,
    kPoll,
    kExited,
    kEndDone,
    kStartDone,
    kStartFailed,
    kAnswered,
    kWatch,
    kTraces,
    kLaunched,
    kLaunchFailed,
    kFinishDone,
    kFlushDone,
    kFreed,
    kTimer,
    kFault,
    kStart,
    kInterrupt,
    kList,
    kNoticeTold,
    kGone,
    kBack,
    kBackPeers,
    kThaw,
    kReach,
    kLease,
    kMpirunSees,
    kHeal
  };
  struct Record {
    std::int64_t attempt;
    std::int64_t step;
    Time at;
  };

  void handle(const Item& item) override;
  void set_timer(Duration after, std::int64_t number) override {
    schedule(after, kTimer, number, true);
  }
  void restart_later(Duration after) override { schedule(after, kStart); }

  // Machines (fleet_world.cpp).
  SimHost& host(std::int64_t index) { return hosts_[static_cast<std::size_t>(index)]; }
  // A node of the core: their names agree, their numbers need not.
  SimHost& host_of(supervisor::NodeId id);
  [[nodiscard]] std::int64_t index_of(const SimHost& host) const { return &host - hosts_.data(); }
  void add_host();
  void touch(SimHost& host);
  void touch_all();
  void power_off(SimHost& host);
  void power_on(SimHost& host);
  void cut(SimHost& host, bool among, Duration lasts);
  void leases_end(SimHost& host);
  void heal();
  SimHost* some_host();
  SimHost* some_member();

  // Gangs.
  FleetGang* gang(std::int64_t attempt);
  FleetGang* newest_gang();
  [[nodiscard]] bool works_on(const SimHost& host, std::int64_t attempt) const;
  void end_workers(SimHost& host, std::int64_t below);
  [[nodiscard]] bool all_there(const FleetGang& gang);
  [[nodiscard]] bool any_there(const FleetGang& gang);
  void advance(FleetGang& gang);
  void restore(FleetGang& gang);
  void make_step(FleetGang& gang);
  void leave(FleetGang& gang, int code, int signal, std::string reason, int culprit);

  // Faults (fleet_faults.cpp).
  void inject(FleetFault fault);
  void inject_into_machines(FleetFault fault);
  void inject_into_service(FleetFault fault);
  void inject_into_gang(FleetFault fault);
  void inject_into_job(FleetFault fault);
  void burst();
  void notice(SimHost& host, bool goes, bool names_time);

  // The driver (fleet_driver.cpp).
  void start_supervisor();
  void name_nodes();
  void deliver(const Item& item);
  void tell(SimHost& host, SimHost::Told told, supervisor::Event event);
  void tell_notice(SimHost& host);
  void watch(SimHost& host);
  void poll();
  bool seen(std::int64_t attempt);
  void tell_exit(std::int64_t attempt);
  void end_done(std::int64_t attempt);
  void start_done(std::int64_t code);
  void answered(std::int64_t code);
  void finish_done(supervisor::NodeId node);
  void flush_done();
  void perform(const supervisor::Effect& effect) override;
  void perform_start(const supervisor::StartService& effect);
  void perform_launch(const supervisor::LaunchGang& effect);
  void perform_end(Attempt attempt);
  void perform_free();
  void perform_stop(const supervisor::Stop& stop);

  // The judge (fleet_judge.cpp).
  void check_launch(const supervisor::LaunchGang& launch);
  void check_member(SimHost& host, Attempt attempt, int workers);
  void check_end(const supervisor::AttemptEnd& end) override;
  [[nodiscard]] bool missed(const FleetGang& gang);
  void check_flush(const supervisor::FlushAndKeepArena& effect);
  void check_free();
  void check_growth();
  void check_stop(const supervisor::Stop& stop);
  void check_shortage(const std::string& line);
  [[nodiscard]] bool believed_up(const SimHost& host) const;
  [[nodiscard]] bool fits(const SimHost& host) const;  // the job could run on it, for all it knows

  FleetSchedule plan_;
  std::vector<SimHost> hosts_;
  std::vector<FleetGang> gangs_;
  std::vector<Record> records_;
  std::size_t records_read_ = 0;
  std::size_t named_ = 0;  // nodes of the core that are mapped to hosts
  bool isolated_ = false;
  bool healed_ = false;
  std::int64_t tokens_ = 0;
  std::int64_t durable_ = -1;
  bool asked_to_store_ = false;  // by this supervisor: FlushAndKeepArena or FreeArena
  bool store_failed_ = false;
  int launches_fail_ = 0, traces_hang_ = 0, finishes_fail_ = 0, flushes_fail_ = 0;
  int refuse_code_ = 0;
  std::vector<supervisor::NodeId> flush_nodes_;
  supervisor::Stage stage_told_ = supervisor::Stage::kLaunching;
  int restarts_ = 0;

  std::string numerics_;  // of the machines that the job has run on
  std::string training_;  // ... since the journal has a finished step
  Time calm_since_{};     // nothing has happened to machines since
};

}  // namespace surefoot::sim
