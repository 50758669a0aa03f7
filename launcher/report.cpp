#include "launcher/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "launcher/format.h"

namespace surefoot {
namespace {

using nlohmann::json;

std::optional<LossPoint> point(const MetricRecord& metric) {
  return LossPoint{Step{metric.record.step}, metric.record.loss, metric.record.accuracy};
}

json to_json(const std::optional<LossPoint>& point) {
  if (!point) return nullptr;
  json object = {{"step", point->step.value}, {"loss", point->loss}};
  if (point->accuracy >= 0) object["accuracy"] = point->accuracy;
  return object;
}

json to_json(const Recovery& recovery) {
  return {{"attempt", recovery.attempt.value},    {"seconds", seconds(recovery.total())},
          {"detect", seconds(recovery.detect)},   {"wait", seconds(recovery.wait)},
          {"launch", seconds(recovery.launch)},   {"load", seconds(recovery.load)},
          {"restore", seconds(recovery.restore)}, {"first_step", seconds(recovery.first_step)},
          {"steps_lost", recovery.steps_lost}};
}

// `next`: the attempt after it; null: none yet.
json notice_json(const JournalAttempt& attempt, const JournalAttempt* next) {
  const supervisor::AttemptEnd& end = attempt.end;
  const auto after =
      std::chrono::duration_cast<std::chrono::milliseconds>(*end.drained_after).count();
  json notice = {{"at_unix_ms", attempt.ended_unix_ms - after},
                 {"drained_at_unix_ms", attempt.ended_unix_ms},
                 {"drained_after_seconds", seconds(*end.drained_after)},
                 {"time_left_seconds", end.time_left ? json(seconds(*end.time_left)) : json()},
                 {"steps_lost", nullptr},
                 {"back_at_work_seconds", nullptr}};
  if (next != nullptr && next->recovery) {
    notice["steps_lost"] = next->recovery->steps_lost;
    notice["back_at_work_seconds"] = seconds(next->recovery->total());
  }
  return notice;
}

json to_json(const JournalAttempt& attempt, const JournalAttempt* next) {
  json object = {{"attempt", attempt.end.attempt.value}};
  if (attempt.ended_unix_ms == 0) return object.update({{"outcome", "running"}}), object;
  const supervisor::AttemptEnd& end = attempt.end;
  object.update({{"outcome", supervisor::name(end.outcome)},
                 {"injected", end.injected},
                 {"code", end.code},
                 {"signal", end.signal},
                 {"first_step", end.first_step.value},
                 {"last_step", end.last_step.value}});
  if (end.drained_after) object["notice"] = notice_json(attempt, next);
  if (end.culprit.rank < 0 && end.culprit.reason.empty()) return object;
  object["culprit"] = {{"rank", end.culprit.rank},
                       {"host", end.culprit.host},
                       {"step", end.culprit.step.value},
                       {"phase", name(end.culprit.phase)},
                       {"reason", end.culprit.reason}};
  return object;
}

json gpu_json(const service::GpuStatus& gpu) {
  json object = {{"device", gpu.device()}, {"age_seconds", gpu.age_seconds()}};
  if (!gpu.fault().empty()) {
    object["fault"] = gpu.fault();
    return object;
  }
  object.update({{"index", gpu.index()},
                 {"uuid", gpu.uuid()},
                 {"name", gpu.name()},
                 {"busy", gpu.has_busy() ? json(gpu.busy()) : json(nullptr)},
                 {"memory_used_bytes", gpu.memory_used_bytes()},
                 {"memory_bytes", gpu.memory_bytes()},
                 {"celsius", gpu.has_celsius() ? json(gpu.celsius()) : json(nullptr)},
                 {"watts", gpu.has_watts() ? json(gpu.watts()) : json(nullptr)},
                 {"clock_mhz", gpu.has_clock_mhz() ? json(gpu.clock_mhz()) : json(nullptr)},
                 {"slowed_by", slowed_by(gpu.clock_reasons())}});
  return object;
}

json service_json(const service::StatusReply& status) {
  json ranks = json::array();
  for (const auto& rank : status.ranks()) {
    ranks.push_back({{"rank", rank.rank()},
                     {"pid", rank.pid()},
                     {"alive", rank.alive()},
                     {"phase", rank.phase()},
                     {"step", rank.step()},
                     {"seconds_in_phase", rank.seconds_in_phase()}});
  }
  json refused = json::object();
  for (const auto& [kind, count] : status.refused()) refused[kind] = count;
  json object = {{"pid", status.pid()},
                 {"host", status.host()},
                 {"node", status.node_index()},
                 {"nodes", status.node_count()},
                 {"endpoint", status.endpoint()},
                 {"snapshot", status.ready_step()},
                 {"stored_part", status.stored_part_step()},
                 {"checkpoint", status.durable_step()},
                 {"checkpoint_age_seconds",
                  status.durable_step() < 0 ? json(nullptr) : json(status.durable_age_seconds())},
                 {"storing", status.storing_step()},
                 {"uploading_bytes", status.uploading_bytes()},
                 {"upload_bytes_per_second", status.upload_bytes_per_second()},
                 {"storing_seconds", status.storing_seconds()},
                 {"waiting_for", status.waiting_for()},
                 {"arena_bytes", status.arena_bytes()},
                 {"interval_seconds", status.interval_seconds()},
                 {"interval_rule", status.interval_rule()},
                 {"interval_reason", status.interval_reason()},
                 {"refused", std::move(refused)},
                 {"warnings", json(std::vector<std::string>(status.warnings().begin(),
                                                            status.warnings().end()))},
                 {"ranks", std::move(ranks)}};
  object["gpus"] = json::array();
  for (const service::GpuStatus& gpu : status.gpus()) object["gpus"].push_back(gpu_json(gpu));
  object["notice"] = nullptr;
  if (status.has_notice()) {
    const service::NoticeStatus& notice = status.notice();
    object["notice"] = {{"seconds_left", notice.seconds_left()},
                        {"everyone", notice.everyone()},
                        {"decision", notice.decision()},
                        {"safe_step", notice.safe_step()},
                        {"safe_before_seconds", notice.safe_before_seconds()}};
  }
  return object;
}

// Of the last 100 steps; 0: of none it is known.
double median(const std::vector<MetricRecord>& metrics, double (*value)(const MetricRecord&)) {
  std::vector<double> values;
  for (auto metric = metrics.rbegin(); metric != metrics.rend() && values.size() < 100; ++metric) {
    const double one = value(*metric);
    if (metric->record.kind == StepRecord::kTrain && one > 0) values.push_back(one);
  }
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

}  // namespace

JobReport make_report(const JournalView& journal, const std::vector<MetricRecord>& metrics,
                      const std::string& directory, Step max_steps) {
  JobReport report;
  report.job = journal.job.name;
  report.id = journal.job.id;
  report.directory = directory;
  report.max_steps = max_steps;
  report.history = journal.history;
  report.step = journal.history.finished_step;
  report.attempts = journal.attempts;
  report.result = journal.result;
  report.samples_per_second =
      median(metrics, [](const MetricRecord& metric) { return samples_per_second(metric.record); });
  report.mfu = median(metrics, [](const MetricRecord& metric) { return metric.mfu; });
  if (!journal.stop && journal.supervisor && is_alive(*journal.supervisor))
    report.supervisor_pid = journal.supervisor->pid;
  const bool running = journal.history.state == supervisor::JobState::kRunning;
  report.state = running && report.supervisor_pid == 0
                     ? "stopped"
                     : std::string(supervisor::name(journal.history.state));
  if (journal.stop) {
    report.line = journal.stop->line;
    report.exit_code = journal.stop->exit_code;
  }
  for (const MetricRecord& metric : metrics) {
    const bool evaluation = metric.record.kind == StepRecord::kEvaluation;
    auto& first = evaluation ? report.eval_first : report.loss_first;
    if (!first) first = point(metric);
    (evaluation ? report.eval_last : report.loss_last) = point(metric);
  }
  return report;
}

nlohmann::json to_json(const JobReport& report) {
  const supervisor::History& history = report.history;
  json badput = json::object();
  for (std::size_t i = 1; i < kCauseCount; ++i) {
    badput[std::string(kCauseNames[i])] = seconds(history.accounting.spent[i]);
  }
  json recoveries = json::array();
  json attempts = json::array();
  for (const JournalAttempt& attempt : report.attempts) {
    const bool last = &attempt == &report.attempts.back();
    attempts.push_back(to_json(attempt, last ? nullptr : &attempt + 1));
    if (attempt.recovery) recoveries.push_back(to_json(*attempt.recovery));
  }
  json object = {
      {"job", report.job},
      {"id", report.id},
      {"directory", report.directory},
      {"state", report.state},
      {"message", report.line},
      {"steps", report.step.value},
      {"max_steps", report.max_steps.value},
      {"attempts", history.attempt.value},
      {"failures", history.failures_total + history.failures_forgiven},
      {"failures_injected", history.failures_forgiven},
      {"preemptions", history.preemptions},
      {"steps_lost", history.steps_lost},
      {"goodput", history.accounting.goodput()},
      {"seconds", seconds(history.accounting.elapsed())},
      {"badput", std::move(badput)},
      {"recoveries", std::move(recoveries)},
      {"attempt_list", std::move(attempts)},
      {"samples_per_second", report.samples_per_second},
      {"mfu", report.mfu > 0 ? json(report.mfu) : json(nullptr)},
      {"loss", {{"first", to_json(report.loss_first)}, {"last", to_json(report.loss_last)}}},
      {"evaluation", {{"first", to_json(report.eval_first)}, {"last", to_json(report.eval_last)}}},
      {"weights_sha256", report.result ? json(report.result->weights_sha256) : json(nullptr)},
      {"state_sha256", report.result ? json(report.result->state_sha256) : json(nullptr)},
      {"final", report.result ? json(report.result->folder) : json(nullptr)}};
  object["supervisor"] = report.supervisor_pid == 0 ? json(nullptr) : json(report.supervisor_pid);
  object["service"] = report.service ? service_json(*report.service) : json(nullptr);
  object["fleet"] = report.fleet ? to_json(*report.fleet) : json(nullptr);
  return object;
}

}  // namespace surefoot
