#include "common/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace surefoot {
namespace {

// Larger than curl's 16 and 64 KiB: fewer calls for parts of many MiB.
constexpr long kReceiveBufferBytes = 512 << 10;
constexpr long kSendBufferBytes = 1 << 20;
constexpr std::size_t kMaxHeaders = 200;
constexpr int kMaxConnections = 64;

void set_up_curl() {
  static const CURLcode done = curl_global_init(CURL_GLOBAL_DEFAULT);
  SUREFOOT_CHECK(done == CURLE_OK);
}

long milliseconds(Duration duration) {
  return static_cast<long>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

HttpAnswer::End end_of(CURLcode code, bool sent) {
  using End = HttpAnswer::End;
  switch (code) {
    case CURLE_OK:
      return End::kAnswered;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
      return End::kNotReached;
    case CURLE_OPERATION_TIMEDOUT:
      return sent ? End::kTimedOut : End::kNotReached;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return End::kUntrusted;
    case CURLE_WRITE_ERROR:
      return End::kNonsense;
    default:
      return sent ? End::kBroken : End::kNotReached;
  }
}

}  // namespace

struct Http::Transfer {
  Id id = 0;
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  HttpRequest request;
  std::size_t sent = 0;
  HttpAnswer answer;
  char problem[CURL_ERROR_SIZE] = {};

  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() {
    if (easy != nullptr) curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
  }
  [[nodiscard]] long status() const {
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    return status;
  }
  // Has anything gone out? Only then can it have had an effect.
  [[nodiscard]] bool has_sent() const {
    long request_bytes = 0;
    curl_easy_getinfo(easy, CURLINFO_REQUEST_SIZE, &request_bytes);
    return request_bytes > 0;
  }
};

struct Http::Shared {
  HttpOptions options;
  CURLM* multi = nullptr;
  Id last_id = 0;
  std::map<Id, std::unique_ptr<Transfer>> transfers;

  void drop(Id id) {
    const auto found = transfers.find(id);
    if (found == transfers.end()) return;
    curl_multi_remove_handle(multi, found->second->easy);
    transfers.erase(found);
  }
  void set_options(Transfer& transfer) const;
};

Http::Http(HttpOptions options) : shared_(std::make_unique<Shared>()) {
  set_up_curl();
  shared_->options = std::move(options);
  shared_->multi = curl_multi_init();
  SUREFOOT_CHECK(shared_->multi != nullptr);
  curl_multi_setopt(shared_->multi, CURLMOPT_MAXCONNECTS, static_cast<long>(kMaxConnections));
}

Http::~Http() {
  while (!shared_->transfers.empty()) shared_->drop(shared_->transfers.begin()->first);
  curl_multi_cleanup(shared_->multi);
}

std::size_t Http::on_read(char* to, std::size_t size, std::size_t count, void* transfer) {
  auto& self = *static_cast<Transfer*>(transfer);
  const auto rest = self.request.body.subspan(self.sent);
  const std::size_t taken = std::min(rest.size(), size * count);
  if (taken > 0) std::memcpy(to, rest.data(), taken);
  self.sent += taken;
  return taken;
}

// Returning another number than was given ends the transfer with CURLE_WRITE_ERROR.
std::size_t Http::on_write(char* from, std::size_t size, std::size_t count, void* transfer) {
  auto& self = *static_cast<Transfer*>(transfer);
  const std::size_t given = size * count;
  const long status = self.status();
  if (!self.request.into.empty() && status >= 200 && status < 300) {
    const auto rest = self.request.into.subspan(self.answer.received);
    if (given > rest.size()) return 0;
    std::memcpy(rest.data(), from, given);
    self.answer.received += given;
    return given;
  }
  if (self.answer.text.size() + given > self.request.longest_text) return 0;
  self.answer.text.append(from, given);
  return given;
}

std::size_t Http::on_header(char* from, std::size_t size, std::size_t count, void* transfer) {
  auto& answer = static_cast<Transfer*>(transfer)->answer;
  const std::string_view line(from, size * count);
  if (line.starts_with("HTTP/")) answer.headers.clear();  // those of a 100 before belong to it
  const auto colon = line.find(':');
  if (colon == std::string_view::npos || answer.headers.size() >= kMaxHeaders) return line.size();
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  const auto begin = line.find_first_not_of(" \t", colon + 1);
  const auto end = line.find_last_not_of(" \t\r\n");
  answer.headers[name] = begin == std::string_view::npos || end < begin
                             ? ""
                             : std::string(line.substr(begin, end - begin + 1));
  return line.size();
}

void Http::Shared::set_options(Transfer& transfer) const {
  CURL* const easy = transfer.easy;
  const HttpRequest& request = transfer.request;
  const bool has_body = request.method == "PUT" || request.method == "POST";
  for (const auto& [name, value] : request.headers) {
    // "Name;" is curl's way to send a header without a value.
    const std::string line = value.empty() ? name + ";" : name + ": " + value;
    transfer.headers = curl_slist_append(transfer.headers, line.c_str());
  }
  // Else curl waits a second for a "100 Continue" that many services never send.
  for (const char* line : {"Expect:", "Content-Type:", "Accept:"})
    transfer.headers = curl_slist_append(transfer.headers, line);
  curl_easy_setopt(easy, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 2L);
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  // Else who drops a request waits for the thread that looks up the name.
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
  curl_easy_setopt(easy, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  // Each request its own connection: on one shared connection parts would wait for each other.
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
  if (!options.ca_bundle.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, options.ca_bundle.c_str());
  if (options.direct) curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, milliseconds(options.connect_timeout));
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
  const Duration stall =
      request.stall_timeout > Duration::zero() ? request.stall_timeout : options.stall_timeout;
  curl_easy_setopt(
      easy, CURLOPT_LOW_SPEED_TIME,
      std::max(1L, static_cast<long>(std::chrono::ceil<std::chrono::seconds>(stall).count())));
  if (request.deadline != Time::max())
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS,
                     std::max(1L, milliseconds(request.deadline - now())));
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, kReceiveBufferBytes);
  curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, kSendBufferBytes);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer.headers);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer.problem);
  if (request.method == "HEAD") {
    curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
  } else if (has_body) {
    // No way to rewind is given: curl would send a request again by itself when a kept connection
    // has died, and nobody could tell that it was sent twice.
    curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, &Http::on_read);
    curl_easy_setopt(easy, CURLOPT_READDATA, &transfer);
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  } else {
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Http::on_write);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &Http::on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_PRIVATE, &transfer);
}

