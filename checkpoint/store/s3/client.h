// Signed requests to one bucket, several at once, each tried again as retry.h says.
//
// One thread per object. A request's buffers stay valid until it is finished or cancelled. Messages
// name what was to be done, the object, the host and the service's own words; never a credential.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/store/s3/address.h"
#include "checkpoint/store/s3/credentials.h"
#include "checkpoint/store/s3/retry.h"
#include "common/clock.h"
#include "common/http.h"
#include "common/status.h"

namespace surefoot::s3 {

struct ClientOptions {
  std::string region;
  CredentialOptions credentials;
  HttpOptions http;
  Duration try_timeout = std::chrono::minutes(5);  // longest time of one try, whatever moves
  int tries = 8;
  std::uint64_t seed = std::random_device{}();  // of the pauses
};

struct Request {
  std::string method;
  std::string key;  // whole, from the bucket on; empty: the bucket itself
  Pairs query;
  Pairs headers;  // besides host, time and digest of the body
  std::span<const std::byte> body;
  std::span<std::byte> into;  // where the body of a good answer goes; empty: into its text
  std::string what;           // for messages: "write", "read"
  Time deadline = Time::max();
  std::string etag;  // hex; the answer's must be this one, where it is an MD5: else tried again
  std::string root;  // of a POST: the outermost element of a good answer; empty: whatever it is
  Duration stall_timeout{};  // 0: that of HttpOptions
};

// How a request ended.
struct Finished {
  std::int64_t id = 0;
  Result<HttpAnswer> answer = error(Code::kRetry, "not finished");
  int status = 0;    // of the last answer; 0: there was none
  std::string code;  // of the last answer's error; empty: it had none
  // It failed, but this or an earlier try may have done what was asked for, or still may.
  bool may_have_happened = false;
};

class Client {
 public:
  using Id = std::int64_t;

  Client(Address address, ClientOptions options);

  Id start(Request request);
  // The first of these that is finished. Blocks until then: each has a deadline or a last try.
  Finished wait_any(std::span<const Id> ids);
  Finished perform(Request request);
  void cancel(Id id);

  [[nodiscard]] const Address& address() const { return address_; }

 private:
  struct Call {
    Request request;
    std::string payload_sha256;
    Tries tries;
    Time not_before{};  // of the next try
    Http::Id transfer = 0;
    bool may_have_happened = false;
  };
  // Starts the tries whose pause is over. Returns when the next one will be.
  Time start_due();
  void start_try(Id id, Call& call);
  void settle(Id id, Call& call, HttpAnswer answer);
  void settle(Id id, Call& call, const Outcome& outcome, HttpAnswer answer);
  void finish(Id id, Call& call, Result<HttpAnswer> answer, const Outcome& last);
  [[nodiscard]] std::int64_t now_s() const;
  [[nodiscard]] Error about(const Request& request, Code code, const std::string& reason) const;

  Address address_;
  ClientOptions options_;
  CredentialSource credentials_;
  Http http_;
  std::mt19937_64 random_;
  std::int64_t clock_offset_s_ = 0;  // the service's clock less ours, where ours is far off
  Id last_id_ = 0;
  std::map<Id, Call> calls_;
  std::map<Id, Finished> finished_;
};

}  // namespace surefoot::s3
