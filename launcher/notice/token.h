// The session token that aws (IMDSv2) and alibaba want with each question.
//
// Asked for when there is none, when half of its life is over, and after a 401. One that could not
// be renewed is good until its life is over; a new one is asked for every minute. A service that
// gives none - an older one, one that answers something else, or a container from which the answer
// does not come through - is asked without, and for a token again after some minutes or at a 401.
#pragma once

#include <optional>
#include <string>

#include "launcher/notice/source.h"

namespace surefoot::notice {

struct TokenHeaders {
  std::string ttl;    // "X-aws-ec2-metadata-token-ttl-seconds"
  std::string token;  // "X-aws-ec2-metadata-token"
};

class TokenAsker {
 public:
  TokenAsker(std::string base, TokenHeaders headers)
      : base_(std::move(base)), headers_(std::move(headers)) {}
  // GET of a path, with a token where there is one; once more with a new one after a 401.
  Answer get(Asker& asker, const std::string& path, Time now);

 private:
  void renew(Asker& asker, Time now);
  Answer get_once(Asker& asker, const std::string& path) const;

  std::string base_;
  TokenHeaders headers_;
  std::string token_;  // empty: there is none
  Time expires_at_{};  // of the token
  std::optional<Time> renew_at_;
};

}  // namespace surefoot::notice
