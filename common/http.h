// HTTP over libcurl: several requests at once, driven by whoever waits.
//
// One thread per object; no thread of its own, so transfers move only while wait() runs (and as far
// as the kernel's buffers go). Certificates are checked; redirects are not followed, so credentials
// go to no other host; nothing is ever logged. cancel() and the destructor drop what is in flight
// and do not wait, also not for a name server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace surefoot {

inline constexpr std::size_t kMaxHttpText = 8 << 20;

struct HttpOptions {
  Duration connect_timeout = std::chrono::seconds(10);
  // Less than a byte a second for so long; found out some seconds later, since curl averages.
  Duration stall_timeout = std::chrono::seconds(30);
  std::string ca_bundle;  // file; empty: the system's
  bool direct = false;    // past any proxy of the environment
};

struct HttpRequest {
  std::string method;
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  std::span<const std::byte> body;  // both stay valid until the request is finished or cancelled
  std::span<std::byte> into;        // where the body of a 2xx goes; empty: into the answer's text
  Time deadline = Time::max();
  Duration stall_timeout{};                 // 0: that of HttpOptions
  std::size_t longest_text = kMaxHttpText;  // of the answer; a longer one is nonsense
};

struct HttpAnswer {
  enum class End {
    kAnswered,    // the service gave a whole answer
    kNotReached,  // no connection was made: nothing can have happened
    kBroken,      // the connection broke before the answer was whole
    kTimedOut,    // nothing moved for too long, or it took too long in all
    kUntrusted,   // the certificate is not one to trust
    kNonsense,    // an answer, but none that fits, such as one that does not end
  } end = End::kAnswered;
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string text;                            // longest_text at most
  std::size_t received = 0;                    // bytes put into `into`
  std::string problem;                         // in words, where `end` is not kAnswered

  // Empty: there is none of that name.
  [[nodiscard]] std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

class Http {
 public:
  using Id = std::int64_t;

  explicit Http(HttpOptions options);
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;
  ~Http();

  Id start(HttpRequest request);
  void cancel(Id id);
  // Moves all transfers until one is finished or it is `until`.
  std::optional<std::pair<Id, HttpAnswer>> wait(Time until);
  // Start, and wait for just this one; for a class of its own that has nothing else in flight.
  HttpAnswer perform(HttpRequest request);

 private:
  struct Transfer;
  struct Shared;
  static std::size_t on_read(char* to, std::size_t size, std::size_t count, void* transfer);
  static std::size_t on_write(char* from, std::size_t size, std::size_t count, void* transfer);
  static std::size_t on_header(char* from, std::size_t size, std::size_t count, void* transfer);

  std::unique_ptr<Shared> shared_;
};

}  // namespace surefoot
