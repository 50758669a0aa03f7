// The checkpoint service of one job on one node, as a library: the main of surefoot-node is thin.
//
// Owns the arena's folder (under service.lock) and is the only one that talks to the store. Answers
// the messages of service.proto; watches the arena's header: asks for a checkpoint when one is due,
// writes pinned slots to the store, publishes, verifies, cleans up; ends earlier writers and makes
// or checks the arena for a new gang; fills slots for a restore; exports the finished model; ends
// by itself when the job is over or nobody has come for arena_ttl, never freeing what is not in the
// store.
//
// Killed at any moment and started again it finds the arena and goes on: pinned slots are written,
// requests and busy bits set anew. All it must know lies in the arena and in `<arena
// folder>/memory`.
//
// Threads: run() is a loop that never waits for store or memory; threads of its own do that: for
// gangs (hello, restore), for the store (uploads, flush, finish), so that a slow upload does not
// delay a recovery, for keys and the job directory, for launches, for logs and traces, for checks.
// `metrics` is called on the thread of run().
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/arena.h"
#include "checkpoint/service.pb.h"
#include "checkpoint/service_keys.h"
#include "checkpoint/store_side.h"
#include "common/clock.h"
#include "common/status.h"
#include "configs/job.pb.h"

namespace surefoot {

// What clouds and people have said about this machine, as it stands now.
struct MachineNotices {
  struct Leave {
    Time deadline;
    std::string source;  // "aws", "file"
    std::string id;
  };
  std::optional<Leave> leave;  // this machine goes; none any more: it was called off
  bool checkpoint = false;     // one is wanted; said once
  std::vector<std::string>
      warnings;  // of what does not make it go: a raised risk, a far maintenance
};

struct ServiceSettings {
  config::Job job;
  std::string job_id;
  std::filesystem::path arena_folder;
  std::filesystem::path final_folder;  // the export
  std::filesystem::path history_file;  // service_history.h; empty: nothing is remembered
  OpenStore open_store;
  Keys encryption_keys;  // with which checkpoints are encrypted; none: they are not
  bool supervised = false;
  // Finished steps, in order, while no supervisor watches; steps may come again after the service
  // was killed. May be empty.
  std::function<void(const std::vector<StepRecord>&)> metrics;
  // What is run with --describe when the supervisor wants to know whether this node will do: the
  // worker's program, and its arguments before that. None: not described.
  std::vector<std::string> describe;
  // What is run, with --workers N, when it wants to know whether the GPUs here will do. It prints
  // lines that begin with "fault " or "warning ", and "done" at the end. None: not looked at.
  std::vector<std::string> look_at_gpus;
  // Looked at now and then, on a thread of its own: whether it is this job's. Empty: it is not.
  std::filesystem::path job_directory;
  int signals = -1;  // a signalfd with SIGTERM, SIGINT and SIGHUP, all blocked: drain; one of the
                     // first two again, for the same gang: end. -1: none
  // For the supervisor's side: an address of this machine in numbers, with " FIRST-LAST" after it
  // where not every port will do, and the keys. Without keys (read_keys says kNotFound, or is
  // empty) only this machine's socket is there; it is asked again every second, on a thread of its
  // own, since a supervisor may come later, or make new keys.
  std::string listen = "127.0.0.1";
  std::function<Result<ServiceKeys>()> read_keys;
  // Called about once a second on the thread of run(), so that what whoever started this has placed
  // in the arena's folder comes again with it: with `anew` when somebody has removed the folder and
  // it was made anew, before anybody can ask here. Must not wait. May be empty.
  std::function<void(bool anew)> placed_files;
  // Asked ten times a second on the thread of run(); must not wait. `safe`: the workers have left
  // because of `leave`, and nothing is lost when this machine goes now. May be empty.
  std::function<MachineNotices(bool safe)> notices;
  // Asked ten times a second on the thread of run() what the GPUs do that this many workers, who
  // run here now, take; must not wait. May be empty.
  std::function<std::vector<service::GpuStatus>(int workers)> gpus;
  // Called before ("before hello") and after each reply but those to status, so that a test can end
  // the process there. May be empty.
  std::function<void(std::string_view point)> at_reply;
};

class Service {
 public:
  // kStale: another service of this job runs; the message names it. Else why it cannot start.
  [[nodiscard]] static Result<std::unique_ptr<Service>> start(ServiceSettings settings);
  virtual ~Service() = default;
  // tcp://ADDRESS:PORT for who holds the client key; empty: none.
  [[nodiscard]] virtual std::string endpoint() const = 0;
  // Serves until there is nothing to serve any more, and says why it ends.
  [[nodiscard]] virtual std::string run() = 0;
  // After run(): whether all its threads have ended by then. False: one hangs, on a disk say, and
  // destruction would wait for it; the process may end as it is, all that must last is written.
  [[nodiscard]] virtual bool close(Time deadline) = 0;
};

}  // namespace surefoot
