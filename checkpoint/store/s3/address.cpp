#include "checkpoint/store/s3/address.h"

#include <algorithm>

namespace surefoot::s3 {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '.' || c == '-' ||
         c == '_';
}

bool is_ip(std::string_view host) {
  return host.starts_with('[') || host.find_first_not_of("0123456789.") == std::string_view::npos;
}

// May it stand before the endpoint's name, under a certificate for "*.ENDPOINT"?
bool fits_a_host(std::string_view bucket) {
  return bucket.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") ==
         std::string_view::npos;
}

}  // namespace

Result<Endpoint> parse_endpoint(std::string_view url) {
  const auto wrong = [&](const char* why) {
    return error(Code::kInvalid, "\"{}\" is no endpoint: {}", url, why);
  };
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

bool is_loopback(const Endpoint& endpoint) {
  return endpoint.host == "localhost" || endpoint.host == "[::1]" ||
         (endpoint.host.starts_with("127.") && is_ip(endpoint.host));
}

Result<Address> Address::make(std::string_view endpoint, std::string_view region,
                              std::string_view bucket, PathStyle style) {
  Address address;
  const std::string url =
      endpoint.empty() ? fmt::format("https://s3.{}.amazonaws.com", region) : std::string(endpoint);
  SUREFOOT_ASSIGN(address.endpoint_, parse_endpoint(url));
  const Endpoint& at = address.endpoint_;
  const bool needs_path = is_ip(at.host) || at.host.find('.') == std::string::npos ||
                          !at.port.empty() || !fits_a_host(bucket);
  address.path_style_ = style == PathStyle::kAlways || (style == PathStyle::kAuto && needs_path);
  address.bucket_ = bucket;
  address.host_ = address.path_style_ ? at.authority() : address.bucket_ + "." + at.authority();
  return address;
}

std::string Address::path(std::string_view key) const {
  const std::string encoded = uri_encode(key, true);
  if (!path_style_) return "/" + encoded;
  const std::string bucket = "/" + uri_encode(bucket_, false);
  return key.empty() ? bucket : bucket + "/" + encoded;
}

std::string Address::url(std::string_view key, const Pairs& query) const {
  std::string url = endpoint_.scheme + "://" + host_ + path(key);
  if (!query.empty()) url += "?" + query_text(query);
  return url;
}

}  // namespace surefoot::s3
