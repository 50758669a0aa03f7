// What the answers of a service and the end of a gang mean to the supervisor's core.
//
// Pure but for its own memory of what it has said before: a service is asked ten times a second and
// answers with everything, the core is told what is new.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/service.pb.h"
#include "common/clock.h"
#include "common/process.h"
#include "launcher/supervisor.h"

namespace surefoot {

// How far the gang is, by the lines of its ranks. Nothing: no worker of it was seen yet.
// `worker_seen`: a process of it is known to exist, before it has a line.
[[nodiscard]] std::optional<supervisor::Stage> stage_of(const service::StatusReply& status,
                                                        Attempt attempt, int workers,
                                                        bool worker_seen);

// The process that mpirun's own message names as the first to end; empty where it names none.
struct NamedByMpirun {
  int rank = -1;
  int code = -1;
  int signal = 0;
};
[[nodiscard]] NamedByMpirun named_by_mpirun(std::string_view mpirun_log);

// What a worker logged last as an error, without time and name of the process; else, with `any`,
// its last line; else empty.
[[nodiscard]] std::string last_error(std::string_view rank_log, bool any);

struct GangEndFacts {
  Attempt attempt;
  ExitStatus mpirun;                           // as waited for; code -1 and signal 0: not known
  std::string mpirun_log;                      // its end
  std::map<int, std::string> rank_logs;        // the ends of the ranks' own
  std::optional<service::StatusReply> status;  // the last one
  Time at;
};
// Exit code, signal and who was first. A rank that left with a reason of its own is believed before
// mpirun, and mpirun before a rank that only says that it lost a peer (exit code 76).
[[nodiscard]] supervisor::GangExited gang_exited(const GangEndFacts& facts);

// Where a rank is, of those that live.
struct RankPlace {
  supervisor::NodeId node = -1;
  std::string host;
  int rank = -1;
  Step step;
  Phase phase = Phase::kStarting;
};
// The rank that the others wait for when a gang hangs: who is furthest behind, by step and phase,
// and is the only one; where those are all ranks of one machine, the first of them. Nothing: all
// are at the same place, or it is not clear whose fault it is.
[[nodiscard]] std::optional<supervisor::Culprit> awaited_rank(const std::vector<RankPlace>& ranks);

class Observer {
 public:
  // The gang whose records and lines count from now on.
  void follow(Attempt attempt, int workers);
  // Events in the order in which they happened. `at`: when the answer came.
  [[nodiscard]] std::vector<supervisor::Event> observe(const service::StatusReply& status,
                                                       bool worker_seen, Time at);
  [[nodiscard]] std::optional<supervisor::Stage> stage() const { return stage_; }

 private:
  void reach(supervisor::Stage stage, Time when, Time at, std::vector<supervisor::Event>& events);

  Attempt attempt_;
  int workers_ = 0;
  std::optional<supervisor::Stage> stage_;
  Step newest_{-1};
  std::optional<std::set<int>>
      faults_;  // fired so far; those of the first answer fired before this supervisor came
};

}  // namespace surefoot
