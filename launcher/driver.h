// The supervisor of one job as it runs: feeds the core (supervisor.h) with what happens and
// performs what it decides.
//
// One loop on the caller's thread: takes what the threads have found from one inbox, takes signals
// (SIGINT, SIGTERM, SIGHUP: drain, then end, then leave; SIGUSR1: cancel), waits for mpirun, writes
// metrics and progress. A thread for each machine asks its service ten times a second (fifty times
// until an attempt has done its first step, so that the phases of a recovery are known;
// service_watch.h); what takes long is done on threads of machines.h. Decisions are journalled
// before they are performed.
//
// Signals: block_signals() must be called before any thread is made.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/service_keys.h"
#include "common/status.h"
#include "configs/job.h"
#include "configs/job_directory.h"
#include "launcher/console.h"
#include "launcher/journal.h"
#include "launcher/node_link.h"

namespace surefoot {

struct Programs {
  std::filesystem::path worker;  // surefoot-worker
  std::filesystem::path node;    // surefoot-node
};

struct DriverSettings {
  config::Job job;
  JobDirectory directory;
  std::string job_id;
  ServiceKeys keys;
  Programs programs;
  std::vector<std::string> faults;  // to_text(InjectedFault), all of the job's life
  bool faults_count = false;
  bool accept_changes = false;
  double flops_per_sample = 0;  // by the worker's word; 0: not known, or the machines tell
  // bring_model.h, bound to the job.
  BringModel bring_model;
  bool cancel = false;  // end what is there, free it, and stop
};

void block_signals();

// Runs the job to its stop and returns the exit code. The journal is open (this process holds the
// supervisor's lock). An error: the journal cannot be written; what runs goes on as it does when a
// supervisor dies.
[[nodiscard]] Result<int> supervise(const DriverSettings& settings, Journal& journal,
                                    Console& console);

}  // namespace surefoot
