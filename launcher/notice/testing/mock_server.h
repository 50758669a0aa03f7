// An HTTP server for tests that can also misbehave: real sockets, one thread a connection, one
// request a connection. Owned by the test; the destructor ends all threads (what a handler waits
// for, it must let go of in time).
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <thread>

#include "common/file.h"
#include "common/status.h"

namespace surefoot::notice {

struct MockRequest {
  std::string method;
  std::string path;                            // without the query
  std::string query;                           // without '?'
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};
struct MockReply {
  enum class How {
    kWhole,
    kCut,     // announces one byte more than it sends, then closes
    kSilent,  // closes without a word
  } how = How::kWhole;
  int status = 200;
  std::string body;
  std::map<std::string, std::string> headers;
};

class MockServer {
 public:
  using Handler = std::function<MockReply(const MockRequest& request)>;
  // Port 0: a free one. The handler is called on any thread.
  [[nodiscard]] static Result<std::unique_ptr<MockServer>> start(const std::string& address,
                                                                 int port, Handler handler);
  ~MockServer();
  MockServer(const MockServer&) = delete;
  MockServer& operator=(const MockServer&) = delete;
  [[nodiscard]] int port() const { return port_; }

 private:
  struct Connection {
    Fd socket;
    std::thread thread;
  };
  MockServer(Fd listener, int port, Handler handler);
  void accept_all();
  void serve(int socket);

  Fd listener_;
  int port_;
  Handler handler_;
  std::atomic<bool> stopping_{false};
  std::list<Connection> connections_;  // of the accepting thread, until that has ended
  std::thread thread_;
};

}  // namespace surefoot::notice
