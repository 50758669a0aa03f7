// The supervisor of one job as a state machine: when to launch, drain, end, wait, give up.
//
// decide() takes what happened and returns the next state, what is to be done, and why. It is pure:
// no clock, I/O, threads or logging; time comes in with each event. It is total: an event that is
// late, repeated or of an older attempt changes nothing and the reason says so. A driver performs
// the effects in their order and reports each outcome as an event; it calls again with TimerFired
// when deadline(state) has passed. Diagram and tables: docs/supervisor.md.
//
// What it guarantees, whatever is lost, late or repeated (supervisor_sim_test.cpp):
//   - at most one gang: attempt n+1 is launched only after attempt n is verified gone on every
//     machine that can be asked (GangEnded); a machine that cannot be is lost to the attempt, and
//     is rid of what it still runs before it is taken again; numbers only rise
//   - no gang is adopted: one left by a dead supervisor is drained, ended, and followed by the next
//     attempt
//   - the arena is freed only when the job is done, has no finished step, or was cancelled and its
//     newest step is stored
//   - after exit codes 64..66, an exhausted budget, or a reproducible failure nothing is launched
//     again
//   - no finished step is left behind on machines that answer: who holds the newest takes part in
//     the next attempt, or stores it first
//   - an attempt runs on machines that answer, are listed, stay, and are alike
//   - each state but kStopped has a deadline
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/phase.h"
#include "launcher/accounting.h"
#include "launcher/fleet.h"

