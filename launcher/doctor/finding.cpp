#include "launcher/doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace surefoot::doctor {
namespace {

using nlohmann::json;

constexpr Verdict kVerdicts[] = {Verdict::kOk, Verdict::kWarn, Verdict::kBad, Verdict::kNotChecked};

std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

auto count_of(const std::vector<Finding>& findings, Verdict verdict) {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const Finding& finding) { return finding.verdict == verdict; });
}

}  // namespace

std::string name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kBad:
      return "bad";
    case Verdict::kNotChecked:
      break;
  }
  return "not checked";
}

Finding ok(std::string check, std::string found) {
  return {std::move(check), "", Verdict::kOk, std::move(found), ""};
}
Finding warn(std::string check, std::string found, std::string cure) {
  return {std::move(check), "", Verdict::kWarn, std::move(found), std::move(cure)};
}
Finding bad(std::string check, std::string found, std::string cure) {
  return {std::move(check), "", Verdict::kBad, std::move(found), std::move(cure)};
}
Finding not_checked(std::string check, std::string why, std::string cure) {
  return {std::move(check), "", Verdict::kNotChecked, std::move(why), std::move(cure)};
}
Finding on(std::string which, Finding finding) {
  finding.on = std::move(which);
  return finding;
}

Finding bad_only_if(bool used, Finding finding) {
  if (used || finding.verdict != Verdict::kBad) return finding;
  finding.verdict = Verdict::kWarn;
  finding.found += " (this job does not use it)";
  return finding;
}

std::string line_of(const Finding& finding) {
  const std::string what = finding.check + (finding.on.empty() ? "" : " " + finding.on);
  std::string line = fmt::format("{:<11}  {:<17}  {}", name(finding.verdict), what, finding.found);
  if (!finding.cure.empty()) line += " -> " + finding.cure;
  return printable(std::move(line));
}

std::string screen_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) text += line_of(finding) + "\n";
  return text + fmt::format("{} ok, {} warn, {} bad, {} not checked\n",
                            count_of(findings, Verdict::kOk), count_of(findings, Verdict::kWarn),
                            count_of(findings, Verdict::kBad),
                            count_of(findings, Verdict::kNotChecked));
}

json to_json(const Finding& finding) {
  return {{"check", finding.check},
          {"on", finding.on},
          {"verdict", name(finding.verdict)},
          {"found", finding.found},
          {"cure", finding.cure}};
}

std::optional<Finding> parse_finding(const std::string& text) {
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) return std::nullopt;
  Finding finding;
  for (const auto& [key, into] : {std::pair{"check", &finding.check},
                                  {"on", &finding.on},
                                  {"found", &finding.found},
                                  {"cure", &finding.cure}}) {
    if (!object.contains(key) || !object[key].is_string()) return std::nullopt;
    *into = object[key].get<std::string>();
  }
  for (const Verdict verdict : kVerdicts) {
    if (object.contains("verdict") && object["verdict"] == name(verdict)) {
      finding.verdict = verdict;
      return finding;
    }
  }
  return std::nullopt;
}

int exit_code_of(const std::vector<Finding>& findings) {
  return count_of(findings, Verdict::kBad) > 0 ? kExitUnusable : 0;
}

json report_of(const std::vector<Finding>& findings, const std::string& host,
               const std::string& job) {
  json checks = json::array();
  for (const Finding& finding : findings) checks.push_back(to_json(finding));
  return {{"host", host},
          {"job", job.empty() ? json(nullptr) : json(job)},
          {"exit_code", exit_code_of(findings)},
          {"ok", count_of(findings, Verdict::kOk)},
          {"warn", count_of(findings, Verdict::kWarn)},
          {"bad", count_of(findings, Verdict::kBad)},
          {"not_checked", count_of(findings, Verdict::kNotChecked)},
          {"checks", checks}};
}

}  // namespace surefoot::doctor
