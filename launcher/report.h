// What happened to a job: from its journal and its metrics, for the summary screen, `--json` and
// `status`.
//
// Pure: all that is read comes in as values.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/service.pb.h"
#include "launcher/fleet_report.h"
#include "launcher/journal.h"
#include "launcher/metrics/metrics.h"

namespace surefoot {

struct LossPoint {
  Step step;
  double loss = 0;
  double accuracy = -1;  // -1: has none
};

struct JobReport {
  std::string job;
  std::string id;
  std::string directory;
  std::string state;   // supervisor::name(JobState); "stopped" when it runs by its journal, but no
                       // supervisor lives
  std::string line;    // why it stopped, one line; empty: it runs
  int exit_code = -1;  // -1: it runs
  Step step;           // newest finished
  Step max_steps;
  supervisor::History history;
  std::vector<JournalAttempt> attempts;
  std::optional<JournalResult> result;
  std::optional<LossPoint> loss_first, loss_last;  // of training, of the steps that count
  std::optional<LossPoint> eval_first, eval_last;
  double samples_per_second = 0;                // median of the last 100 steps; 0: none
  double mfu = 0;                               // median of these; 0: not known
  std::optional<service::StatusReply> service;  // this machine's, when it answered
  std::optional<FleetReport> fleet;             // of several machines
  std::int32_t supervisor_pid = 0;              // 0: none lives
};

// `metrics`: latest_metrics().
[[nodiscard]] JobReport make_report(const JournalView& journal,
                                    const std::vector<MetricRecord>& metrics,
                                    const std::string& directory, Step max_steps);

// One object: job state steps attempts failures preemptions steps_lost goodput seconds
// weights_sha256 state_sha256, badput by cause in seconds, recoveries by phase in seconds, loss;
// `failures` counts all failed attempts, `failures_injected` those of them that were asked for.
[[nodiscard]] nlohmann::json to_json(const JobReport& report);

// The screen at the end of `run`, at most about 30 lines. `color`: with ANSI colours.
[[nodiscard]] std::string summary_screen(const JobReport& report, bool color);
// The screen of `status`.
[[nodiscard]] std::string status_screen(const JobReport& report, bool color);

// "failed, steps 1-149: rank 1 on vm in step 150, forward_backward: killed by signal 9 (injected)".
// Of a preemption with a notice: "preempted, steps 1-40: left since its machine goes; drained 0.35
// s after the notice, 27.6 s left".
[[nodiscard]] std::string attempt_text(const supervisor::AttemptEnd& end);
// "1.63 s: detect 0.05, launch 0.11, load 0.98, restore 0.20, first step 0.29".
[[nodiscard]] std::string recovery_text(const Recovery& recovery);

}  // namespace surefoot
