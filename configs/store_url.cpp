#include "configs/store_url.h"

#include <algorithm>

namespace surefoot {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '.' || c == '-' ||
         c == '_';
}

// Old buckets, and those of other services, may have capitals and '_'.
bool is_bucket(std::string_view bucket) {
  static constexpr std::size_t kShortest = 3;
  static constexpr std::size_t kLongest = 63;
  return bucket.size() >= kShortest && bucket.size() <= kLongest && bucket.front() != '.' &&
         bucket.front() != '-' && std::all_of(bucket.begin(), bucket.end(), is_host_character);
}

// Names that every service, and every tool that shows them as folders, takes alike.
bool is_prefix(std::string_view prefix) {
  static constexpr std::size_t kLongest = 500;  // of the 1024 bytes of a name
  if (prefix.size() > kLongest) return false;
  const auto is_plain = [](char c) { return c > ' ' && c <= '~' && c != '\\'; };
  if (!std::all_of(prefix.begin(), prefix.end(), is_plain)) return false;
  while (!prefix.empty()) {
    const auto slash = std::min(prefix.find('/'), prefix.size());
    const std::string_view part = prefix.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    prefix.remove_prefix(std::min(slash + 1, prefix.size()));
  }
  return true;
}

}  // namespace

Result<StoreUrl> parse_store_url(std::string_view to) {
  static constexpr std::string_view kFile = "file://";
  static constexpr std::string_view kS3 = "s3://";
  StoreUrl url;
  if (to.starts_with(kS3)) {
    to.remove_prefix(kS3.size());
    if (to.ends_with('/')) to.remove_suffix(1);
    const auto slash = std::min(to.find('/'), to.size());
    url.kind = StoreUrl::Kind::kS3;
    url.bucket = to.substr(0, slash);
    url.prefix = to.substr(std::min(slash + 1, to.size()));
    if (!is_bucket(url.bucket))
      return error(
          Code::kInvalid,
          "allowed after s3:// is a bucket's name: 3 to 63 letters, digits, '.', '-', '_'");
    if (!is_prefix(url.prefix))
      return error(Code::kInvalid,
                   "allowed after the bucket are names of printable ASCII without spaces, with '/' "
                   "between them, neither empty nor \".\" or \"..\"");
    return url;
  }
  if (to.starts_with(kFile)) {
    to.remove_prefix(kFile.size());
  } else if (to.find("://") != std::string_view::npos) {
    to = {};
  }
  if (to.empty())
    return error(Code::kInvalid, "allowed is a folder, file:// before one, or s3://BUCKET/PREFIX");
  url.folder = to;
  return url;
}

Result<Endpoint> parse_endpoint(std::string_view url) {
  const auto wrong = [&](const char* why) { return error(Code::kInvalid, "{}", why); };
  Endpoint endpoint;
  std::string_view rest = url;
  for (const std::string_view scheme : {"https", "http"}) {
    const std::string start = std::string(scheme) + "://";
    if (!endpoint.scheme.empty() || !rest.starts_with(start)) continue;
    endpoint.scheme = scheme;
    rest.remove_prefix(start.size());
  }
  if (endpoint.scheme.empty()) return wrong("it must start with https:// or http://");
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.find_first_of("/?#@") != std::string_view::npos)
    return wrong("only a host, and a port if need be, may follow the scheme");
  const bool bracketed = rest.starts_with('[');
  const std::size_t host_end = bracketed ? rest.find(']') + 1 : rest.find(':');
  if (bracketed && host_end == 0) return wrong("']' is missing");
  endpoint.host = rest.substr(0, host_end);
  if (host_end < rest.size()) {
    const std::string_view port = rest.substr(host_end);
    endpoint.port = port.substr(1);
    const bool good = port.starts_with(':') && !endpoint.port.empty() &&
                      endpoint.port.size() <= 5 &&
                      std::all_of(endpoint.port.begin(), endpoint.port.end(), is_digit);
    if (!good || std::stoi(endpoint.port) > 65535) return wrong("its port is no number of a port");
  }
  if (endpoint.host.empty() ||
      (!bracketed && !std::all_of(endpoint.host.begin(), endpoint.host.end(), is_host_character)))
    return wrong("the name of its host is wrong");
  return endpoint;
}

bool is_ip(std::string_view host) {
  return host.starts_with('[') || host.find_first_not_of("0123456789.") == std::string_view::npos;
}

bool is_loopback(const Endpoint& endpoint) {
  return endpoint.host == "localhost" || endpoint.host == "[::1]" ||
         (endpoint.host.starts_with("127.") && is_ip(endpoint.host));
}

}  // namespace surefoot