namespace surefoot::supervisor {

// Exit codes, of workers and of `surefoot run`.
inline constexpr int kExitDone = 0;
inline constexpr int kExitUserErrorFirst = 64;  // bad job file, missing data, changed training keys
inline constexpr int kExitUserErrorLast = 66;
inline constexpr int kExitInterrupted = 75;   // resumable; of a worker: drained
inline constexpr int kExitDoNotRequeue = 93;  // a restart does not cure it

// What the job file says, see rules_of() in rules.h. Counts: -1 is unlimited.
struct Rules {
  Step max_steps;
  std::int64_t max_failures = 3;
  std::int64_t max_failures_total = 100;
  std::int64_t max_preemptions = -1;
  Duration hang_timeout = std::chrono::minutes(10);
  Duration startup_timeout = std::chrono::minutes(10);
  Duration backoff = std::chrono::seconds(1);
  bool faults_count = false;    // attempts ended by an injected fault count against the budgets
  bool accept_changes = false;  // of what decides the weights, since the last attempt
  std::int64_t injected_faults =
      0;  // number of faults injected into this run: as many attempts are forgiven at most
  // How long the supervisor waits for what it asked for.
  Duration drain_timeout =
      std::chrono::seconds(30);  // arbitrary: what Slurm and Kubernetes give between TERM and KILL
  Duration traces_timeout = std::chrono::seconds(5);
  Duration end_timeout =
      std::chrono::seconds(60);  // a process in an uninterruptible wait can take that long to go
  Duration end_retry = std::chrono::seconds(5);
  Duration service_timeout =
      std::chrono::seconds(30);  // the driver's own limit for StartService is to be below it
  Duration close_timeout = std::chrono::minutes(5);  // writing the newest step to the store
  FleetRules fleet;
};
inline constexpr std::int64_t kBackoffLimit =
    60;  // the pause doubles up to so many times `backoff`
// Before the job is finished once more, since its store may come back: doubles, up to the longest.
inline constexpr Duration kFinishPause = std::chrono::seconds(1);
inline constexpr Duration kLongestFinishPause = std::chrono::seconds(30);
inline constexpr int kServiceTries = 5;  // while a gang trains without its service

// How far the gang of an attempt is.
enum class Stage {
  kLaunching,  // mpirun was asked for
  kLoading,    // a worker was seen
  kRestoring,  // all are in Phase::kRestoring or beyond
  kStepping,   // all have left it
  kEvaluating,
  kFinishing,  // after the last step: checkpoint, export
};
[[nodiscard]] std::string_view name(Stage stage);
// The one table of deadlines: how long a stage may last without a finished step or the next stage.
// kLaunching to kRestoring share startup_timeout, counted from the launch; the others have
// hang_timeout, counted from the last finished step or change of stage.
[[nodiscard]] Duration time_limit(const Rules& rules, Stage stage);

enum class Outcome {
  kDone,       // exit code 0 after the last step
  kDrained,    // left after a step since the user or a notice asked
  kPreempted,  // left, or was ended, since one of its machines goes or is lost
  kRegrouped,  // left after a step since there are other machines now
  kFailed,     // crashed, or left too early
  kHung,       // finished no step in time
  kRefused,    // exit codes 64..66
  kEnded,      // ended by us for the user
  kAbandoned,  // found when its supervisor was gone
};
[[nodiscard]] std::string_view name(Outcome outcome);

// The one whose end decided the attempt's: the first to die, with the last that its line in the
// arena says.
struct Culprit {
  int rank = -1;  // -1: not known
  std::string host;
  Step step;  // in hand
  Phase phase = Phase::kStarting;
  std::string reason;  // without times, pids or attempt numbers: it is compared with the last one
  NodeId node = -1;    // -1: not known
  friend bool operator==(const Culprit&, const Culprit&) = default;
};

struct AttemptEnd {
  Attempt attempt;
  Outcome outcome = Outcome::kFailed;
  bool injected = false;  // forgiven: an injected fault ended it
  int code = -1;          // of the gang; -1: none
  int signal = 0;
  Step first_step;  // newest finished step of the job when it was launched
  Step last_step;   // and when it was gone
  Culprit culprit;
  // Of a preemption with a notice: from the notice to the gang's end, and what was left then until
  // the machine goes; none: there was no notice, or it named no time.
  std::optional<Duration> drained_after;
  std::optional<Duration> time_left;
  friend bool operator==(const AttemptEnd&, const AttemptEnd&) = default;
};

enum class JobState { kRunning, kDone, kInterrupted, kFailed, kCancelled };
[[nodiscard]] std::string_view name(JobState state);

// What the journal keeps: all that the next supervisor must know.
struct History {
  Attempt attempt;                // highest number ever given out
  bool attempt_open = false;      // its gang was not yet verified gone
  std::vector<std::string> gang;  // names of the machines of the open attempt
  // Of the machines that the job has run on; empty: not known.
  std::string numerics_id;
  std::string training_hash;
  Step finished_step;                // newest finished step that was ever seen
  std::int64_t failures_in_row = 0;  // counted, without a new finished step
  std::int64_t idle_in_row = 0;      // attempts of any kind without one: decides the backoff
  std::int64_t failures_total = 0;   // counted failed attempts
  std::int64_t failures_forgiven = 0;
  std::int64_t preemptions = 0;
  std::int64_t steps_lost = 0;  // finished steps done again
  bool has_last_failure = false;
  Step last_failure_step;
  std::string last_failure_reason;
  JobState state = JobState::kRunning;  // kRunning too after the death of a supervisor
  Accounting accounting;
  friend bool operator==(const History&, const History&) = default;
};

// ---- Events, in the past tense ----

struct JobOpened {
  History history;          // of the journal
  bool gang_alive = false;  // mpirun or a worker of history.attempt lives
};

// The machines that there are now, all of them; those of before that are not named go.
struct HostsListed {
  std::vector<HostSpec> hosts;
};

// The machine's service runs, and the machine has passed its checks. -1: it has none.
struct ServiceAnswered {
  Step ready{-1};    // newest READY snapshot
  Step durable{-1};  // newest verified checkpoint
  NodeId node = 0;
  NodeFacts facts{};
  bool here = false;  // it is the supervisor's own machine
};
// Its process is gone, or (of the only machine) does not answer. Told again as long as it is so: an
// answer that was under way when it died is then not the last word.
struct ServiceLost {
  NodeId node = 0;
};
// `message` names no pid or time: it is compared with the last one.
struct ServiceStartFailed {
  std::string message;
  NodeId node = 0;
};
// The machine has not answered for heartbeat_timeout, or for a second after a gang's end. Told
// again as long as it is so. Not told of the only machine of a job.
struct NodeLost {
  NodeId node = 0;
  std::string message;  // "it has not answered for 5 s"
};

struct GangLaunched {
  Attempt attempt;
};
struct LaunchFailed {
  Attempt attempt;
  std::string message;  // compared too
};
struct StageReached {
  Attempt attempt;
  Stage stage;
  Time when;
};
struct StepFinished {
  Attempt attempt;
  Step step;
  Time when;  // of READY
  Duration snapshot_exposed{};
};
// An injected fault that hits the gang (not the service) is marked as fired. Once each, before the
// GangEnded that follows from it.
struct FaultFired {
  Attempt attempt;
};
// mpirun has ended; workers may be left.
struct GangExited {
  Attempt attempt;
  int code = -1;  // exit code of the gang, -1 when a signal ended it or nobody can know
  int signal = 0;
  Culprit culprit;
  Time died;  // last sign of life of the culprit
};
// mpirun and every worker of it on a machine that is not lost are verified gone, and their last
// StepFinished and StageReached were told.
struct GangEnded {
  Attempt attempt;
};
// The outcome of EndGang is unknown: somebody is left, or cannot be asked.
struct GangNotEnded {
  Attempt attempt;
  std::string message;
};
struct TracesCollected {
  Attempt attempt;
  Culprit culprit{};  // the rank that the others wait for, if known; its reason is not used
};

// Ctrl-C or SIGTERM at the supervisor. The first drains, the second ends the gang, the third
// leaves.
struct Interrupted {};
// The machine goes, at that time.
struct NoticeReceived {
  std::optional<Time> leaves;
  NodeId node = 0;
};
struct CancelAsked {};

// Stored and exported; the driver keeps the hashes.
struct JobFinished {};
struct FinishFailed {
  std::string message;  // compared too
  // Nothing of the job is wrong: a store that is away may come back. Asked again with pauses until
  // the stage's time is over; only then it counts as a failure.
  bool may_pass = false;
};
struct ArenaFlushed {
  bool stored = true;
  std::string message;  // why not
};
struct ArenaFreed {
  bool freed = true;
  std::string message;  // why not
};

// deadline(state) has passed.
struct TimerFired {};

struct Event {
  Time at;  // does not go back; an earlier time than the last one's is read as the last one's
  std::variant<JobOpened, HostsListed, ServiceAnswered, ServiceLost, ServiceStartFailed, NodeLost,
               GangLaunched, LaunchFailed, StageReached, StepFinished, FaultFired, GangExited,
               GangEnded, GangNotEnded, TracesCollected, Interrupted, NoticeReceived, CancelAsked,
               JobFinished, FinishFailed, ArenaFlushed, ArenaFreed, TimerFired>
      what;
};
[[nodiscard]] std::string_view name(const Event& event);  // "StepFinished"

// ---- Effects, in the imperative ----
//
// Each may be performed twice (its supervisor died between performing and recording), so all are
// idempotent but LaunchGang, which the journal makes safe: its attempt is recorded as open first.

// Find the machine's running one, or start it; end what attempts below `spare` have left there, and
// look the machine over -> ServiceAnswered | ServiceStartFailed. Of several for one machine only
// the last one's outcome is told.
struct StartService {
  NodeId node = 0;
  Attempt spare;
};
// -> GangLaunched | LaunchFailed; then StageReached, StepFinished, ..., GangExited.
struct LaunchGang {
  Attempt attempt;
  std::vector<Member> members;
};
// Set the drain bit. No answer but the gang's exit.
struct RequestDrain {
  Attempt attempt;
};
// Stacks of all ranks, /proc for stopped ones -> TracesCollected.
struct CollectTraces {
  Attempt attempt;
};
// SIGKILL mpirun and every worker, wait, verify, read the last steps -> GangEnded | GangNotEnded,
// and NodeLost before them for each machine that cannot be asked.
struct EndGang {
  Attempt attempt;
};
// All machines of the job go: each is to bring to storage what it can. No answer.
struct TellEveryone {};
// Store the last step, export, on that machine -> JobFinished | FinishFailed.
struct FinishJob {
  NodeId node = 0;
};
// The newest READY step on these machines to the store, by one of those that hold it: the first of
// them that can. `stored`: none of them may hold a newer one. Arena and service stay for arena_ttl
// -> ArenaFlushed. Asked when the job stops, and when only machines that go hold the newest step
// (kSaving).
struct FlushAndKeepArena {
  std::vector<NodeId> nodes;
};
// End the services and what of the job still runs on their machines, remove the arenas
// -> ArenaFreed.
struct FreeArena {};
// For journal and log. No answer.
struct RecordAttemptEnd {
  AttemptEnd end;
};
// For journal and report. No answer.
struct RecordRecovery {
  Recovery recovery;
};
// The last effect ever: leave with this code and line.
struct Stop {
  int exit_code;
  JobState state;
  std::string line;
};

using Effect =
    std::variant<StartService, LaunchGang, RequestDrain, CollectTraces, EndGang, TellEveryone,
                 FinishJob, FlushAndKeepArena, FreeArena, RecordAttemptEnd, RecordRecovery, Stop>;
[[nodiscard]] std::string_view name(const Effect& effect);  // "LaunchGang"

// ---- State ----

enum class Doing {
  kNothing,     // before JobOpened
  kAssembling,  // nothing runs; services, and enough machines, are needed first
  kRunning,     // a gang was launched
  kDraining,    // it was asked to leave after the step in hand
  kCollecting,  // it hangs; traces are taken
  kEnding,      // it is being ended, or has exited and is being verified gone
  kBackingOff,
  kSaving,     // machines that go hold the newest step: it is stored before others go on
  kFinishing,  // all steps are done; the service stores and exports
  kClosing,    // the arena is flushed or freed, then Stop
  kStopped,
};
[[nodiscard]] std::string_view name(Doing doing);

struct State {
  History history;
  Doing doing = Doing::kNothing;
  Time now{};
  Time deadline = Time::max();  // of `doing`

