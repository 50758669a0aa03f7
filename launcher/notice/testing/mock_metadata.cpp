#include "launcher/notice/testing/mock_metadata.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "launcher/notice/times.h"

namespace surefoot::notice {
namespace {

using nlohmann::json;
using std::chrono::seconds;

constexpr const char* kAwsToken = "x-aws-ec2-metadata-token";
constexpr const char* kAlibabaToken = "x-aliyun-ecs-metadata-token";
constexpr std::size_t kHugeBytes = 1 << 20;

WallTime wall_now() {
  return std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

std::string china_time(WallTime at) {
  std::string text = to_text(at + std::chrono::hours(8));
  text[10] = ' ';
  text.pop_back();
  return text;
}

std::string rfc_time(WallTime at) {
  const std::time_t time = std::chrono::system_clock::to_time_t(at);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return text;
}

MockReply not_found() {
  return {MockReply::How::kWhole, 404, "<html>404 - Not Found</html>", {}};
}
MockReply ok(std::string body) {
  return {MockReply::How::kWhole, 200, std::move(body), {}};
}
MockReply ok_or_not_found(const std::string& body) {
  return body.empty() ? not_found() : ok(body);
}
MockReply with_status(int status) {
  return {MockReply::How::kWhole, status, "", {}};
}

// "...&name=value&...": the value, or empty.
std::string value_of(const std::string& query, const std::string& name) {
  const std::string text = "&" + query + "&";
  const auto found = text.find("&" + name + "=");
  if (found == std::string::npos) return "";
  const auto begin = found + name.size() + 2;
  return text.substr(begin, text.find('&', begin) - begin);
}

}  // namespace

Result<std::unique_ptr<MockMetadata>> MockMetadata::start(Options options) {
  std::unique_ptr<MockMetadata> mock(new MockMetadata(std::move(options)));
  auto* const raw = mock.get();
  SUREFOOT_ASSIGN(mock->server_, MockServer::start(raw->options_.address, raw->options_.port,
                                                   [raw](const MockRequest& request) {
                                                     return raw->answer(request);
                                                   }));
  return mock;
}

MockMetadata::~MockMetadata() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  server_.reset();
}

std::string MockMetadata::url() const {
  return fmt::format("http://{}:{}", options_.address, port());
}

// With the lock.
void MockMetadata::change() {
  ++version_;
  changed_.notify_all();
}

void MockMetadata::announce(WallTime at) {
  const std::lock_guard lock(mutex_);
  at_ = at;
  rolling_.reset();
  change();
}
void MockMetadata::announce_rolling(Duration in) {
  const std::lock_guard lock(mutex_);
  rolling_ = in;
  change();
}
void MockMetadata::call_off() {
  const std::lock_guard lock(mutex_);
  at_.reset();
  rolling_.reset();
  change();
}
void MockMetadata::set_aws_rebalance(const std::string& body) {
  const std::lock_guard lock(mutex_);
  rebalance_ = body;
}
void MockMetadata::set_aws_maintenance(const std::string& body) {
  const std::lock_guard lock(mutex_);
  aws_maintenance_ = body;
}
void MockMetadata::set_gcp_maintenance(const std::string& body) {
  const std::lock_guard lock(mutex_);
  gcp_maintenance_ = body;
  change();
}
void MockMetadata::set_azure_events(const std::string& events) {
  const std::lock_guard lock(mutex_);
  azure_events_ = events;
}
void MockMetadata::spoil(Spoiled how) {
  const std::lock_guard lock(mutex_);
  spoil_ = how;
  spoiled_ = 0;
  change();
}
void MockMetadata::expire_tokens() {
  const std::lock_guard lock(mutex_);
  ++token_;
}

int MockMetadata::questions() const {
  const std::lock_guard lock(mutex_);
  return questions_;
}
int MockMetadata::spoiled() const {
  const std::lock_guard lock(mutex_);
  return spoiled_;
}
int MockMetadata::tokens_given() const {
  const std::lock_guard lock(mutex_);
  return tokens_given_;
}
std::vector<std::string> MockMetadata::approved() const {
  const std::lock_guard lock(mutex_);
  return approved_;
}

std::optional<WallTime> MockMetadata::when() const {
  if (!rolling_) return at_;
  return wall_now() + std::chrono::duration_cast<std::chrono::milliseconds>(*rolling_);
}

MockReply MockMetadata::answer(const MockRequest& request) {
  std::unique_lock lock(mutex_);
  if (auto spoiled = spoil_answer(request, lock)) {
    ++spoiled_;
    return *spoiled;
  }
  return answer_path(request, lock);
}

std::optional<MockReply> MockMetadata::spoil_answer(const MockRequest& request,
                                                    std::unique_lock<std::mutex>& lock) {
  using How = MockReply::How;
  switch (spoil_) {
    case Spoiled::kNot:
      return std::nullopt;
    case Spoiled::kUnauthorized:
      return with_status(401);
    case Spoiled::kForbidden:
      return with_status(403);
    case Spoiled::kBroken:
      return with_status(500);
    case Spoiled::kBusy:
      return with_status(503);
    case Spoiled::kRedirected:
      return MockReply{How::kWhole, 302, "", {{"Location", options_.redirect + request.path}}};
    case Spoiled::kHtml:
      return ok("<!doctype html><html><body><h1>Sign in</h1></body></html>\n");
    case Spoiled::kEmpty:
      return ok("");
    case Spoiled::kHuge:
      return ok(std::string(kHugeBytes, '7'));
    case Spoiled::kCut:
      return MockReply{How::kCut, 200, "TRU", {}};
    case Spoiled::kSilent:
      return MockReply{How::kSilent, 200, "", {}};
    case Spoiled::kHanging:
      ++spoiled_;
      changed_.wait(lock, [this] { return stopping_ || spoil_ != Spoiled::kHanging; });
      return MockReply{How::kSilent, 200, "", {}};
    case Spoiled::kNoTime:
      if (request.path == "/latest/meta-data/spot/instance-action")
        return ok(R"({"action": "terminate", "time": "soon"})");
      if (request.path == "/metadata/scheduledevents")
        return ok(R"({"DocumentIncarnation": 1, "Events": [{"EventId": "x", "EventType": "Preempt",
          "Resources": ["me"], "EventStatus": "Scheduled", "NotBefore": "tomorrow"}]})");
      return ok("2026-13-45T99:00:00Z");
  }
  return std::nullopt;
}