Http::Id Http::start(HttpRequest request) {
  auto transfer = std::make_unique<Transfer>();
  transfer->id = ++shared_->last_id;
  transfer->request = std::move(request);
  transfer->easy = curl_easy_init();
  SUREFOOT_CHECK(transfer->easy != nullptr);
  shared_->set_options(*transfer);
  const Id id = transfer->id;
  SUREFOOT_CHECK(curl_multi_add_handle(shared_->multi, transfer->easy) == CURLM_OK);
  shared_->transfers.emplace(id, std::move(transfer));
  return id;
}

void Http::cancel(Id id) {
  shared_->drop(id);
}

std::optional<std::pair<Http::Id, HttpAnswer>> Http::wait(Time until) {
  for (;;) {
    int running = 0;
    curl_multi_perform(shared_->multi, &running);
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(shared_->multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      Transfer* transfer = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
      const CURLcode code = message->data.result;
      HttpAnswer answer = std::move(transfer->answer);
      answer.status = static_cast<int>(transfer->status());
      answer.end = end_of(code, transfer->has_sent());
      if (code != CURLE_OK)
        answer.problem = *transfer->problem != '\0' ? transfer->problem : curl_easy_strerror(code);
      const Id id = transfer->id;
      shared_->drop(id);
      return std::pair(id, std::move(answer));
    }
    const Duration rest = until - now();
    if (rest <= Duration::zero()) return std::nullopt;
    // Woken by any socket; the longest pause is arbitrary.
    const long longest =
        std::min(milliseconds(std::min<Duration>(rest, std::chrono::seconds(1))), 1000L);
    curl_multi_poll(shared_->multi, nullptr, 0, static_cast<int>(longest), nullptr);
  }
}

HttpAnswer Http::perform(HttpRequest request) {
  SUREFOOT_CHECK(shared_->transfers.empty());
  start(std::move(request));
  for (;;) {
    if (auto done = wait(now() + std::chrono::seconds(1))) return std::move(done->second);
  }
}

}  // namespace surefoot
