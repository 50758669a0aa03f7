// Faults injected on purpose, for demonstrations and tests: `surefoot run --fault
// kill:rank=1,step=20,phase=update`.
//
// The supervisor hands the list to the workers (SUREFOOT_FAULTS, joined by ';'); the worker that a
// fault names fires it when it enters that phase of that step. A fault fires once in the life of a
// job: its index is marked in the arena header first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/phase.h"
#include "common/status.h"

namespace surefoot {

struct InjectedFault {
  enum class Action { kKill, kTerm, kStop };  // SIGKILL, SIGTERM, SIGSTOP
  enum class Target {
    kRank,
    kAll,
    kService,
    kSupervisor,
    kMpirun
  };  // kAll: every worker of the attempt and mpirun
  Action action = Action::kKill;
  Target target = Target::kRank;
  int rank = 0;  // that dies (kRank), modulo the world size; rank 0 fires the others
  Step step{1};
  Phase phase = Phase::kForwardBackward;
  friend bool operator==(const InjectedFault&, const InjectedFault&) = default;
};

inline constexpr int kMaxFaults = 256;  // as many as the arena header has marks for

struct FaultContext {
  std::int64_t max_steps;  // random faults fall on steps 2..max_steps - 1
  int workers;
};

// `kill:rank=1,step=20[,phase=update]`, `kill:all,step=20`, `kill:service,...`,
// `kill:supervisor,...`, `kill:mpirun,...`, `term:...`, `stop:...`, and `random:N[,seed=S]`: N
// seeded kills of ranks, of all, of mpirun and of the service. kInvalid names the word that is
// wrong and what is allowed.
[[nodiscard]] Result<std::vector<InjectedFault>> parse_faults(const std::vector<std::string>& texts,
                                                              const FaultContext& context);
// The form parse_faults reads back, one a fault, never random.
[[nodiscard]] std::string to_text(const InjectedFault& fault);

}  // namespace surefoot