bool MockMetadata::may_ask(const MockRequest& request, const char* header) const {
  if (!options_.tokens) return true;
  const auto given = request.headers.find(header);
  return given != request.headers.end() && given->second == fmt::format("token-{}==", token_);
}

MockReply MockMetadata::give_token(const MockRequest& request, const char* ttl_header) {
  if (!options_.tokens) return not_found();
  const int ttl = std::atoi(request.headers.at(ttl_header).c_str());
  if (request.method != "PUT" || ttl < 1 || ttl > 21600) return with_status(400);
  ++tokens_given_;
  return ok(fmt::format("token-{}==", token_));
}

MockReply MockMetadata::answer_path(const MockRequest& request,
                                    std::unique_lock<std::mutex>& lock) {
  const std::string& path = request.path;
  if (path == "/latest/api/token") {
    for (const std::string header : {kAwsToken, kAlibabaToken}) {
      const std::string ttl = header + "-ttl-seconds";
      if (request.headers.contains(ttl)) return give_token(request, ttl.c_str());
    }
    return with_status(400);
  }
  ++questions_;
  if (path.starts_with("/computeMetadata/")) return answer_gcp(request, lock);
  if (path.starts_with("/metadata/")) return answer_azure(request);
  const auto at = when();
  if (path == "/latest/meta-data/instance/spot/termination-time") {
    if (!may_ask(request, kAlibabaToken)) return with_status(401);
    return ok_or_not_found(at ? to_text(*at) : "");
  }
  if (path == "/latest/meta-data/spot/termination-time")
    return ok_or_not_found(at ? china_time(*at) : "");
  if (path == "/latest/spot_instance_termination_time")
    return ok_or_not_found(at ? to_text(*at) : "");
  return answer_aws(request);
}

