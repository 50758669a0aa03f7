// The metrics of a job: metrics/metrics.jsonl and TensorBoard event files beside it.
//
// One JSON object a line. Training:
// {"kind":"train","attempt","step","samples","loss","lr","grad_norm","samples_per_second",
// "mfu","phases":{"data":s,...},"checkpoint":bool,"time"}, mfu only where it is known
// (peak_flops.h); evaluation:
// {"kind":"eval","attempt","step","samples","loss","accuracy","time"}, accuracy only where there is
// one. Numbers are written so that reading them gives the same double; a number that is not finite
// is the string "nan", "inf" or "-inf", which JSON has no number for. `time`: seconds since 1970,
// for people; nothing is decided by it.
//
// A step that is done again by a later attempt has a line of each; the later attempt supersedes:
// latest_metrics() applies that rule.
//
// GPUs have a file of their own, gpus.jsonl, a line for each device and look:
// {"kind":"gpu","attempt","step","node","device","uuid","name","busy","memory_used_bytes",
// "memory_bytes","celsius","watts","clock_mhz","slowed_by":[...],"time"}; what NVML does not tell
// is left out, and one that does not answer has "fault" instead. `step`: the newest finished one.
// In the event files they are gpu/NODE/DEVICE/busy and so on.
//
// One writer at a time (the supervisor, under its lock, or the service of an unsupervised job).
// Writing blocks on the file system only; a full disk loses metric lines, never the job.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "checkpoint/arena.h"
#include "checkpoint/service.pb.h"
#include "common/status.h"
#include "launcher/metrics/event_file.h"

namespace surefoot {

struct MetricRecord {
  StepRecord record;
  double wall_seconds = 0;  // since 1970, when the step was finished
  double mfu = 0;           // share of the GPUs' peak; 0: not known
};

struct GpuMetric {
  std::string node;  // the machine's own name
  std::int64_t attempt = 0;
  std::int64_t step = 0;
  double wall_seconds = 0;
  service::GpuStatus gpu;
};
[[nodiscard]] std::string to_json_line(const GpuMetric& metric);  // without '\n'
// Of NVML's reasons for a clock, those that make it slower: "power_limit", "too_hot", ...
[[nodiscard]] std::vector<std::string> slowed_by(std::uint64_t clock_reasons);

// Samples seen up to the step, over its number and the time of its phases; 0 when no time is known.
[[nodiscard]] double samples_per_second(const StepRecord& record);
[[nodiscard]] std::string to_json_line(const MetricRecord& metric);  // without '\n'
// kInvalid: not a line of this format.
[[nodiscard]] Result<MetricRecord> parse_metric_line(std::string_view line);

// Per (step, kind) the record of the last attempt, in order of steps. A last line without '\n' is
// one that a crash cut short: left out.
[[nodiscard]] std::vector<MetricRecord> latest_metrics(std::string_view jsonl);

// latest_metrics() of `<folder>/metrics.jsonl`; of a long file only what stands in its first and
// last 256 KiB, which takes a few milliseconds however long it is. No file: none.
[[nodiscard]] std::vector<MetricRecord> read_metrics(const std::filesystem::path& folder);

class MetricsWriter {
 public:
  // Makes the folder where needed. A last line that was cut short by a crash is removed.
  [[nodiscard]] static Result<std::unique_ptr<MetricsWriter>> open(
      const std::filesystem::path& folder);

  // Appends those that are newer than all written so far, in the order (attempt, step, kind); the
  // others were written before. So the records' ring may be read again from its start. After an
  // error the lines of this call are not there.
  Status append(const std::vector<MetricRecord>& metrics);
  Status append_gpus(const std::vector<GpuMetric>& metrics);

 private:
  using Position = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // attempt, step, kind
  static Position position(const StepRecord& record) {
    return {record.attempt, record.step, record.kind};
  }

  Status append_events(const std::string& framed, double wall_seconds);

  std::filesystem::path folder_;
  Fd lines_;
  Fd gpu_lines_;                     // made with the first look
  std::optional<EventFile> events_;  // made with the first record
  Position last_{-1, -1, -1};
};

}  // namespace surefoot
