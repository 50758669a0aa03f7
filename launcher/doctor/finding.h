// What `surefoot doctor` says: a finding a check, as a line and as JSON. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace surefoot::doctor {

enum class Verdict {
  kOk,
  kWarn,        // works, but not as well or as safely as it could
  kBad,         // a job that needs it cannot run, or must not be trusted
  kNotChecked,  // nobody knows: `found` says why
};
[[nodiscard]] std::string name(Verdict verdict);  // "ok", "warn", "bad", "not checked"

struct Finding {
  std::string check;  // "shared memory"; names are those of docs/doctor.md and do not change
  std::string on;     // which one, where a machine has several: "0", "mlx5_0", "gpu-b"
  Verdict verdict = Verdict::kOk;
  std::string found;  // with figures and units
  std::string cure;   // a command or a setting; empty where there is nothing to do
};

[[nodiscard]] Finding ok(std::string check, std::string found);
[[nodiscard]] Finding warn(std::string check, std::string found, std::string cure);
[[nodiscard]] Finding bad(std::string check, std::string found, std::string cure);
[[nodiscard]] Finding not_checked(std::string check, std::string why, std::string cure = "");
[[nodiscard]] Finding on(std::string which, Finding finding);

// Where the job does not use what was looked at, nothing about it can be bad: `warn` instead.
[[nodiscard]] Finding bad_only_if(bool used, Finding finding);

// One line without its end; bytes that a terminal would act on are replaced.
[[nodiscard]] std::string line_of(const Finding& finding);
// All lines, and one that counts them.
[[nodiscard]] std::string screen_of(const std::vector<Finding>& findings);

[[nodiscard]] nlohmann::json to_json(const Finding& finding);
[[nodiscard]] std::optional<Finding> parse_finding(const std::string& text);

// 0, or kExitUnusable when anything is bad.
[[nodiscard]] int exit_code_of(const std::vector<Finding>& findings);
// That of `surefoot run` where a machine has not what a job needs (complain() in verbs.h).
inline constexpr int kExitUnusable = 66;

// {"host", "job", "exit_code", "ok", "warn", "bad", "not_checked", "checks": [...]}
[[nodiscard]] nlohmann::json report_of(const std::vector<Finding>& findings,
                                       const std::string& host, const std::string& job);

}  // namespace surefoot::doctor
