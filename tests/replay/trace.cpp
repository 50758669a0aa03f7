#include "tests/replay/trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

namespace surefoot::replay {
namespace {

using nlohmann::json;

constexpr double kMillisecond = 1e-3;
constexpr double kHour = 3600;
constexpr double kLongestInSeconds = 30 * 24 * kHour;  // arbitrary: recorded fleets live for days
constexpr int kMostMachines = 1'000'000;               // arbitrary; nobody's fleet, so a mistake

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

struct Line {
  int number = 0;
  std::string_view text;
};

std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> lines;
  for (int number = 1; !text.empty(); ++number) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    if (!line.empty()) lines.push_back({number, line});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const auto comma = line.find(',');
    fields.push_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = problem == std::errc() && end == text.data() + text.size();
  if (!whole || !std::isfinite(value) || value < 0) return {};
  return value;
}

Error bad(const Line& line, std::string_view wanted) {
  return error(Code::kInvalid, "line {}: \"{}\" is not {}", line.number, line.text.substr(0, 60),
               wanted);
}

// Machines by name, and the changes they make.
class Fleet {
 public:
  Status change(const Line& line, double at, bool joins, const std::string& name) {
    if (joins ? !alive_.insert(name).second : alive_.erase(name) == 0)
      return error(Code::kInvalid, "line {}: {} {}", line.number, name,
                   joins ? "is there already" : "is not there");
    Change& change = at_moment(at);
    ++(joins ? change.joined : change.lost);
    return {};
  }
  void count(double at, int machines) {
    if (machines == count_) return;
    Change& change = at_moment(at);
    (machines > count_ ? change.joined : change.lost) += std::abs(machines - count_);
    count_ = machines;
  }
  std::vector<Change> take() { return std::move(changes_); }

 private:
  Change& at_moment(double at) {
    if (changes_.empty() || changes_.back().at < at) changes_.push_back({at, 0, 0});
    return changes_.back();
  }
  std::set<std::string> alive_;
  int count_ = 0;
  std::vector<Change> changes_;
};

Status in_order(const Line& line, double at, double& last) {
  if (at < last) return error(Code::kInvalid, "line {}: time goes back", line.number);
  last = at;
  return {};
}

Result<Trace> parse_events(const std::vector<Line>& lines) {
  Trace trace{"events", {}, 0, {}};
  Fleet fleet;
  for (const Line& line : lines) {
    const auto fields = fields_of(line.text);
    const auto time = number_of(fields[0]);
    if (fields.size() != 3 || !time || (fields[1] != "add" && fields[1] != "remove"))
      return bad(line, "TIME,add|remove,NODE");
    SUREFOOT_TRY(in_order(line, *time * kMillisecond, trace.seconds));
    SUREFOOT_TRY(fleet.change(line, trace.seconds, fields[1] == "add", std::string(fields[2])));
  }
  trace.changes = fleet.take();
  return trace;
}

Result<Trace> parse_ticks(const std::vector<Line>& lines) {
  Trace trace{"ticks", {}, 0, {}};
  Fleet fleet;
  for (const Line& line : lines) {
    const json row = json::parse(line.text, nullptr, false);
    const bool right = row.is_array() && row.size() >= 3 && row[0].is_number() &&
                       row[1].is_string() && row[2].is_object() && row[2].contains("nodes") &&
                       row[2]["nodes"].is_array() && row[0].get<double>() >= 0;
    const std::string what = right ? row[1].get<std::string>() : "";
    if (what != "add" && what != "remove" && what != "no-op")
      return bad(line, "[TIME, \"add\"|\"remove\"|\"no-op\", {\"nodes\": [...]}]");
    SUREFOOT_TRY(in_order(line, row[0].get<double>() * kMillisecond, trace.seconds));
    if (what == "no-op") continue;
    for (const json& node : row[2]["nodes"]) {
      if (!node.is_string()) return bad(line, "a list of names");
      SUREFOOT_TRY(fleet.change(line, trace.seconds, what == "add", node.get<std::string>()));
    }
  }
  trace.changes = fleet.take();
  return trace;
}

Result<Trace> parse_counts(const std::vector<Line>& lines, std::optional<double> unit) {
  Trace trace{"counts", {}, 0, {}};
  std::vector<std::pair<double, int>> rows;
  bool fraction = false;
  for (const Line& line : lines) {
    const auto fields = fields_of(line.text);
    const auto time = number_of(fields[0]);
    const auto count = fields.size() == 2 ? number_of(fields[1]) : std::nullopt;
    if (!time || !count || *count != std::floor(*count) || *count > kMostMachines)
      return bad(line, "TIME,MACHINES");
    SUREFOOT_TRY(in_order(line, *time, trace.seconds));
    fraction = fraction || fields[0].find('.') != std::string_view::npos;
    rows.emplace_back(*time, static_cast<int>(*count));
  }
  const double scale = unit                                ? *unit
                       : fraction                          ? kHour
                       : trace.seconds > kLongestInSeconds ? kMillisecond
                                                           : 1;
  Fleet fleet;
  for (std::size_t i = 0; i < rows.size(); ++i) fleet.count(rows[i].first * scale, rows[i].second);
  trace.seconds *= scale;
  trace.changes = fleet.take();
  return trace;
}

Result<Trace> parse_lifetimes(const std::vector<Line>& lines) {
  Trace trace{"lifetimes", {}, 0, {}};
  const auto names = fields_of(lines.front().text);
  const auto column = [&](std::string_view name) {
    return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  const std::size_t lifetime = column("lifetime_s");
  const std::size_t end = column("end_op");
  if (end == names.size())
    return error(Code::kInvalid, "line {}: the header has no end_op", lines.front().number);
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const auto fields = fields_of(lines[i].text);
    const auto lived =
        fields.size() == names.size() ? number_of(fields[lifetime]) : std::optional<double>();
    if (!lived) return bad(lines[i], "a row of this header with a lifetime");
    trace.lifetimes.push_back({*lived, fields[end] == "preempted"});
    trace.seconds = std::max(trace.seconds, *lived);
  }
  if (trace.lifetimes.empty()) return error(Code::kInvalid, "no machine is in it");
  return trace;
}

// S just after each moment of a loss: falling, from below 1.
std::vector<std::pair<double, double>> survival_of(std::vector<Lifetime> lifetimes) {
  // A machine that was stopped at the moment of a loss counts as one that lived so long.
  std::sort(lifetimes.begin(), lifetimes.end(), [](const Lifetime& a, const Lifetime& b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.lost > b.lost;
  });
  std::vector<std::pair<double, double>> curve;
  double survival = 1;
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    if (!lifetimes[i].lost) continue;
    // One after the other, (1 - 1/n)(1 - 1/(n-1)) = 1 - 2/n: the same as all of a moment at once.
    survival *= 1 - 1 / static_cast<double>(lifetimes.size() - i);
    curve.emplace_back(lifetimes[i].seconds, survival);
  }
  return curve;
}

}  // namespace

