// One cloud's protocol: what is asked, in which order, and what the answers mean.
//
// A source has no thread, clock or socket of its own: whoever looks through it gives it an Asker.
// So the same code runs over libcurl (watcher.h) and in a test's table.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "configs/job.pb.h"
#include "launcher/notice/notice.h"

namespace surefoot::notice {

inline constexpr std::size_t kMaxAnswerBytes = 64 << 10;  // the longest list of events is shorter

struct Question {
  std::string method = "GET";
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  Duration patience = std::chrono::seconds(2);  // for all of the answer
};
struct Answer {
  int status = 0;       // 0: no whole answer within the patience, and `problem` says why
  std::string problem;  // also: more than kMaxAnswerBytes, or the watcher is to end
  std::string body;
  std::string etag;
};

class Asker {
 public:
  virtual ~Asker() = default;
  // Blocks for the question's patience at most.
  virtual Answer ask(const Question& question) = 0;
};

struct Moment {
  Time now;
  // Of this source: the notices because of which this machine was drained, once its state is safe
  // elsewhere.
  std::vector<std::string> safe_ids;
};

class Source {
 public:
  virtual ~Source() = default;
  // Asks all it has to ask, once. Never throws; what goes wrong is in the findings.
  virtual std::vector<Finding> look(Asker& asker, const Moment& moment) = 0;
  // Between two looks while all is well.
  [[nodiscard]] virtual Duration interval() const = 0;
  // Whether an event that it does not name any more was called off.
  [[nodiscard]] virtual bool cancels() const { return false; }
};

struct SourceSettings {
  std::string base;  // of the metadata service, without '/' at its end: "http://169.254.169.254"
  Duration lead = std::chrono::seconds(30);  // recovery.notice_lead
  std::string file;                          // recovery.notice_file
  std::string machine;  // the name of this machine, where the service does not tell it
};
using SourceKind = config::Recovery::NoticeSource;

// Where the metadata service of this kind is; empty: it has none.
[[nodiscard]] std::string default_base(SourceKind kind);
// Of any kind but signal and http.
[[nodiscard]] std::unique_ptr<Source> make_source(SourceKind kind, SourceSettings settings);

[[nodiscard]] std::unique_ptr<Source> make_aws(SourceSettings settings);
[[nodiscard]] std::unique_ptr<Source> make_gcp(SourceSettings settings);
[[nodiscard]] std::unique_ptr<Source> make_azure(SourceSettings settings);
[[nodiscard]] std::unique_ptr<Source> make_alibaba(SourceSettings settings);
[[nodiscard]] std::unique_ptr<Source> make_tencent(SourceSettings settings);
[[nodiscard]] std::unique_ptr<Source> make_volcengine(SourceSettings settings);
[[nodiscard]] std::unique_ptr<Source> make_file(SourceSettings settings);

}  // namespace surefoot::notice
