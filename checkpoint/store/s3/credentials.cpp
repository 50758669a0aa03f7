#include "checkpoint/store/s3/credentials.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/file.h"
#include "common/http.h"

namespace surefoot::s3 {
namespace {

// What AWS's own tools take: a role's credentials are renewed by the service about that long
// before.
constexpr std::int64_t kRenewBefore_s = 300;
constexpr const char* kRolePath = "/latest/meta-data/iam/security-credentials/";

bool is_name_of_a_role(std::string_view name) {
  return !name.empty() && name.size() <= 200 &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+=,."
             "@_-") == std::string_view::npos;
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

Result<Credentials> parse_shared_file(std::string_view text, const std::string& profile) {
  Credentials credentials;
  bool inside = false;
  bool found = false;
  while (!text.empty()) {
    const auto line_end = text.find('\n');
    const std::string_view line = trim(text.substr(0, line_end));
    text.remove_prefix(line_end == std::string_view::npos ? text.size() : line_end + 1);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      const auto close = line.find(']');
      inside = close != std::string_view::npos && trim(line.substr(1, close - 1)) == profile;
      found = found || inside;
      continue;
    }
    const auto equals = line.find('=');
    if (!inside || equals == std::string_view::npos) continue;
    const std::string_view key = trim(line.substr(0, equals));
    const std::string_view value = trim(line.substr(equals + 1));
    if (key == "aws_access_key_id") credentials.access_key = value;
    if (key == "aws_secret_access_key") credentials.secret_key = value;
    if (key == "aws_session_token") credentials.session_token = value;
  }
  if (!found) return error(Code::kNotFound, "it has no profile [{}]", profile);
  if (credentials.access_key.empty() || credentials.secret_key.empty())
    return error(Code::kInvalid,
                 "its profile [{}] lacks aws_access_key_id or aws_secret_access_key", profile);
  return credentials;
}

Result<Credentials> parse_role(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto get = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string()
               ? json[key].get<std::string>()
               : std::string();
  };
  Credentials credentials{get("AccessKeyId"), get("SecretAccessKey"), get("Token"), 0};
  if (credentials.access_key.empty() || credentials.secret_key.empty())
    return error(Code::kCorrupt, "the instance's metadata hold no credentials");
  const std::int64_t expires_s = parse_iso_time(get("Expiration"));
  if (expires_s < 0)
    return error(Code::kCorrupt, "the instance's metadata do not say when its credentials expire");
  credentials.expires_s = expires_s;
  return credentials;
}

std::string CredentialSource::variable(const char* name) const {
  return options_.environment(name).value_or("");
}

Result<Credentials> CredentialSource::get(std::int64_t now_s) {
  const bool good =
      known_ && (known_->expires_s == 0 || now_s < known_->expires_s - kRenewBefore_s);
  if (good) return *known_;
  auto found = find();
  if (found) {
    known_ = *found;
    return found;
  }
  // Those that are known may serve some minutes more.
  if (known_ && now_s < known_->expires_s) return *known_;
  return found;
}

Result<Credentials> CredentialSource::find() const {
  const std::string access_key = variable("AWS_ACCESS_KEY_ID");
  const std::string secret_key = variable("AWS_SECRET_ACCESS_KEY");
  if (options_.profile.empty() && !access_key.empty() && !secret_key.empty())
    return Credentials{access_key, secret_key, variable("AWS_SESSION_TOKEN"), 0};
  std::string profile = options_.profile.empty() ? variable("AWS_PROFILE") : options_.profile;
  const bool asked_for = !profile.empty();
  if (!asked_for) profile = "default";
  auto from_shared = from_file(asked_for, profile);
  if (from_shared || from_shared.error().code != Code::kNotFound || asked_for) return from_shared;
  if (variable("AWS_EC2_METADATA_DISABLED") == "true") return from_shared;
  return from_instance();
}

Result<Credentials> CredentialSource::from_file(bool asked_for, const std::string& profile) const {
  std::string path = variable("AWS_SHARED_CREDENTIALS_FILE");
  if (path.empty()) path = variable("HOME") + "/.aws/credentials";
  auto text = read_file(path);
  if (!text && (asked_for || text.error().code != Code::kNotFound))
    return error(Code::kInvalid, "no credentials: profile [{}] is wanted, and {} cannot be read",
                 profile, path);
  if (!text)
    return error(Code::kNotFound,
                 "no credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, and "
                 "there is no {}",
                 path);
  auto parsed = parse_shared_file(*text, profile);
  if (parsed) return parsed;
  const Code code = asked_for ? Code::kInvalid : parsed.error().code;
  return error(code, "no credentials in {}: {}", path, parsed.error().message);
}

Result<Credentials> CredentialSource::from_instance() const {
  std::string endpoint = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (endpoint.empty()) endpoint = options_.metadata_endpoint;
  if (endpoint.ends_with('/')) endpoint.pop_back();
  const Duration timeout = options_.metadata_timeout;
  Http http(
      {.connect_timeout = timeout, .stall_timeout = timeout, .ca_bundle = "", .direct = true});
  const auto ask = [&](const char* method, const std::string& path,
                       std::vector<std::pair<std::string, std::string>> headers) {
    return http.perform({method, endpoint + path, std::move(headers), {}, {}, now() + timeout});
  };
  const auto is_good = [](const HttpAnswer& answer) {
    return answer.end == HttpAnswer::End::kAnswered && answer.status == 200;
  };
  const HttpAnswer token =
      ask("PUT", "/latest/api/token", {{"X-aws-ec2-metadata-token-ttl-seconds", "300"}});
  if (token.end == HttpAnswer::End::kNotReached) {
    return error(Code::kInvalid,
                 "no credentials: none in the environment, no shared file, and no metadata service "
                 "of an instance: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write "
                 "~/.aws/credentials");
  }
  std::vector<std::pair<std::string, std::string>> headers;  // none: version 1
  if (is_good(token) && token.text.find_first_of("\r\n") == std::string::npos)
    headers.emplace_back("X-aws-ec2-metadata-token", token.text);
  const HttpAnswer list = ask("GET", kRolePath, headers);
  if (!is_good(list) && list.status == 404)
    return error(Code::kInvalid, "no credentials: this instance has no role");
  if (!is_good(list)) return error(Code::kRetry, "the instance's metadata service does not answer");
  const std::string role(trim(std::string_view(list.text).substr(0, list.text.find('\n'))));
  if (!is_name_of_a_role(role))
    return error(Code::kCorrupt, "the instance's metadata name no role");
  const HttpAnswer answer = ask("GET", kRolePath + role, headers);
  if (!is_good(answer))
    return error(Code::kRetry, "the instance's metadata service does not give its role's keys");
  return parse_role(answer.text);
}

}  // namespace surefoot::s3
