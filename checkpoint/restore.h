// Decides which copy of the state an attempt resumes from.
//
// Order: the newest step wins; of equal steps a READY arena beats the store, since it is read at
// memory speed; then the later attempt, then the lower node index. A copy that failed is never
// offered again in this job. If a step is known to have been finished and no copy but that of step
// 0 is left, the answer is an error that names the step, never step 0 in silence
// (`restart_when_lost`: step 0, and the reason says so).
//
// Pure: no clock, I/O, threads or logging. The caller performs the plan and reports each failed
// copy by asking again.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "common/digest.h"
#include "common/ids.h"
#include "common/status.h"

namespace surefoot {

struct Candidate {
  enum class Source { kArena, kStore };
  Source source = Source::kArena;
  Step step;
  Attempt attempt;
  Digest digest;  // state digest
  int node = 0;   // node index of an arena; 0 for the store
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

struct RestoreInventory {
  std::vector<Candidate> candidates;  // of all nodes; the store's may come several times
  std::vector<Candidate> failed;      // refused before, or found corrupt while reading
  Step known_step;  // the furthest step that anyone knows to have been finished; 0: none
  bool restart_when_lost = false;  // checkpoint.on_lost_state: restart
};

struct RestorePlan {
  std::optional<Candidate> source;  // empty: start at step 0 with fresh weights
  std::string_view
      reason;  // one static sentence: the log line, the status page and the test's message
};
// kInvalid: the job has been further and no good copy is left; the message names the step and what
// the user can do.
[[nodiscard]] Result<RestorePlan> plan_restore(const RestoreInventory& inventory);

}  // namespace surefoot
