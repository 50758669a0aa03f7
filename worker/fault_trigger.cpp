#include "worker/fault_trigger.h"

#include <signal.h>
#include <unistd.h>

#include "common/log.h"

namespace surefoot {
namespace {

int signal_of(InjectedFault::Action action) {
  switch (action) {
    case InjectedFault::Action::kKill:
      return SIGKILL;
    case InjectedFault::Action::kTerm:
      return SIGTERM;
    case InjectedFault::Action::kStop:
      return SIGSTOP;
  }
  return SIGKILL;
}

}  // namespace

FaultTrigger::FaultTrigger(Arena& arena, std::vector<InjectedFault> faults, int rank,
                           int world_size, pid_t supervisor)
    : arena_(arena),
      faults_(std::move(faults)),
      rank_(rank),
      world_size_(world_size),
      supervisor_(supervisor) {}

void FaultTrigger::enter(Step step, Phase phase) {
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    const InjectedFault& fault = faults_[i];
    if (fault.step != step || fault.phase != phase) continue;
    const int firing_rank =
        fault.target == InjectedFault::Target::kRank ? fault.rank % world_size_ : 0;
    if (rank_ == firing_rank && arena_.mark_fault(static_cast<int>(i))) fire(fault);
  }
}

void FaultTrigger::fire(const InjectedFault& fault) {
  const int signal = signal_of(fault.action);
  spdlog::warn("injected fault: {}", to_text(fault));
  switch (fault.target) {
    case InjectedFault::Target::kRank:
      ::kill(::getpid(), signal);
      break;
    case InjectedFault::Target::kService:
      (void)send_signal(arena_.service(), signal);
      break;
    case InjectedFault::Target::kSupervisor:
      if (supervisor_ > 0) ::kill(supervisor_, signal);
      break;
    case InjectedFault::Target::kMpirun:
      ::kill(::getppid(), signal);
      break;
    case InjectedFault::Target::kAll: {
      // mpirun first: it would end the others itself, in its own order.
      ::kill(::getppid(), signal);
      const Arena::Gang gang = arena_.gang();
      const ProcessId self = self_process();
      for (int local = 0; local < gang.local_size; ++local) {
        const ProcessId& other = arena_.line(local).process;
        if (other != self) (void)send_signal(other, signal);
      }
      ::kill(::getpid(), signal);
      break;
    }
  }
}

}  // namespace surefoot