Result<Trace> parse_trace(std::string_view text, std::optional<double> unit) {
  const std::vector<Line> lines = lines_of(text);
  if (lines.empty()) return error(Code::kInvalid, "the trace is empty");
  const Line& first = lines.front();
  if (first.text.front() == '[') return parse_ticks(lines);
  const auto fields = fields_of(first.text);
  if (std::find(fields.begin(), fields.end(), "lifetime_s") != fields.end())
    return parse_lifetimes(lines);
  if (fields.size() == 3) return parse_events(lines);
  if (fields.size() == 2) return parse_counts(lines, unit);
  return bad(first, "a row of any form that is known");
}

Trace part_of(const Trace& trace, double from, double length) {
  Trace part{trace.form, {}, std::min(length, std::max(trace.seconds - from, 0.0)), {}};
  int alive = 0;
  for (const Change& change : trace.changes) {
    if (change.at <= from) {
      alive += change.joined - change.lost;
      continue;
    }
    if (change.at >= from + length) break;
    part.changes.push_back({change.at - from, change.joined, change.lost});
  }
  if (alive > 0) part.changes.insert(part.changes.begin(), {0, alive, 0});
  return part;
}

Trace fleet_of_lifetimes(const Trace& trace, int machines, double length, double replaced_after,
                         std::uint64_t seed) {
  const auto curve = survival_of(trace.lifetimes);
  std::mt19937_64 random(seed);
  const auto draw = [&] {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;  // in [0, 1)
    const auto found =
        std::find_if(curve.begin(), curve.end(), [u](const auto& p) { return p.second <= u; });
    return found == curve.end() ? std::numeric_limits<double>::infinity() : found->first;
  };
  std::vector<Change> each = {{0, machines, 0}};
  for (int machine = 0; machine < machines; ++machine) {
    for (double born = 0;;) {
      const double dies = born + draw();
      if (dies >= length) break;
      each.push_back({dies, 0, 1});
      born = dies + replaced_after;
      if (born >= length) break;
      each.push_back({born, 1, 0});
    }
  }
  std::stable_sort(each.begin(), each.end(),
                   [](const Change& a, const Change& b) { return a.at < b.at; });
  Trace fleet{trace.form, {}, length, {}};
  for (const Change& change : each) {
    if (fleet.changes.empty() || fleet.changes.back().at < change.at) {
      fleet.changes.push_back(change);
    } else {
      fleet.changes.back().joined += change.joined;
      fleet.changes.back().lost += change.lost;
    }
  }
  return fleet;
}

}  // namespace surefoot::replay
