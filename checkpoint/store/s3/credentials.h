// Where credentials come from, in the order that every S3 tool has:
//
//   1. the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; not where a
//      profile is asked for
//   2. the shared file: AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials, section `profile`, else
//      AWS_PROFILE, else "default"
//   3. the role of the instance, from its metadata service (version 2, falling back to 1); not
//      where AWS_EC2_METADATA_DISABLED=true
//
// Those of a role are fetched anew five minutes before they expire; all are looked for again when
// the store refuses them, since they may have been changed. No credential is ever part of a
// message. One thread per object; a fetch blocks for some seconds at most.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/store/s3/signature.h"
#include "common/clock.h"
#include "common/status.h"

namespace surefoot::s3 {

// A variable of the environment; nothing: it is not set.
using Environment = std::function<std::optional<std::string>(const std::string&)>;
[[nodiscard]] Environment process_environment();

struct CredentialOptions {
  std::string profile;  // empty: AWS_PROFILE, or "default"
  Environment environment = process_environment();
  // AWS_EC2_METADATA_SERVICE_ENDPOINT replaces it.
  std::string metadata_endpoint = "http://169.254.169.254";
  Duration metadata_timeout = std::chrono::seconds(2);
};

// Pure: of a section of the shared file. kNotFound: there is no such section. kInvalid: a key is
// missing in it.
[[nodiscard]] Result<Credentials> parse_shared_file(std::string_view text,
                                                    const std::string& profile);
// Pure: the JSON of a role. kCorrupt: it is not what the metadata service gives.
[[nodiscard]] Result<Credentials> parse_role(std::string_view json);

class CredentialSource {
 public:
  explicit CredentialSource(CredentialOptions options) : options_(std::move(options)) {}

  // kInvalid: there are none; the message says where was looked. kRetry: the metadata service does
  // not answer just now.
  [[nodiscard]] Result<Credentials> get(std::int64_t now_s);
  // The store has refused them: the next get() looks again.
  void forget() { known_.reset(); }

 private:
  [[nodiscard]] Result<Credentials> find() const;
  [[nodiscard]] Result<Credentials> from_file(bool asked_for, const std::string& profile) const;
  [[nodiscard]] Result<Credentials> from_instance() const;
  [[nodiscard]] std::string variable(const char* name) const;

  CredentialOptions options_;
  std::optional<Credentials> known_;
};

}  // namespace surefoot::s3
