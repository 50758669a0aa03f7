// Where a job's checkpoints lie, as `checkpoint.to` and `checkpoint.s3.endpoint` say it. Pure.
//
//   FOLDER, file://FOLDER      a folder; relative to the job directory
//   s3://BUCKET[/PREFIX]       a bucket of an S3-compatible service
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace surefoot {

struct StoreUrl {
  enum class Kind { kFolder, kS3 } kind = Kind::kFolder;
  std::string folder;  // kFolder: as written, without file://
  std::string bucket;  // kS3
  std::string prefix;  // kS3: without '/' at either end; may be empty
};
// kInvalid: what is wrong, after "found \"...\", ".
[[nodiscard]] Result<StoreUrl> parse_store_url(std::string_view to);

struct Endpoint {
  std::string scheme;  // "http" or "https"
  std::string host;    // without port; an IPv6 address in brackets
  std::string port;    // empty: the scheme's own
  [[nodiscard]] std::string authority() const { return port.empty() ? host : host + ":" + port; }
};
// "https://HOST[:PORT][/]". kInvalid: a path, a query or a user in it, or another scheme.
[[nodiscard]] Result<Endpoint> parse_endpoint(std::string_view url);
[[nodiscard]] bool is_ip(std::string_view host);
[[nodiscard]] bool is_loopback(const Endpoint& endpoint);

}  // namespace surefoot
