// A metadata service for tests that speaks the protocols of all clouds at once (their paths
// differ), says when this machine goes, and misbehaves when it is told to. Also a program:
// mock_main.cpp.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "launcher/notice/notice.h"
#include "launcher/notice/testing/mock_server.h"

namespace surefoot::notice {

// What is wrong with each answer while it is set.
enum class Spoiled {
  kNot,
  kUnauthorized,  // 401
  kForbidden,     // 403
  kBroken,        // 500
  kBusy,          // 503
  kRedirected,    // 302 to `redirect`
  kHtml,          // 200 with a page of HTML
  kEmpty,         // 200 without a body
  kHuge,          // 200 with 1 MiB
  kCut,           // less than was announced
  kSilent,        // the connection is closed
  kHanging,       // no answer until it is set to something else
  kNoTime,        // an event whose time is none; of gcp neither TRUE nor FALSE
};

class MockMetadata {
 public:
  struct Options {
    std::string address = "127.0.0.1";
    int port = 0;
    bool tokens = true;               // aws and alibaba: wants them; else there is no such question
    std::string machine = "me";       // the name of this machine in azure
    std::string redirect;             // where Spoiled::kRedirected points
    Spoiled spoiled = Spoiled::kNot;  // from its first answer on
  };
  [[nodiscard]] static Result<std::unique_ptr<MockMetadata>> start(Options options);
  ~MockMetadata();

  [[nodiscard]] int port() const { return server_->port(); }
  [[nodiscard]] std::string url() const;

  // The machine goes at that time.
  void announce(WallTime at);
  // ... so long after each question: what some mock servers of other people do.
  void announce_rolling(Duration in);
  void call_off();
  // Events of these kinds, in their clouds' own words: a body as it is answered. Empty: none.
  void set_aws_rebalance(const std::string& body);
  void set_aws_maintenance(const std::string& body);
  void set_gcp_maintenance(const std::string& body);
  void set_azure_events(const std::string& events);  // what stands in "Events": [...]
  void spoil(Spoiled how);
  // The tokens that were given out are worth nothing any more.
  void expire_tokens();

  // So far. Tokens asked for do not count as questions.
  [[nodiscard]] int questions() const;
  [[nodiscard]] int spoiled() const;  // answers
  [[nodiscard]] int tokens_given() const;
  [[nodiscard]] std::vector<std::string> approved() const;  // EventIds

 private:
  explicit MockMetadata(Options options) : options_(std::move(options)), spoil_(options_.spoiled) {}
  MockReply answer(const MockRequest& request);
  std::optional<MockReply> spoil_answer(const MockRequest& request,
                                        std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::optional<WallTime> when() const;
  [[nodiscard]] bool may_ask(const MockRequest& request, const char* header) const;
  MockReply give_token(const MockRequest& request, const char* ttl_header);
  MockReply answer_path(const MockRequest& request, std::unique_lock<std::mutex>& lock);
  MockReply answer_aws(const MockRequest& request) const;
  MockReply answer_gcp(const MockRequest& request, std::unique_lock<std::mutex>& lock);
  MockReply answer_azure(const MockRequest& request);
  [[nodiscard]] std::string azure_events() const;
  void change();

  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int version_ = 0;  // of what is announced
  bool stopping_ = false;
  std::optional<WallTime> at_;
  std::optional<Duration> rolling_;
  std::string rebalance_;
  std::string aws_maintenance_;
  std::string gcp_maintenance_;
  std::string azure_events_;
  Spoiled spoil_;
  int token_ = 1;
  int questions_ = 0;
  int spoiled_ = 0;
  int tokens_given_ = 0;
  std::vector<std::string> approved_;
  std::unique_ptr<MockServer> server_;
};

}  // namespace surefoot::notice
