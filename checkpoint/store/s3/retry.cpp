#include "checkpoint/store/s3/retry.h"

#include <algorithm>
#include <array>

namespace surefoot::s3 {
namespace {

using End = Outcome::End;
using What = Decision::What;

// Arbitrary: the first pause is short since a connection that was kept open and has died is the
// usual cause; the last (kLongestPause) is what a throttled bucket needs to grow.
constexpr Duration kBase = std::chrono::milliseconds(200);

template <std::size_t N>
bool is_one_of(std::string_view code, const std::array<std::string_view, N>& codes) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

bool credentials_are_old(const Outcome& outcome) {
  static constexpr std::array<std::string_view, 4> kCodes = {
      "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"};
  return is_one_of(outcome.code, kCodes);
}

// They may have been changed where they stand since they were read there.
bool others_may_do(const Outcome& outcome) {
  if (credentials_are_old(outcome) || outcome.code == "InvalidAccessKeyId" ||
      outcome.code == "SignatureDoesNotMatch")
    return true;
  return (outcome.status == 401 || outcome.status == 403) && outcome.code != "RequestTimeTooSkewed";
}

bool is_passing(const Outcome& outcome) {
  static constexpr std::array<std::string_view, 7> kCodes = {"SlowDown",
                                                             "RequestTimeout",
                                                             "InternalError",
                                                             "ServiceUnavailable",
                                                             "OperationAborted",
                                                             "Throttling",
                                                             "ConditionalRequestConflict"};
  if (outcome.end != End::kAnswered) return outcome.end != End::kUntrusted;
  // 501 is an answer for good: what is asked for is not there.
  return (outcome.status >= 500 && outcome.status != 501) || outcome.status == 429 ||
         outcome.status == 408 || is_one_of(outcome.code, kCodes);
}

std::string said(const Outcome& outcome) {
  if (outcome.end != End::kAnswered) return outcome.message;
  std::string text = std::to_string(outcome.status);
  if (!outcome.code.empty()) text += " " + outcome.code;
  if (!outcome.message.empty()) text += ": " + outcome.message;
  return text;
}

Decision give_up(Code code, const Outcome& outcome, const char* advice) {
  std::string reason = said(outcome);
  if (*advice != '\0') reason += std::string("; ") + advice;
  return {What::kGiveUp, {}, code, std::move(reason)};
}

Decision on_refusal(const Outcome& outcome) {
  if (outcome.code == "RequestTimeTooSkewed")
    return give_up(Code::kInvalid, outcome, "set the clock of this machine");
  if (outcome.code == "NoSuchBucket")
    return give_up(Code::kInvalid, outcome, "create the bucket, or correct checkpoint.to");
  if (outcome.code == "NoSuchUpload")
    return give_up(Code::kRetry, outcome, "the upload was aborted by somebody else");
  if (outcome.code == "SignatureDoesNotMatch" || outcome.code == "InvalidAccessKeyId")
    return give_up(Code::kInvalid, outcome, "correct the credentials");
  if (outcome.code == "EntityTooLarge" || outcome.code == "QuotaExceeded")
    return give_up(Code::kNoSpace, outcome, "");
  if (credentials_are_old(outcome))
    return give_up(Code::kInvalid, outcome, "the credentials have expired: renew them");
  if (!outcome.region.empty() || outcome.code == "AuthorizationHeaderMalformed" ||
      (outcome.status >= 300 && outcome.status < 400)) {
    Decision decision = give_up(Code::kInvalid, outcome, "set checkpoint.s3.region");
    if (!outcome.region.empty()) decision.reason += " to " + outcome.region;
    return decision;
  }
  switch (outcome.status) {
    case 401:
    case 403:
      return give_up(Code::kInvalid, outcome,
                     "the credentials must be allowed to list, read, write and delete there");
    case 404:
      return give_up(Code::kNotFound, outcome, "");
    case 412:
      return give_up(Code::kExists, outcome, "");
    case 416:
      return give_up(Code::kCorrupt, outcome, "");
    case 507:
      return give_up(Code::kNoSpace, outcome, "");
    default:
      return give_up(Code::kInvalid, outcome, "");
  }
}

Duration pause(const Outcome& outcome, int tries, std::uint64_t random) {
  const int doublings = std::min(tries - 1, 16);
  const Duration longest = std::min(kBase * (1 << doublings), kLongestPause);
  const auto drawn =
      static_cast<std::int64_t>(random % static_cast<std::uint64_t>(longest.count()));
  return std::max(Duration(drawn), std::min(outcome.retry_after, kLongestPause));
}

}  // namespace

Decision decide_retry(const Outcome& outcome, const Tries& tries, std::uint64_t random) {
  const bool answered = outcome.end == End::kAnswered;
  if (answered && outcome.status >= 200 && outcome.status < 300 && outcome.code.empty())
    return {What::kTake, {}, Code::kRetry, ""};
  if (answered && others_may_do(outcome) && !tries.credentials_new)
    return {What::kNewCredentials, {}, Code::kRetry, said(outcome)};
  if (answered && outcome.code == "RequestTimeTooSkewed" && !tries.clock_set)
    return {What::kSetClock, {}, Code::kRetry, said(outcome)};
  if (outcome.end == End::kUntrusted)
    return give_up(Code::kInvalid, outcome,
                   "set checkpoint.s3.ca_bundle where the service has a certificate of your own");
  if (!is_passing(outcome) || outcome.status == 507) return on_refusal(outcome);
  if (tries.done < tries.most)
    return {What::kWait, pause(outcome, tries.done, random), Code::kRetry, said(outcome)};
  Decision decision = give_up(Code::kRetry, outcome, "");
  decision.reason += " (tried " + std::to_string(tries.done) + " times)";
  return decision;
}

bool may_not_know_a_header(int status, std::string_view code) {
  static constexpr std::array<std::string_view, 3> kCodes = {"NotImplemented", "InvalidArgument",
                                                             "InvalidRequest"};
  return status == 405 || status == 501 || is_one_of(code, kCodes);
}

bool may_have_happened(const Outcome& outcome) {
  if (outcome.end == End::kNotReached || outcome.end == End::kUntrusted) return false;
  if (outcome.end != End::kAnswered) return true;
  // An error inside of a success.
  if (outcome.status >= 200 && outcome.status < 300) return true;
  // A service that says it is too busy has not begun; one that failed, or a proxy that lost it, may
  // have.
  return outcome.status >= 500 && outcome.status != 503 && outcome.status != 501;
}

}  // namespace surefoot::s3
