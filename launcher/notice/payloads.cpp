#include "launcher/notice/payloads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "launcher/notice/times.h"

namespace surefoot::notice {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestText = 120;  // arbitrary: a line of a log
constexpr std::size_t kLongestToken = 4096;
constexpr int kShortestFreeze = 9;  // seconds; shorter ones are no more than a slow step
constexpr std::chrono::minutes kChina = std::chrono::hours(8);
constexpr double kLongestSeconds = 1e6;

Trouble unreadable(std::string_view what, std::string_view body) {
  return {"not readable", fmt::format("{} is expected, not \"{}\"", what, printable(body))};
}
Reading no(std::string_view what, std::string_view body) {
  return {{}, unreadable(what, body)};
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

json parse(std::string_view body) {
  return json::parse(body, nullptr, /*allow_exceptions=*/false);
}

// Empty: it is not there, or no text.
std::string text_of(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end() || !found->is_string()) return {};
  return found->get<std::string>();
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

bool names(const json& event, std::string_view machine) {
  const auto resources = event.find("Resources");
  if (resources == event.end() || !resources->is_array()) return false;
  return std::any_of(resources->begin(), resources->end(), [machine](const json& name) {
    return name.is_string() && same_name(name.get_ref<const std::string&>(), machine);
  });
}

bool is_short_freeze(const json& event, std::string_view type) {
  const auto duration = event.find("DurationInSeconds");
  if (type != "Freeze" || duration == event.end() || !duration->is_number()) return false;
  const double value = duration->get<double>();
  return value >= 0 && value < kShortestFreeze;
}

void read_azure_event(const json& event, Duration lead, Reading& reading) {
  static constexpr std::string_view kExpected = "an event of one of the documented types";
  const std::string type = text_of(event, "EventType");
  const bool goes = type == "Preempt" || type == "Terminate";
  const bool stays = type == "Reboot" || type == "Redeploy" || type == "Freeze";
  const std::string id = text_of(event, "EventId");
  if ((!goes && !stays) || id.empty() || id != printable(id)) {
    reading.trouble = unreadable(kExpected, type + " " + id);
    return;
  }
  if (is_short_freeze(event, type)) return;
  Sighting sighting{goes ? Kind::kReclaim : Kind::kMaintenance, type, id, {}, {}};
  const std::string before = text_of(event, "NotBefore");
  if (text_of(event, "EventStatus") == "Started") {
    sighting.in = lead;
  } else if (sighting.at = parse_time(before); !sighting.at) {
    reading.trouble = unreadable("a time in NotBefore", before);
    return;
  }
  reading.sightings.push_back(std::move(sighting));
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out(text.substr(0, kLongestText));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

Reading read_aws_action(std::string_view body, Duration lead) {
  static constexpr std::string_view kExpected = "an action and its time";
  const json answer = parse(body);
  const std::string action = text_of(answer, "action");
  const auto at = parse_time(text_of(answer, "time"));
  if (action.empty() || !at) return no(kExpected, body);
  Sighting sighting{Kind::kReclaim, printable(action), "", at, {}};
  if (action == "hibernate") sighting.in = lead;
  return {{std::move(sighting)}, {}};
}

Reading read_aws_rebalance(std::string_view body) {
  const json answer = parse(body);
  if (!parse_time(text_of(answer, "noticeTime"))) return no("a noticeTime", body);
  return {{{Kind::kRebalance, "rebalance", "", {}, {}}}, {}};
}

Reading read_aws_maintenance(std::string_view body) {
  const json answer = parse(body);
  if (!answer.is_array()) return no("a list of events", body);
  Reading reading;
  for (const json& event : answer) {
    const std::string state = text_of(event, "State");
    if (state == "completed" || state == "canceled") continue;
    const std::string before = text_of(event, "NotBefore");
    const auto at = parse_time(before);
    const std::string code = text_of(event, "Code");
    if (!at || code.empty()) {
      reading.trouble = unreadable("a Code and a time in NotBefore", code + " " + before);
      continue;
    }
    reading.sightings.push_back(
        {Kind::kMaintenance, printable(code), printable(text_of(event, "EventId")), at, {}});
  }
  return reading;
}

Reading read_gcp_preempted(std::string_view body, Duration lead) {
  const std::string_view value = trimmed(body);
  if (value == "FALSE") return {};
  if (value != "TRUE") return no("TRUE or FALSE", body);
  return {{{Kind::kReclaim, "preempted", "", {}, lead}}, {}};
}

Reading read_gcp_maintenance(std::string_view body, Duration lead) {
  const std::string_view value = trimmed(body);
  if (value == "NONE") return {};
  if (value == "MIGRATE_ON_HOST_MAINTENANCE")
    return {{{Kind::kMaintenance, "migration", "", {}, {}}}, {}};
  if (value == "TERMINATE_ON_HOST_MAINTENANCE")
    return {{{Kind::kMaintenance, "termination", "", {}, lead}}, {}};
  return no("NONE or a kind of maintenance", body);
}

Reading read_azure_events(std::string_view body, std::string_view machine, Duration lead) {
  const json answer = parse(body);
  const auto events = answer.is_object() ? answer.find("Events") : answer.end();
  if (!answer.is_object() || events == answer.end() || !events->is_array())
    return no("a list of Events", body);
  Reading reading;
  for (const json& event : *events) {
    if (event.is_object() && names(event, machine)) read_azure_event(event, lead, reading);
  }
  return reading;
}

Reading read_termination_time(std::string_view body) {
  if (trimmed(body).empty()) return {};
  const auto at = parse_time(body, kChina);
  if (!at) return no("a time", body);
  return {{{Kind::kReclaim, "termination", "", at, {}}}, {}};
}

Reading read_seconds(std::string_view body, Duration lead) {
  static constexpr std::string_view kExpected = "a number of seconds";
  if (trimmed(body).empty()) return {{{Kind::kReclaim, "notice", "", {}, lead}}, {}};
  json answer = parse(body);
  if (answer.is_object()) {
    const auto seconds = answer.find("seconds");
    if (seconds == answer.end()) return no(kExpected, body);
    answer = json(*seconds);
  }
  const double value = answer.is_number() ? answer.get<double>() : -1;
  if (!(value >= 0 && value <= kLongestSeconds)) return no(kExpected, body);
  return {{{Kind::kReclaim, "notice", "", {}, from_seconds(value)}}, {}};
}

std::string read_token(std::string_view body) {
  const std::string_view token = trimmed(body);
  const bool fits = token.size() <= kLongestToken &&
                    std::all_of(token.begin(), token.end(),
                                [](char c) { return c > ' ' && c <= '~' && c != '<' && c != '>'; });
  return std::string(fits ? token : "");
}

std::string read_word(std::string_view body) {
  const std::string_view name = trimmed(body);
  const bool fits =
      name.size() <= kLongestText && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') || c == '-' ||
               c == '_' || c == '.';
      });
  return std::string(fits ? name : "");
}

}  // namespace surefoot::notice
