// A TCP proxy before an S3 service that does to requests what networks and busy services do.
//
// Fault model: of each request (one a connection) whose first line holds `match`, the first fault
// that fits and has `times` left happens; a request without a fault passes unchanged. Threads of
// its own; what is in progress ends with the object.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/file.h"

namespace surefoot::s3 {

struct Fault {
  enum class Kind {
    kAnswer,      // answered by the proxy itself, its Date `amount` seconds ahead
    kCutRequest,  // reset after `amount` bytes of the request's body
    kCutAnswer,   // reset after `amount` bytes of the answer
    kLoseAnswer,  // the service does it; reset when it answers
    kStall,       // nothing moves any more after `amount` bytes of the request's body
    kBlackHole,   // taken, never answered
    kThrottle,    // `amount` bytes a second
    kDelay,       // passed on after `amount` milliseconds
  } kind;
  std::string match;
  int times = 1;
  std::int64_t amount = 0;
  int status = 0;
  std::string code = {};
  std::string body = {};  // empty: an error of that code, or nothing
};

class FaultProxy {
 public:
  explicit FaultProxy(int target_port);
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;
  ~FaultProxy();

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] std::string endpoint() const;
  void add(Fault fault);
  void clear();
  // Requests so far whose first line holds `match`.
  [[nodiscard]] int seen(const std::string& match);
  // The headers of these, whole, in their order.
  [[nodiscard]] std::vector<std::string> headers(const std::string& match);
  [[nodiscard]] int faults_done() const { return faults_done_; }

 private:
  struct Connection;
  void accept_all();
  void serve(Fd client);
  [[nodiscard]] bool take(const std::string& header, Fault& fault);
  void answer(int client, const Fault& fault, std::int64_t body_left) const;
  void pump(Connection& connection);
  void hold(int client) const;

  int target_port_;
  int port_ = 0;
  Fd listener_;
  std::atomic<bool> stop_{false};
  std::atomic<int> faults_done_{0};
  std::mutex mutex_;  // of the two below
  std::list<Fault> faults_;
  std::vector<std::string> headers_;
  std::list<std::thread> threads_;  // of the accepting thread until it has ended
  std::thread accepting_;
};

}  // namespace surefoot::s3
