// What tests of watchers share: a mock of a metadata service, a watcher that looks at it, and
// patience.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/log.h"
#include "launcher/notice/testing/mock_metadata.h"
#include "launcher/notice/watchers.h"

namespace surefoot::notice {

using namespace std::chrono_literals;

inline constexpr Duration kPatience = 30s;  // far more than anything here takes
inline constexpr Duration kLead = 45s;
inline constexpr Pace kQuick{.longest_interval = 5ms, .longest_patience = 30s};
// Where a question must end by itself. Longer than any answer takes, and than no held one.
inline constexpr Pace kImpatient{.longest_interval = 5ms, .longest_patience = 200ms};

template <class Predicate>
bool eventually(const Predicate& predicate) {
  for (const Time deadline = now() + kPatience; now() < deadline; ::usleep(2000)) {
    if (predicate()) return true;
  }
  return predicate();
}

inline sockaddr_in loopback(int port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<std::uint16_t>(port));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return name;
}

inline WallTime wall_in(Duration in) {
  return std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now() + in);
}

// A proxy that nobody must use, for all tests: threads read the environment at any time.
class Proxy final : public testing::Environment {
 public:
  void SetUp() override {
    for (const char* variable : {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"})
      ::setenv(variable, "http://127.0.0.1:1", 1);
    for (const char* variable : {"no_proxy", "NO_PROXY"}) ::unsetenv(variable);
  }
};
inline const auto* const kProxy = testing::AddGlobalTestEnvironment(new Proxy);

inline std::string name_of(SourceKind kind) {
  return config::Recovery::NoticeSource_Name(kind);
}

inline std::unique_ptr<MockMetadata> started(MockMetadata::Options options) {
  auto mock = MockMetadata::start(std::move(options));
  SUREFOOT_CHECK(mock.has_value());
  return std::move(*mock);
}

// A watcher that has ended when it is gone, and what it has said.
class Ear {
 public:
  Ear(const std::string& name, std::unique_ptr<Source> source, Pace pace = kQuick)
      : watcher_(name, std::move(source), desk_, pace) {}
  Ear(SourceKind kind, const std::string& url, Pace pace = kQuick,
      const std::string& machine = "me")
      : Ear(name_of(kind), make_source(kind, {url, kLead, "", machine}), pace) {}
  ~Ear() { stop(); }
  Ear(const Ear&) = delete;
  Ear& operator=(const Ear&) = delete;
  void stop() { watcher_.stop(now() + kPatience); }
  MachineNotices look(bool safe = false) { return desk_->look(safe, now()); }
  bool hears_of_it() {
    return eventually([&] { return look().leave.has_value(); });
  }

 private:
  std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
  Watcher watcher_;
};

// A mock, and a watcher of one kind that looks at it.
class Watched {
 public:
  explicit Watched(SourceKind kind, Pace pace = kQuick, MockMetadata::Options options = {},
                   const std::string& machine = "me")
      : mock_(started(std::move(options))), ear_(kind, mock_->url(), pace, machine) {}
  MockMetadata& mock() { return *mock_; }
  MachineNotices look(bool safe = false) { return ear_.look(safe); }
  bool hears_of_it() { return ear_.hears_of_it(); }
  // So many answers more. A held question has to be let go first.
  bool sees_answers(int count) {
    const int from = mock_->questions();
    return eventually([&] { return mock_->questions() >= from + count; });
  }
  bool sees_spoiled(int count) {
    return eventually([&] { return mock_->spoiled() >= count; });
  }

 private:
  std::unique_ptr<MockMetadata> mock_;
  Ear ear_;
};

}  // namespace surefoot::notice
