#include "checkpoint/store/s3/client.h"

#include <algorithm>

#include "checkpoint/store/s3/replies.h"
#include "checkpoint/store/s3/signature.h"
#include "common/digest.h"

namespace surefoot::s3 {
namespace {

// Does the service say that it got other bytes? Its ETag is an MD5 unless it encrypts with keys of
// its own.
bool got_other_bytes(const Request& request, const HttpAnswer& answer) {
  if (request.etag.empty()) return false;
  const std::string encryption = answer.header("x-amz-server-side-encryption");
  const bool is_md5 = (encryption.empty() || encryption == "AES256") &&
                      answer.header("x-amz-server-side-encryption-customer-algorithm").empty();
  std::string etag = answer.header("etag");
  std::erase(etag, '"');
  return is_md5 && etag.size() == request.etag.size() && etag != request.etag;
}

Outcome outcome_of(const Request& request, const HttpAnswer& answer) {
  Outcome outcome;
  outcome.end = answer.end;
  outcome.message = answer.problem;
  if (answer.end != HttpAnswer::End::kAnswered) return outcome;
  outcome.status = answer.status;
  const bool good = answer.status >= 200 && answer.status < 300;
  const std::string root = good && request.method == "POST" ? root_name(answer.text) : "";
  // CompleteMultipartUpload begins its 200 before it knows how it ends.
  if (!good || root == "Error") {
    ErrorReply reply = parse_error(answer.text);
    outcome.code = good && reply.code.empty() ? "InternalError" : std::move(reply.code);
    outcome.message = std::move(reply.message);
    outcome.region = std::move(reply.region);
    if (outcome.region.empty()) outcome.region = answer.header("x-amz-bucket-region");
    if (outcome.code != "AuthorizationHeaderMalformed" && answer.status / 100 != 3)
      outcome.region.clear();
    outcome.retry_after = parse_retry_after(answer.header("retry-after"));
  } else if (!request.root.empty() && root != request.root) {
    outcome.end = Outcome::End::kNonsense;
    outcome.message = "the answer is no " + request.root;
  } else if (got_other_bytes(request, answer)) {
    outcome.end = Outcome::End::kNonsense;
    outcome.message =
        "the service has got other bytes than were sent, says its ETag (if its ETags are no MD5s: "
        "checkpoint.s3.checksum)";
  }
  return outcome;
}

}  // namespace

Client::Client(Address address, ClientOptions options)
    : address_(std::move(address)),
      options_(std::move(options)),
      credentials_(options_.credentials),
      http_(options_.http),
      random_(options_.seed) {}

std::int64_t Client::now_s() const {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch())
             .count() +
         clock_offset_s_;
}

Error Client::about(const Request& request, Code code, const std::string& reason) const {
  return error(code, "cannot {} s3://{}/{} at {}: {}", request.what, address_.bucket(), request.key,
               address_.host(), reason);
}

Client::Id Client::start(Request request) {
  const Id id = ++last_id_;
  Call call;
  call.payload_sha256 = sha256(request.body);
  call.request = std::move(request);
  call.tries = {.done = 0, .most = options_.tries};
  calls_.emplace(id, std::move(call));
  return id;
}

void Client::cancel(Id id) {
  if (const auto found = calls_.find(id); found != calls_.end()) {
    http_.cancel(found->second.transfer);
    calls_.erase(found);
  }
  finished_.erase(id);
}

void Client::finish(Id id, Call& call, Result<HttpAnswer> answer, const Outcome& last) {
  finished_.insert_or_assign(
      id, Finished{id, std::move(answer), last.status, last.code, call.may_have_happened});
  calls_.erase(id);
}

void Client::start_try(Id id, Call& call) {
  const Request& request = call.request;
  ++call.tries.done;
  const Time at = now();
  if (at >= request.deadline)
    return finish(id, call, about(request, Code::kRetry, "the deadline has passed"), {});
  auto credentials = credentials_.get(now_s());
  if (!credentials) {
    Error failed = std::move(credentials).error();
    if (failed.code != Code::kRetry)
      return finish(id, call, about(request, failed.code, failed.message), {});
    Outcome outcome;
    outcome.end = Outcome::End::kNotReached;
    outcome.message = std::move(failed.message);
    return settle(id, call, outcome, {});
  }
  const std::string time = amz_time(now_s());
  Pairs headers = request.headers;
  headers.emplace_back("host", address_.host());
  headers.emplace_back("x-amz-content-sha256", call.payload_sha256);
  headers.emplace_back("x-amz-date", time);
  if (!credentials->session_token.empty())
    headers.emplace_back("x-amz-security-token", credentials->session_token);
  const Signable signable{request.method, address_.path(request.key), request.query, headers,
                          call.payload_sha256};
  headers.emplace_back("authorization",
                       authorization(signable, *credentials, time, options_.region));
  call.transfer = http_.start(
      {request.method, address_.url(request.key, request.query), std::move(headers), request.body,
       request.into, std::min(request.deadline, at + options_.try_timeout), request.stall_timeout});
}

Time Client::start_due() {
  Time next = Time::max();
  std::vector<Id> due;
  const Time at = now();
  for (const auto& [id, call] : calls_) {
    if (call.transfer != 0) continue;
    if (call.not_before <= at) {
      due.push_back(id);
    } else {
      next = std::min(next, call.not_before);
    }
  }
  for (const Id id : due) start_try(id, calls_.at(id));
  return due.empty() ? next : at;
}

void Client::settle(Id id, Call& call, HttpAnswer answer) {
  const Outcome outcome = outcome_of(call.request, answer);
  settle(id, call, outcome, std::move(answer));
}

void Client::settle(Id id, Call& call, const Outcome& outcome, HttpAnswer answer) {
  call.transfer = 0;
  const Decision decision = decide_retry(outcome, call.tries, random_());
  if (decision.what == Decision::What::kTake) return finish(id, call, std::move(answer), outcome);
  call.may_have_happened = call.may_have_happened || may_have_happened(outcome);
  const Request& request = call.request;
  switch (decision.what) {
    case Decision::What::kNewCredentials:
      call.tries.credentials_new = true;
      credentials_.forget();
      break;
    case Decision::What::kSetClock: {
      call.tries.clock_set = true;
      const std::int64_t theirs_s = parse_http_date(answer.header("date"));
      if (theirs_s > 0) clock_offset_s_ += theirs_s - now_s();
      break;
    }
    case Decision::What::kWait:
      call.not_before = now() + decision.wait;
      if (call.not_before >= request.deadline) {
        finish(id, call,
               about(request, Code::kRetry, "the deadline has passed; last: " + decision.reason),
               outcome);
      }
      break;
    case Decision::What::kTake:
    case Decision::What::kGiveUp:
      finish(id, call, about(request, decision.code, decision.reason), outcome);
      break;
  }
}

Finished Client::wait_any(std::span<const Id> ids) {
  for (;;) {
    const Time next = start_due();
    for (const Id id : ids) {
      const auto found = finished_.find(id);
      if (found == finished_.end()) {
        SUREFOOT_CHECK(calls_.contains(id));
        continue;
      }
      Finished finished = std::move(found->second);
      finished_.erase(found);
      return finished;
    }
    auto done = http_.wait(next);
    if (!done) continue;
    for (auto& [id, call] : calls_) {
      if (call.transfer != done->first) continue;
      settle(id, call, std::move(done->second));
      break;
    }
  }
}

Finished Client::perform(Request request) {
  const Id id = start(std::move(request));
  return wait_any(std::span(&id, 1));
}

}  // namespace surefoot::s3
