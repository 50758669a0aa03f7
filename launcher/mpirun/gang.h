// One attempt's processes on this machine: mpirun in a session of its own, and the workers in it.
//
// mpirun is a child of the supervisor that started it, but does not end with it: own session,
// standard input from /dev/null, output to files. A later supervisor knows it by its ProcessId
// (from the journal) and learns only that it is gone, not its exit code.
//
// One thread. start() blocks for a fork and exec; end() until all are gone or the deadline.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/process.h"
#include "common/status.h"
#include "launcher/mpirun/command.h"

namespace surefoot {

class Gang {
 public:
  // Makes the attempt's folders for logs and Open MPI's files, then starts mpirun. kInvalid: mpirun
  // cannot be started; the message says what to install.
  [[nodiscard]] static Result<Gang> start(const GangSpec& spec);
  // The gang an earlier supervisor left: not a child of this process. pid 0: that supervisor died
  // before it could note whom it had started; then every mpirun and every worker program counts
  // that has this job and attempt in its environment.
  [[nodiscard]] static Gang left_behind(const ProcessId& mpirun, const GangSpec& spec);

  [[nodiscard]] const ProcessId& mpirun() const { return mpirun_; }
  // Nothing while mpirun runs. A gang that was left behind gives code -1 and signal 0: unknown.
  [[nodiscard]] std::optional<ExitStatus> poll();
  // SIGKILLs everything in mpirun's session that carries this attempt's environment, until nothing
  // of it is left, then removes Open MPI's files. To be called after every end, also an orderly
  // one. kRestart names the processes that did not end by `deadline`.
  Status end(Time deadline);
  // Those that run, mpirun included.
  [[nodiscard]] std::vector<ProcessId> processes() const;

 private:
  Gang(ProcessId mpirun, GangSpec spec, bool child)
      : mpirun_(mpirun), spec_(std::move(spec)), child_(child) {}
  ProcessId mpirun_;
  GangSpec spec_;
  bool child_;
  std::optional<ExitStatus> ended_;
};

}  // namespace surefoot
