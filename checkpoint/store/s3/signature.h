// AWS signature version 4, in the Authorization header.
//
// Source: "Authenticating Requests: Using the Authorization Header" in the S3 API reference, whose
// examples are the tests. Every S3-compatible service takes it. Pure: time and credentials are
// arguments, and nothing here is ever printed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace surefoot::s3 {

using Pairs = std::vector<std::pair<std::string, std::string>>;

struct Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;   // empty: none
  std::int64_t expires_s = 0;  // seconds since 1970; 0: never
};

// What is signed. `path` is encoded already and starts with '/'; `query` is not encoded; `headers`
// are all that are signed, in any case and order, "host" among them.
struct Signable {
  std::string method;
  std::string path;
  Pairs query;
  Pairs headers;
  std::string payload_sha256;  // hex, or "UNSIGNED-PAYLOAD"
};

// Without the blanks at its ends.
[[nodiscard]] std::string_view trim(std::string_view text);
// RFC 3986 as AWS wants it: all but letters, digits and "-._~" becomes %XX; a slash too unless it
// separates parts of a path.
[[nodiscard]] std::string uri_encode(std::string_view text, bool keep_slash);
// "a=1&b=", sorted by name, encoded: as it is signed and as it is sent.
[[nodiscard]] std::string query_text(const Pairs& query);

[[nodiscard]] std::string canonical_request(const Signable& request);
// `time`: "20130524T000000Z".
[[nodiscard]] std::string string_to_sign(std::string_view canonical, std::string_view time,
                                         std::string_view region, std::string_view service);
[[nodiscard]] std::string signing_key(std::string_view secret, std::string_view date,
                                      std::string_view region, std::string_view service);
// The value of the Authorization header.
[[nodiscard]] std::string authorization(const Signable& request, const Credentials& credentials,
                                        std::string_view time, std::string_view region);

// "20130524T000000Z".
[[nodiscard]] std::string amz_time(std::int64_t seconds_since_1970);
// Of "2013-05-24T00:00:00.000Z"; -1: not such a time.
[[nodiscard]] std::int64_t parse_iso_time(std::string_view text);

}  // namespace surefoot::s3
