// The screens of report.h. A fact a line; what went wrong stands above what it cost.
#include <algorithm>
#include <map>

#include "launcher/format.h"
#include "launcher/report.h"

namespace surefoot {
namespace {

constexpr int kMostAttempts =
    8;  // more do not fit on a screen: the first is left out, `surefoot logs` has all

std::string painted(const std::string& text, const char* code, bool color) {
  return color ? fmt::format("\033[{}m{}\033[0m", code, text) : text;
}

class Screen {
 public:
  void line(const std::string& label, const std::string& text) {
    text_ += fmt::format("  {:<12}  {}\n", label, text);
  }
  void title(const std::string& text) { text_ += text + "\n"; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string title_of(const JobReport& report, bool color) {
  const bool good = report.state == "done" || report.state == "running";
  std::string title =
      painted(fmt::format("{}: {}", report.job, report.state), good ? "1;32" : "1;33", color);
  title += fmt::format(", step {} of {}", report.step, report.max_steps);
  if (!report.line.empty() && report.state != "done")
    title += "\n" + painted(report.line, "1", color);
  return title;
}

void add_attempts(Screen& screen, const JobReport& report) {
  const supervisor::History& history = report.history;
  std::string count = fmt::format(
      "{}: {}", history.attempt,
      count_text(history.failures_total + history.failures_forgiven, "failure", "failures"));
  if (history.failures_forgiven > 0)
    count += fmt::format(" ({} injected)", history.failures_forgiven);
  screen.line("attempts",
              count + ", " + count_text(history.preemptions, "preemption", "preemptions"));
  const std::size_t skipped =
      report.attempts.size() > kMostAttempts ? report.attempts.size() - kMostAttempts : 0;
  if (skipped > 0) screen.line("", fmt::format("... {} before these", skipped));
  for (std::size_t i = skipped; i < report.attempts.size(); ++i) {
    const JournalAttempt& attempt = report.attempts[i];
    const std::string what = attempt.ended_unix_ms != 0 ? attempt_text(attempt.end) : "running";
    screen.line("", fmt::format("{:>3}  {}", attempt.end.attempt, what));
    const bool noticed = attempt.end.drained_after && i + 1 < report.attempts.size();
    if (noticed && report.attempts[i + 1].recovery) {
      const Recovery& next = *report.attempts[i + 1].recovery;
      screen.line("", fmt::format("     {}, back at work after {}",
                                  count_text(next.steps_lost, "step lost", "steps lost"),
                                  duration_text(seconds(next.total()))));
    }
  }
}

void add_recoveries(Screen& screen, const JobReport& report) {
  screen.line("steps lost", fmt::format("{}", report.history.steps_lost));
  std::vector<Recovery> recoveries;
  for (const JournalAttempt& attempt : report.attempts) {
    if (attempt.recovery) recoveries.push_back(*attempt.recovery);
  }
  if (recoveries.empty()) return;
  const auto slower = [](const Recovery& a, const Recovery& b) { return a.total() < b.total(); };
  const auto slowest = std::max_element(recoveries.begin(), recoveries.end(), slower);
  screen.line("recovery", recovery_text(*slowest));
  if (recoveries.size() > 1) screen.line("", fmt::format("(the slowest of {})", recoveries.size()));
}

void add_time(Screen& screen, const JobReport& report) {
  const Accounting& accounting = report.history.accounting;
  screen.line("time", fmt::format("{}, {:.1f} % of it in steps that were kept",
                                  duration_text(seconds(accounting.elapsed())),
                                  100 * accounting.goodput()));
  std::vector<std::pair<Duration, std::string_view>> lost;
  for (std::size_t i = 1; i < kCauseCount; ++i) {
    if (accounting.spent[i] >= std::chrono::milliseconds(5))
      lost.emplace_back(accounting.spent[i], kCauseNames[i]);
  }
  std::sort(lost.rbegin(), lost.rend());
  std::string rest;
  for (std::size_t i = 0; i < lost.size() && i < 6; ++i) {
    rest += fmt::format("{}{} {}", i == 0 ? "the rest: " : ", ", lost[i].second,
                        duration_text(seconds(lost[i].first)));
  }
  if (!rest.empty()) screen.line("", rest);
}

std::string point_text(const LossPoint& point) {
  std::string text = number_text(point.loss);
  if (point.accuracy >= 0) text += fmt::format(", accuracy {:.2f} %", 100 * point.accuracy);
  return text + fmt::format(" (step {})", point.step);
}

void add_loss(Screen& screen, const std::string& label, const std::optional<LossPoint>& first,
              const std::optional<LossPoint>& last) {
  if (!first) return;
  screen.line(label, first->step == last->step ? point_text(*last)
                                               : point_text(*first) + " -> " + point_text(*last));
}

void add_training(Screen& screen, const JobReport& report) {
  add_loss(screen, "loss", report.loss_first, report.loss_last);
  add_loss(screen, "held out", report.eval_first, report.eval_last);
  if (report.samples_per_second > 0)
    screen.line("speed",
                fmt::format("{:.4g} samples/s{}", report.samples_per_second,
                            report.mfu > 0 ? fmt::format(", {:.1f} % of the GPUs' peak (MFU)",
                                                         100 * report.mfu)
                                           : ""));
}

void add_result(Screen& screen, const JobReport& report) {
  if (!report.result) return;
  screen.line("weights", report.result->folder + "/model.safetensors");
  screen.line("", "sha256 " + report.result->weights_sha256);
  screen.line("state", "sha256 " + report.result->state_sha256);
}

// The last checkpoint, how old it is, and what keeps the next one waiting.
void add_checkpoint(Screen& screen, const service::StatusReply& status) {
  std::string text = status.durable_step() < 0
                         ? "none yet"
                         : fmt::format("step {}, {} old", status.durable_step(),
                                       duration_text(status.durable_age_seconds()));
  if (status.storing_step() >= 0) {
    text += fmt::format("; step {} is being stored", status.storing_step());
    if (status.uploading_bytes() > 0)
      text += fmt::format(", {} so far", bytes_text(status.uploading_bytes()));
  }
  if (status.upload_bytes_per_second() > 0)
    text += fmt::format("; {}/s",
                        bytes_text(static_cast<std::int64_t>(status.upload_bytes_per_second())));
  screen.line("checkpoint", text);
  if (!status.waiting_for().empty()) screen.line("", "waits: " + status.waiting_for());
  if (!status.interval_reason().empty()) screen.line("", status.interval_reason());
}

void add_node(Screen& screen, const service::StatusReply& status) {
  std::string node = status.ready_step() < 0
                         ? "no snapshot"
                         : fmt::format("snapshot of step {}", status.ready_step());
  if (status.stored_part_step() >= 0)
    node += fmt::format(", part of step {} stored", status.stored_part_step());
  if (status.arena_bytes() > 0)
    node += fmt::format(", {} of memory", bytes_text(status.arena_bytes()));
  if (!status.host().empty()) node += " on " + status.host();
  screen.line(fmt::format("node {}", status.node_index()), node);
  add_checkpoint(screen, status);
  if (status.has_notice()) {
    const service::NoticeStatus& notice = status.notice();
    const std::string when =
        notice.seconds_left() >= 0
            ? fmt::format("goes in {}", duration_text(notice.seconds_left()))
            : fmt::format("was to go {} ago", duration_text(-notice.seconds_left()));
    screen.line("notice", fmt::format("{}: {}", when, notice.decision()));
    if (notice.safe_step() >= 0)
      screen.line("", fmt::format("step {} was safe {} before", notice.safe_step(),
                                  duration_text(notice.safe_before_seconds())));
  }
  for (const std::string& warning : status.warnings()) screen.line("warning", warning);
  if (!status.refused().empty()) {
    std::string kinds;
    for (const auto& [kind, count] :
         std::map<std::string, std::int64_t>(status.refused().begin(), status.refused().end()))
      kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", count, kind);
    screen.line("refused", kinds);
  }
}

std::string notice_text(const supervisor::AttemptEnd& end) {
  if (!end.drained_after) return {};
  std::string text =
      fmt::format("; drained {} after the notice", duration_text(seconds(*end.drained_after)));
  if (!end.time_left) return text;
  const double left = seconds(*end.time_left);
  return text + (left >= 0 ? fmt::format(", {} left", duration_text(left))
                           : fmt::format(", {} too late", duration_text(-left)));
}

}  // namespace

std::string attempt_text(const supervisor::AttemptEnd& end) {
  std::string text{supervisor::name(end.outcome)};
  if (end.last_step > end.first_step) {
    text += end.last_step == end.first_step.next()
                ? fmt::format(", step {}", end.last_step)
                : fmt::format(", steps {}-{}", end.first_step.next(), end.last_step);
  }
  const supervisor::Culprit& culprit = end.culprit;
  if (end.outcome == supervisor::Outcome::kDone || (culprit.rank < 0 && culprit.reason.empty()))
    return text;
  text += ": ";
  if (culprit.rank >= 0) {
    text += fmt::format("rank {} on {} in step {}, {}", culprit.rank, culprit.host, culprit.step,
                        name(culprit.phase));
    if (!culprit.reason.empty()) text += ": ";
  }
  return text + culprit.reason + notice_text(end) + (end.injected ? " (injected)" : "");
}

std::string recovery_text(const Recovery& recovery) {
  std::string text = duration_text(seconds(recovery.total())) + ":";
  const std::pair<const char*, Duration> phases[] = {
      {"detect", recovery.detect},   {"wait", recovery.wait},
      {"launch", recovery.launch},   {"load", recovery.load},
      {"restore", recovery.restore}, {"first step", recovery.first_step}};
  for (const auto& [phase, spent] : phases)
    text += fmt::format("{} {} {:.2f}", phase == phases[0].first ? "" : ",", phase, seconds(spent));
  return text;
}

std::string summary_screen(const JobReport& report, bool color) {
  Screen screen;
  screen.title(title_of(report, color));
  add_attempts(screen, report);
  add_recoveries(screen, report);
  add_time(screen, report);
  add_training(screen, report);
  add_result(screen, report);
  screen.line("directory", report.directory);
  return screen.text();
}

std::string status_screen(const JobReport& report, bool color) {
  Screen screen;
  screen.title(title_of(report, color));
  if (report.state == "stopped")
    screen.line("",
                "no supervisor runs (this is what its journal knows); `surefoot resume` goes on");
  if (report.supervisor_pid != 0)
    screen.line("supervisor", fmt::format("process {}", report.supervisor_pid));
  if (report.fleet && (!report.service || report.fleet->nodes.size() > 1)) {
    for (const auto& [label, text] : fleet_lines(*report.fleet)) screen.line(label, text);
  } else if (report.service) {
    const service::StatusReply& status = *report.service;
    add_node(screen, status);
    for (const auto& rank : status.ranks()) {
      const std::string life = rank.alive() ? ""
                               : rank.exit_code() >= 0
                                   ? fmt::format(" (left with code {})", rank.exit_code())
                                   : " (gone)";
      screen.line(fmt::format("rank {}", rank.rank()),
                  fmt::format("step {}, {} for {}{}", rank.step(), rank.phase(),
                              duration_text(rank.seconds_in_phase()), life));
    }
    if (report.fleet) {
      for (const SlowRank& slow : report.fleet->slow) screen.line("slow", slow_text(slow));
    }
  } else if (report.state == "running") {
    screen.line("service", "does not answer");
  }
  add_attempts(screen, report);
  add_recoveries(screen, report);
  add_time(screen, report);
  add_training(screen, report);
  add_result(screen, report);
  screen.line("directory", report.directory);
  return screen.text();
}

}  // namespace surefoot