MockReply MockMetadata::answer_aws(const MockRequest& request) const {
  if (!may_ask(request, kAwsToken)) return with_status(401);
  const auto at = when();
  if (request.path == "/latest/meta-data/spot/instance-action")
    return ok_or_not_found(at ? json{{"action", "terminate"}, {"time", to_text(*at)}}.dump() : "");
  if (request.path == "/latest/meta-data/events/recommendations/rebalance")
    return ok_or_not_found(rebalance_);
  if (request.path == "/latest/meta-data/events/maintenance/scheduled")
    return ok(aws_maintenance_.empty() ? "[]" : aws_maintenance_);
  return not_found();
}

MockReply MockMetadata::answer_gcp(const MockRequest& request, std::unique_lock<std::mutex>& lock) {
  const auto flavor = request.headers.find("metadata-flavor");
  if (flavor == request.headers.end() || flavor->second != "Google") return with_status(403);
  const auto etag = [this] { return fmt::format("v{}", version_); };
  if (value_of(request.query, "wait_for_change") == "true") {
    const std::string last = value_of(request.query, "last_etag");
    const int began = version_;
    changed_.wait_for(
        lock, seconds(std::atoi(value_of(request.query, "timeout_sec").c_str())),
        [&] { return stopping_ || version_ != began || (!last.empty() && last != etag()); });
  }
  const bool preempted = request.path == "/computeMetadata/v1/instance/preempted";
  if (!preempted && request.path != "/computeMetadata/v1/instance/maintenance-event")
    return not_found();
  MockReply reply = ok(preempted ? (when() ? "TRUE" : "FALSE")
                                 : (gcp_maintenance_.empty() ? "NONE" : gcp_maintenance_));
  reply.headers = {{"Metadata-Flavor", "Google"}, {"ETag", etag()}};
  return reply;
}

std::string MockMetadata::azure_events() const {
  const auto at = when();
  if (!at) return azure_events_;
  json event = {{"EventId", "602d9444-d2cd-49c7-8624-8643e7171297"},
                {"EventType", "Preempt"},
                {"ResourceType", "VirtualMachine"},
                {"Resources", {options_.machine}},
                {"EventStatus", "Scheduled"},
                {"NotBefore", rfc_time(*at)},
                {"Description", ""},
                {"EventSource", "Platform"},
                {"DurationInSeconds", -1}};
  return event.dump() + (azure_events_.empty() ? "" : ", " + azure_events_);
}

MockReply MockMetadata::answer_azure(const MockRequest& request) {
  const auto metadata = request.headers.find("metadata");
  if (metadata == request.headers.end() || metadata->second != "true") return with_status(400);
  if (request.path == "/metadata/instance/compute/name") return ok(options_.machine);
  if (request.path != "/metadata/scheduledevents") return not_found();
  if (value_of(request.query, "api-version") != "2020-07-01") return with_status(400);
  if (request.method == "GET")
    return ok(
        fmt::format(R"({{"DocumentIncarnation": {}, "Events": [{}]}})", version_, azure_events()));
  const json body = json::parse(request.body, nullptr, false);
  if (request.method != "POST" || !body.is_object() || !body.contains("StartRequests"))
    return with_status(400);
  for (const json& start : body["StartRequests"]) approved_.push_back(start.value("EventId", ""));
  changed_.notify_all();
  return ok("");
}

}  // namespace surefoot::notice
