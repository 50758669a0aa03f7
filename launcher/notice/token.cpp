#include "launcher/notice/token.h"

#include "launcher/notice/payloads.h"

namespace surefoot::notice {
namespace {

constexpr int kTtlSeconds = 21600;  // the longest that is allowed
constexpr Duration kLife = std::chrono::seconds(kTtlSeconds);
constexpr Duration kRenewAfter = kLife / 2;
constexpr Duration kRenewAgain = std::chrono::minutes(1);
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
  if (std::string token = answer.status == 200 ? read_token(answer.body) : ""; !token.empty()) {
    token_ = std::move(token);
    expires_at_ = now + kLife;
    renew_at_ = now + kRenewAfter;
    return;
  }
  renew_at_ = now + (token_.empty() ? kWithoutToken : kRenewAgain);
  if (now >= expires_at_) token_.clear();
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
  token_.clear();
  renew(asker, now);
  if (!token_.empty()) return get_once(asker, path);
  renew_at_.reset();
  return answer;
}

}  // namespace surefoot::notice
