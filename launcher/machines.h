// The machines of a job as the driver handles them: for each a thread for commands, a watch, and
// what it said last.
//
// Performs those effects of the core (supervisor.h) that act on machines, and tells what comes of
// them as events. What goes to several machines goes to all at once. One thread (the driver's
// loop); nothing blocks. handle() runs what the threads have put into the inbox, and calls the
// listener from there.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/journal.h"
#include "launcher/mpirun/gang.h"
#include "launcher/node_link.h"
#include "launcher/nodes/log_mirror.h"
#include "launcher/observer.h"
#include "launcher/service_watch.h"
#include "launcher/supervisor.h"
#include "launcher/task_thread.h"

namespace surefoot {

class MachineListener {
 public:
  virtual ~MachineListener() = default;
  virtual void happened(supervisor::Event event) = 0;
  virtual void answered(supervisor::NodeId node, const service::StatusReply& status, Time at) = 0;
  // An action of the journal is done, or `outcome` says what went wrong.
  virtual void performed(std::int64_t action, const std::string& outcome) = 0;
  virtual void has_result(const JournalResult& result) = 0;
};

class Machines {
 public:
  Machines(NodeContext context, const supervisor::FleetRules& rules, MachineListener& listener);

  [[nodiscard]] int event_fd() const { return inbox_->event_fd(); }
  void handle();
  // For others whose items the loop is to run with these.
  [[nodiscard]] std::shared_ptr<Inbox> inbox() const { return inbox_; }

  // What the core's state means for the watches: machines that are ready are watched, others are
  // not.
  void follow(const supervisor::Fleet& fleet);
  void set_pace(Duration pace);
  void ask_at_once();  // the watched ones

  // The peers are added.
  void start_service(supervisor::NodeId node, const std::string& name, NodeLink::Wanted wanted,
                     std::int64_t action);
  void drain(const supervisor::Fleet& fleet, Attempt attempt, std::int64_t action);
  void tell_everyone(const supervisor::Fleet& fleet, std::int64_t action);
  // On the members that are ready (alone: on the one), and mpirun's session here.
  void end_gang(const supervisor::Fleet& fleet, Attempt attempt, const std::optional<Gang>& gang,
                std::int64_t action);
  void finish(supervisor::NodeId node, Step step, Duration patience, std::int64_t action);
  void flush(const std::vector<supervisor::NodeId>& nodes, std::int64_t action);
  void free(std::int64_t action);
  // From now on the logs of these ranks are brought here from where they run, where that does not
  // share the job directory; mirror_logs() takes what is new, now and then.
  void follow_logs(supervisor::NodeId node, Attempt attempt, const std::vector<int>& ranks);
  void mirror_logs();
  [[nodiscard]] bool bringing_logs() const;
  // Where all ranks are, by the members that are ready (alone: the one), and what else of mpirun's
  // session is on this machine, into the attempt's logs.
  void collect_traces(const supervisor::Fleet& fleet, Attempt attempt,
                      const std::optional<Gang>& gang, std::int64_t action);

  // The last answer; null: none yet, or its service was lost since.
  [[nodiscard]] const service::StatusReply* status(supervisor::NodeId node) const;
  [[nodiscard]] std::optional<Time> answered_at(supervisor::NodeId node) const;
  [[nodiscard]] std::string endpoint(supervisor::NodeId node) const;
  [[nodiscard]] bool local(supervisor::NodeId node) const;
  // By the worker's word; 0: no machine has been asked yet.
  [[nodiscard]] double flops_per_sample() const { return flops_per_sample_; }
  // Waits for commands under way, until the deadline: the process is about to end. Removes what
  // machines were compared by; what is being started on one is given up.
  void close(Time deadline);

 private:
  struct Machine {
    std::string name;
    std::shared_ptr<NodeLink> link;
    std::unique_ptr<TaskThread> commands;
    std::unique_ptr<TaskThread> logs;
    std::shared_ptr<LogMirror> mirror;  // used on `logs` only
    std::unique_ptr<ServiceWatch> watch;
    std::optional<NodeLink::Prepared> prepared;
    std::optional<service::StatusReply> status;
    Time answered{};
    std::uint64_t starts = 0;  // StartServices so far: only the last one is answered
    bool taken = false;        // it has answered, and is not lost
    bool listed = true;        // by the user, as the core knows
    bool watched = false;
  };
  // Of what was asked of several machines at once.
  struct Round {
    std::uint64_t number = 0;
    std::int64_t action = 0;
    std::set<supervisor::NodeId> open;  // who has not answered; kHere: mpirun's session
    std::string failed;                 // the first that went wrong
    bool lost = false;                  // a machine could not be asked
    Attempt attempt;                    // of which it is
  };
  // FlushAndKeepArena: one machine after the other.
  struct FlushRound {
    std::uint64_t number = 0;
    std::int64_t action = 0;
    std::deque<supervisor::NodeId> nodes;  // the first is at it
    Flushing result;
  };
  static constexpr supervisor::NodeId kHere = -1;

  Machine& machine(supervisor::NodeId node, const std::string& name);
  void begin(Machine& machine, supervisor::NodeId node);
  void begin_commands(Machine& machine);
  void leave_behind(supervisor::NodeId node, bool gone);
  [[nodiscard]] std::string same_as(supervisor::NodeId node, const NodeAccess& access) const;
  void prepared(supervisor::NodeId node, std::uint64_t start,
                const Result<NodeLink::Prepared>& result, std::int64_t action);
  void ended(std::uint64_t round, supervisor::NodeId node, Attempt attempt,
             const NodeLink::Ended& end);
  void check_ending(Attempt attempt);
  void told(std::uint64_t round, supervisor::NodeId node);
  void bring_last_logs(Machine& machine);
  [[nodiscard]] static Inbox::Item pull(LogMirror& mirror, const ServiceAddress& address,
                                        const std::string& job_id, Time deadline);
  void start_nothing_more();
  [[nodiscard]] std::vector<RankPlace> places(const std::set<supervisor::NodeId>& nodes,
                                              Attempt attempt) const;
  void traced(std::uint64_t round, supervisor::NodeId node, Attempt attempt,
              const std::string& text);
  void flush_next();
  void flushed(std::uint64_t round, const Flushed& result);
  void freed(std::uint64_t round, supervisor::NodeId node, const Status& result);
  [[nodiscard]] std::vector<std::string> peers_of(supervisor::NodeId node) const;
  template <class What>
  void tell(What what) {
    listener_.happened({now(), std::move(what)});
  }

  std::shared_ptr<const NodeContext> context_;
  supervisor::FleetRules rules_;
  MachineListener& listener_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::map<supervisor::NodeId, Machine> machines_;
  TaskThread here_{inbox_};
  Duration pace_ = std::chrono::milliseconds(100);
  double flops_per_sample_ = 0;
  std::uint64_t rounds_ = 0;
  std::uint64_t finishing_ = 0;  // the round of the last FinishJob
  Round telling_;
  Round ending_;
  Round tracing_;
  std::string traces_;           // so far, of tracing_
  supervisor::Culprit awaited_;  // as it was when they were asked for
  Round freeing_;
  FlushRound flushing_;
  // Those of earlier attempts' logs that bring the rest.
  std::vector<std::unique_ptr<TaskThread>> last_logs_;
};

}  // namespace surefoot
