// Where objects of a bucket are: hosts, paths and query strings. Pure.
//
//   path style          https://ENDPOINT/BUCKET/KEY
//   virtual-host style  https://BUCKET.ENDPOINT/KEY
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/store/s3/signature.h"
#include "common/status.h"
#include "configs/store_url.h"

namespace surefoot::s3 {

enum class PathStyle { kAuto, kAlways, kNever };

class Address {
 public:
  // `endpoint` empty: AWS in `region`. kAuto is virtual-host style, but path style where a name
  // before the endpoint's could not resolve or not match a certificate: for IP addresses, names
  // without a dot, endpoints with a port, and buckets with dots or of other characters than names
  // of hosts have.
  [[nodiscard]] static Result<Address> make(std::string_view endpoint, std::string_view region,
                                            std::string_view bucket, PathStyle style);

  [[nodiscard]] bool path_style() const { return path_style_; }
  [[nodiscard]] const std::string& host() const { return host_; }  // with port, as sent and signed
  // Encoded, starting with '/'. An empty key: the bucket.
  [[nodiscard]] std::string path(std::string_view key) const;
  [[nodiscard]] std::string url(std::string_view key, const Pairs& query) const;
  [[nodiscard]] const Endpoint& endpoint() const { return endpoint_; }
  [[nodiscard]] const std::string& bucket() const { return bucket_; }

 private:
  Endpoint endpoint_;
  std::string bucket_;
  std::string host_;
  bool path_style_ = false;
};

}  // namespace surefoot::s3
