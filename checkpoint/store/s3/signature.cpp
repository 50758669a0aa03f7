#include "checkpoint/store/s3/signature.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>

#include "checkpoint/hex_digests.h"
#include "checkpoint/store/s3/hashing.h"
#include "common/digest.h"

namespace surefoot::s3 {
namespace {

bool is_unreserved(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

Pairs sorted_headers(const Pairs& headers) {
  Pairs sorted;
  for (const auto& [name, value] : headers) sorted.emplace_back(lower(name), trim(value));
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

std::string signed_names(const Pairs& sorted) {
  std::string names;
  for (const auto& [name, value] : sorted) names += (names.empty() ? "" : ";") + name;
  return names;
}

std::string scope(std::string_view time, std::string_view region, std::string_view service) {
  return fmt::format("{}/{}/{}/aws4_request", time.substr(0, 8), region, service);
}

}  // namespace

std::string_view trim(std::string_view text) {
  static constexpr const char* kBlanks = " \t\r";
  const auto begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::string uri_encode(std::string_view text, bool keep_slash) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (is_unreserved(c) || (keep_slash && c == '/')) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return out;
}

std::string query_text(const Pairs& query) {
  Pairs encoded;
  for (const auto& [name, value] : query)
    encoded.emplace_back(uri_encode(name, false), uri_encode(value, false));
  std::sort(encoded.begin(), encoded.end());
  std::string text;
  for (const auto& [name, value] : encoded)
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", name, value);
  return text;
}

std::string canonical_request(const Signable& request) {
  const Pairs headers = sorted_headers(request.headers);
  std::string text =
      fmt::format("{}\n{}\n{}\n", request.method, request.path, query_text(request.query));
  for (const auto& [name, value] : headers) text += fmt::format("{}:{}\n", name, value);
  return text + fmt::format("\n{}\n{}", signed_names(headers), request.payload_sha256);
}

std::string string_to_sign(std::string_view canonical, std::string_view time,
                           std::string_view region, std::string_view service) {
  return fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope(time, region, service),
                     sha256(as_bytes(canonical)));
}

std::string signing_key(std::string_view secret, std::string_view date, std::string_view region,
                        std::string_view service) {
  std::string key = hmac_sha256(fmt::format("AWS4{}", secret), date);
  for (const std::string_view text : {region, service, std::string_view("aws4_request")})
    key = hmac_sha256(key, text);
  return key;
}

std::string authorization(const Signable& request, const Credentials& credentials,
                          std::string_view time, std::string_view region) {
  static constexpr std::string_view kService = "s3";
  const std::string text = string_to_sign(canonical_request(request), time, region, kService);
  const std::string key = signing_key(credentials.secret_key, time.substr(0, 8), region, kService);
  return fmt::format("AWS4-HMAC-SHA256 Credential={}/{},SignedHeaders={},Signature={}",
                     credentials.access_key, scope(time, region, kService),
                     signed_names(sorted_headers(request.headers)), to_hex(hmac_sha256(key, text)));
}

std::string amz_time(std::int64_t seconds_since_1970) {
  const auto seconds = static_cast<time_t>(seconds_since_1970);
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::int64_t parse_iso_time(std::string_view text) {
  const std::string copy(text);
  tm parts{};
  const char* end = ::strptime(copy.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr || (*end != 'Z' && *end != '.' && *end != '+' && *end != '\0')) return -1;
  return ::timegm(&parts);
}

}  // namespace surefoot::s3
