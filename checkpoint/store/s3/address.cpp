#include "checkpoint/store/s3/address.h"

namespace surefoot::s3 {
namespace {

// May it stand before the endpoint's name, under a certificate for "*.ENDPOINT"?
bool fits_a_host(std::string_view bucket) {
  return bucket.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") ==
         std::string_view::npos;
}

}  // namespace

Result<Address> Address::make(std::string_view endpoint, std::string_view region,
                              std::string_view bucket, PathStyle style) {
  Address address;
  const std::string url =
      endpoint.empty() ? fmt::format("https://s3.{}.amazonaws.com", region) : std::string(endpoint);
  auto parsed = parse_endpoint(url);
  if (!parsed)
    return error(Code::kInvalid, "\"{}\" is no endpoint of a service: {}", url,
                 parsed.error().message);
  address.endpoint_ = *std::move(parsed);
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
