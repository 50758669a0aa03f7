// The screens of fleet_report.h.
#include <fmt/format.h>

#include <algorithm>

#include "launcher/fleet_report.h"
#include "launcher/format.h"

namespace surefoot {
namespace {

std::string words_of(const std::string& standing) {
  std::string words = standing;
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::string state_text(const NodeReport& node) {
  std::string text =
      node.snapshot ? fmt::format("snapshot of step {}", *node.snapshot) : "no snapshot";
  if (node.arena_bytes) text += fmt::format(" in {}", bytes_text(*node.arena_bytes));
  if (node.stored_part) text += fmt::format(", part of step {} stored", *node.stored_part);
  if (node.storing) text += fmt::format(", step {} is being stored", *node.storing);
  if (node.upload_bytes_per_second)
    text +=
        fmt::format(", {}/s", bytes_text(static_cast<std::int64_t>(*node.upload_bytes_per_second)));
  return text;
}

std::string checkpoint_text(const NodeReport& node) {
  if (!node.checkpoint) return "none yet";
  return fmt::format("step {}, {} old", *node.checkpoint,
                     duration_text(node.checkpoint_age_seconds.value_or(0)));
}

std::string rank_text(const RankReport& rank) {
  std::string text = fmt::format("step {}, {} for {}", rank.step, rank.phase,
                                 duration_text(rank.seconds_in_phase));
  if (rank.busy_seconds) text += fmt::format(", {} a step", duration_text(*rank.busy_seconds));
  return text + (rank.alive ? "" : " (gone)");
}

std::string fleet_title(const FleetReport& report) {
  const auto ready = std::count_if(report.nodes.begin(), report.nodes.end(), [](const auto& node) {
    return node.standing == "in_use" || node.standing == "ready";
  });
  if (!report.live) {
    return fmt::format("no supervisor runs; its journal knows {} machines in attempt {}",
                       report.nodes.size(), report.attempt);
  }
  std::string text = fmt::format("{} of {} machines ready", ready, report.nodes.size());
  text += report.attempt_open ? fmt::format(", attempt {}, step {}", report.attempt, report.step)
                              : fmt::format(", no attempt runs, step {}", report.step);
  return text;
}

}  // namespace

std::string standing_text(const FleetReport& report, const NodeReport& node) {
  std::string text = words_of(node.standing);
  if (node.first_rank) {
    text += fmt::format(", attempt {}, ", report.attempt);
    text += node.first_rank == node.last_rank
                ? fmt::format("rank {}", *node.first_rank)
                : fmt::format("ranks {}-{}", *node.first_rank, *node.last_rank);
  } else if (node.standing == "was_in_use") {
    text += fmt::format(" by attempt {}", report.attempt);
  }
  if (!node.why.empty()) text += ": " + node.why;
  if (node.again_seconds) text += fmt::format("; again in {}", duration_text(*node.again_seconds));
  if (node.goes_seconds && *node.goes_seconds < 0) {
    text += fmt::format("; was to go {} ago", duration_text(-*node.goes_seconds));
  } else if (node.goes) {
    text += node.goes_seconds ? fmt::format("; goes in {}", duration_text(*node.goes_seconds))
                              : "; goes";
  }
  return text;
}

std::string nodes_screen(const std::string& job, const FleetReport& report) {
  std::string screen = fmt::format("{}: {}\n", job, fleet_title(report));
  const auto line = [&](const std::string& label, const std::string& text) {
    screen += fmt::format("  {:<12}  {}\n", label, text);
  };
  if (!report.waits.empty()) line("waits for", report.waits);
  for (const SlowRank& slow : report.slow) line("slow", slow_text(slow));
  for (const NodeReport& node : report.nodes) {
    line(node.name, standing_text(report, node));
    if (!report.live) continue;
    line("", count_text(node.slots, "slot", "slots"));
    if (node.snapshot || node.arena_bytes || node.checkpoint) {
      line("", state_text(node));
      line("", "checkpoint: " + checkpoint_text(node));
    }
    if (!node.waiting_for.empty()) line("", "waits: " + node.waiting_for);
    if (!node.notice.empty()) line("", "notice: " + node.notice);
    for (const std::string& warning : node.warnings) line("", "warning: " + warning);
    for (const RankReport& rank : node.ranks)
      line("", fmt::format("rank {}: {}", rank.rank, rank_text(rank)));
  }
  return screen;
}

std::vector<std::pair<std::string, std::string>> fleet_lines(const FleetReport& report) {
  std::vector<std::pair<std::string, std::string>> lines;
  lines.emplace_back("machines", fleet_title(report));
  if (!report.waits.empty()) lines.emplace_back("waits for", report.waits);
  const NodeReport* newest = nullptr;
  for (const NodeReport& node : report.nodes) {
    std::string text = standing_text(report, node);
    if (node.snapshot) text += fmt::format("; snapshot of step {}", *node.snapshot);
    lines.emplace_back(node.name, text);
    if (!node.waiting_for.empty()) lines.emplace_back("", "waits: " + node.waiting_for);
    for (const std::string& warning : node.warnings) lines.emplace_back("", "warning: " + warning);
    if (node.checkpoint && (newest == nullptr || *newest->checkpoint < *node.checkpoint))
      newest = &node;
  }
  if (newest != nullptr) lines.emplace_back("checkpoint", checkpoint_text(*newest));
  for (const SlowRank& slow : report.slow) lines.emplace_back("slow", slow_text(slow));
  return lines;
}

}  // namespace surefoot
