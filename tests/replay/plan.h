// What happens to N hosts when a recorded fleet is replayed on them, and what that should cost.
//
// The fleet's count of machines becomes hosts in proportion to its peak: N x alive / peak, rounded,
// and at least one while a machine lives. So hosts are few where the fleet was small, and what went
// in one burst goes in one burst; a loss too small to change the rounded count is none. Time is
// compressed to `seconds`, from the first machine's coming on. Which host goes or returns is drawn
// by the seed.
//
// Traces record no notices: each lost host gets one of 0, 30 or 120 seconds before it goes, drawn
// by the seed (none; Google's and Azure's; Amazon's), compressed as the trace is. A notice cannot
// be earlier than the host itself.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/replay/trace.h"

namespace surefoot::replay {

struct Action {
  enum class Kind { kNotice, kLoss, kReturn };
  double at = 0;  // seconds of the replay
  Kind kind = Kind::kLoss;
  int host = 0;
  double notice = 0;  // seconds between notice and loss, compressed; 0: none
  friend bool operator==(const Action&, const Action&) = default;
};

struct Plan {
  std::vector<int> at_start;    // hosts that are there when it begins; at least one
  std::vector<Action> actions;  // rising in time
  double seconds = 0;
  double compression = 1;  // seconds of the trace in one of the replay
  int peak = 0;            // machines
  // Of the trace: machines that went, and moments at which some did.
  int machines_lost = 0;
  int bursts = 0;
  // Of the replay.
  int hosts_lost = 0;
  int noticed = 0;  // of those
  int hosts_returned = 0;
  double without_hosts = 0;  // seconds
  // Times at which the gang's hosts change: losses (notices, where there are some) and returns.
  std::vector<double> interruptions;
};

struct PlanOptions {
  int hosts = 4;
  double seconds = 60;
  std::uint64_t seed = 1;
};
// kInvalid when no machine ever is in the trace.
[[nodiscard]] Result<Plan> make_plan(const Trace& trace, const PlanOptions& options);

// How much time a job loses to its fleet, to first order: each interruption costs the mean time R
// from the last sign of the old gang to the next finished step, time without hosts is lost whole,
// and so are the start and the end of the job.
//
//   badput = (I R + W + S) / T
//
// This is the waste (D + R + tau/2) / mu + C / tau of Young (Comm. ACM 17(9), 1974) and Daly
// (Future Gener. Comput. Syst. 22(3), 2006) with a snapshot after every step: mu = T / I, the
// measured R holds detection, restart and the half step tau/2 that is done again, and C is within
// the step. It holds while R is much shorter than the time between interruptions. When they come
// faster, an interruption cuts the recovery before it short, so that one costs min(R, time to the
// next): `overlapping` is that sum, and what to compare with.
struct Cost {
  double first_order = 0;  // share of the time, 0 to 1
  double overlapping = 0;  // the same with recoveries cut short
  // First order, at the trace's own speed, of I, R and W alone.
  double uncompressed = 0;
};
struct Measured {
  double recovery = 0;       // R, mean, seconds
  double start_and_end = 0;  // S, seconds
  double elapsed = 0;        // T, seconds; 0: nothing is predicted
};
[[nodiscard]] Cost predict(const Plan& plan, const Measured& measured);

[[nodiscard]] std::string to_text(const Action& action);

}  // namespace surefoot::replay