  Fleet fleet;
  Time fleet_due = Time::max();  // before it no machine of it is due
  int up = 0;                    // machines of it that answer
  std::int64_t most_slots = 1;   // of a machine that is listed
  NodeFacts reference;           // what machines have to be like
  bool service_seen = false;     // one has answered this supervisor, so finished_step is right
  Step saving{-1};               // kSaving, kClosing: that is being brought to the store
  Step secured{-1};              // newest step that was brought to the store, or could not be
  bool launched = false;  // by this supervisor: machines that have not answered are not waited for
  std::vector<Member> members;  // of the attempt in hand
  Time grow_at = Time::max();   // then the gang is drained, to go on with more machines

  // The attempt in hand, while history.attempt_open.
  Stage stage = Stage::kLaunching;
  Step restored{-1};        // the newest step that its machines can begin after
  Step attempt_step{-1};    // newest step finished by it; -1: none
  bool leftover = false;    // of a dead supervisor
  bool gang_alive = false;  // leftover only: worth a drain
  bool exited = false;      // GangExited was seen
  bool fault_fired = false;
  bool notice = false;             // it was drained since a machine goes
  std::string lost;                // the first of its machines that is lost, and why; empty: none
  bool regroup = false;            // it was drained since there are other machines now
  bool everyone_told = false;      // TellEveryone was performed
  std::optional<Outcome> verdict;  // why we end it
  AttemptEnd end;                  // as far as known; end.first_step is set at launch
  Time end_limit{};                // kEnding: give up then
  Time finish_limit{};             // kFinishing: give up then
  int finish_pauses = 0;           // kFinishing: so many times it was asked again
  bool finish_asked = false;       // kFinishing: FinishJob is in hand, else a pause
  NodeId finishing_node = 0;       // ... by this machine
  std::string not_finished;        // why the last try failed
  std::string not_ended;           // who was left when it was last looked

  // How the job stops once nothing runs; exit code -1: it goes on.
  Stop stop{-1, JobState::kRunning, {}};
  bool freeing = false;  // kClosing: FreeArena is in hand, else FlushAndKeepArena
  int interrupts = 0;

  // The recovery in hand: from the end of an attempt to the next finished step.
  bool recovering = false;
  Time mark{};  // end of its last phase
  Recovery recovery;
};

// When decide() wants TimerFired at the latest, if nothing else happens; now and then for nothing,
// since it is not looked for the next machine that is due after each event. Time::max(): never
// (stopped, or not yet opened).
[[nodiscard]] Time deadline(const Rules& rules, const State& state);

struct Decision {
  State next;
  std::vector<Effect> effects;  // in this order
  std::string_view reason;      // one static sentence: log line, journal, test narration
  // The driver writes history and effects to the journal before it performs them. False: nothing
  // that must survive has changed (the finished step may have: the driver saves that now and then).
  bool record = false;
};
[[nodiscard]] Decision decide(const Rules& rules, State state, const Event& event);

}  // namespace surefoot::supervisor
