#include "launcher/notice/token.h"

#include "launcher/notice/payloads.h"

namespace surefoot::notice {
namespace {

constexpr int kTtlSeconds = 21600;  // the longest that is allowed
constexpr Duration kRenewAfter = std::chrono::seconds(kTtlSeconds / 2);
// Before a service that gave no token is asked for one again. Arbitrary.
constexpr Duration kWithoutToken = std::chrono::minutes(5);
constexpr int kUnauthorized = 401;

}  // namespace

void TokenAsker::renew(Asker& asker, Time now) {
  Question question;
  question.method = "PUT";
  question.url = base_ + "/latest/api/token";
  question.headers = {{headers_.ttl, std::to_string(kTtlSeconds)}};
  const Answer answer = asker.ask(question);
  token_ = answer.status == 200 ? read_token(answer.body) : "";
  renew_at_ = now + (token_.empty() ? kWithoutToken : kRenewAfter);
}

Answer TokenAsker::get_once(Asker& asker, const std::string& path) const {
  Question question;
  question.url = base_ + path;
  if (!token_.empty()) question.headers = {{headers_.token, token_}};
  return asker.ask(question);
}

Answer TokenAsker::get(Asker& asker, const std::string& path, Time now) {
  if (!renew_at_ || now >= *renew_at_) renew(asker, now);
  Answer answer = get_once(asker, path);
  if (answer.status != kUnauthorized) return answer;
  renew(asker, now);
  if (!token_.empty()) return get_once(asker, path);
  renew_at_.reset();
  return answer;
}

}  // namespace surefoot::notice
