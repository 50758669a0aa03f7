#include "launcher/journal_facts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace surefoot {
namespace {

using supervisor::History;
using supervisor::JobState;

std::string text_of(const Facts& facts, const std::string& key) {
  const auto found = facts.find(key);
  return found == facts.end() ? std::string() : found->second;
}

template <class Number = std::int64_t>
Number number_of(const Facts& facts, const std::string& key) {
  const std::string text = text_of(facts, key);
  Number number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

JobState state_named(const std::string& text) {
  for (const JobState state :
       {JobState::kDone, JobState::kInterrupted, JobState::kFailed, JobState::kCancelled}) {
    if (name(state) == text) return state;
  }
  return JobState::kRunning;
}

}  // namespace

Facts to_facts(const History& h) {
  Facts facts{
      {"history.attempt", fmt::to_string(h.attempt.value)},
      {"history.attempt_open", fmt::to_string(int{h.attempt_open})},
      {"history.gang", fmt::format("{}", fmt::join(h.gang, "\n"))},
      {"history.numerics_id", h.numerics_id},
      {"history.training_hash", h.training_hash},
      {"history.finished_step", fmt::to_string(h.finished_step.value)},
      {"history.failures_in_row", fmt::to_string(h.failures_in_row)},
      {"history.idle_in_row", fmt::to_string(h.idle_in_row)},
      {"history.failures_total", fmt::to_string(h.failures_total)},
      {"history.failures_forgiven", fmt::to_string(h.failures_forgiven)},
      {"history.preemptions", fmt::to_string(h.preemptions)},
      {"history.steps_lost", fmt::to_string(h.steps_lost)},
      {"history.has_last_failure", fmt::to_string(int{h.has_last_failure})},
      {"history.last_failure_step", fmt::to_string(h.last_failure_step.value)},
      {"history.last_failure_reason", h.last_failure_reason},
      {"history.state", std::string(name(h.state))},
  };
  for (std::size_t i = 0; i < kCauseCount; ++i) {
    facts[fmt::format("spent_ns.{}", kCauseNames[i])] =
        fmt::to_string(h.accounting.spent[i].count());
  }
  return facts;
}

History history_of(const Facts& facts) {
  History h;
  h.attempt = Attempt{number_of(facts, "history.attempt")};
  h.attempt_open = number_of(facts, "history.attempt_open") != 0;
  h.gang = lines_of(text_of(facts, "history.gang"));
  h.numerics_id = text_of(facts, "history.numerics_id");
  h.training_hash = text_of(facts, "history.training_hash");
  h.finished_step = Step{number_of(facts, "history.finished_step")};
  h.failures_in_row = number_of(facts, "history.failures_in_row");
  h.idle_in_row = number_of(facts, "history.idle_in_row");
  h.failures_total = number_of(facts, "history.failures_total");
  h.failures_forgiven = number_of(facts, "history.failures_forgiven");
  h.preemptions = number_of(facts, "history.preemptions");
  h.steps_lost = number_of(facts, "history.steps_lost");
  h.has_last_failure = number_of(facts, "history.has_last_failure") != 0;
  h.last_failure_step = Step{number_of(facts, "history.last_failure_step")};
  h.last_failure_reason = text_of(facts, "history.last_failure_reason");
  h.state = state_named(text_of(facts, "history.state"));
  for (std::size_t i = 0; i < kCauseCount; ++i) {
    h.accounting.spent[i] = Duration(number_of(facts, fmt::format("spent_ns.{}", kCauseNames[i])));
  }
  return h;
}

Facts to_facts(const ProcessId& supervisor) {
  return {{"supervisor.boot", fmt::to_string(supervisor.boot)},
          {"supervisor.start_ticks", fmt::to_string(supervisor.start_ticks)},
          {"supervisor.pid", fmt::to_string(supervisor.pid)}};
}

ProcessId supervisor_of(const Facts& facts) {
  ProcessId process;
  process.boot = number_of<std::uint64_t>(facts, "supervisor.boot");
  process.start_ticks = number_of(facts, "supervisor.start_ticks");
  process.pid = number_of<std::int32_t>(facts, "supervisor.pid");
  return process;
}

Facts to_facts(const supervisor::Stop& stop) {
  return {{"stop.exit_code", fmt::to_string(stop.exit_code)},
          {"stop.state", std::string(name(stop.state))},
          {"stop.line", stop.line}};
}

std::optional<supervisor::Stop> stop_of(const Facts& facts) {
  if (!facts.contains("stop.exit_code")) return std::nullopt;
  return supervisor::Stop{number_of<int>(facts, "stop.exit_code"),
                          state_named(text_of(facts, "stop.state")), text_of(facts, "stop.line")};
}

Facts to_facts(const JournalResult& result) {
  return {{"result.weights_sha256", result.weights_sha256},
          {"result.state_sha256", result.state_sha256},
          {"result.folder", result.folder},
          {"result.step", fmt::to_string(result.step)}};
}

std::optional<JournalResult> result_of(const Facts& facts) {
  if (!facts.contains("result.weights_sha256")) return std::nullopt;
  return JournalResult{text_of(facts, "result.weights_sha256"),
                       text_of(facts, "result.state_sha256"), text_of(facts, "result.folder"),
                       number_of(facts, "result.step")};
}

Facts to_facts(const JournalJob& job) {
  return {{"job.id", job.id},
          {"job.name", job.name},
          {"job.created_unix_ms", fmt::to_string(job.created_unix_ms)}};
}

JournalJob job_of(const Facts& facts) {
  return {text_of(facts, "job.id"), text_of(facts, "job.name"),
          number_of(facts, "job.created_unix_ms")};
}

}  // namespace surefoot
