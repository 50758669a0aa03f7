#include "launcher/nodes/log_mirror.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <random>

#include "common/file.h"

namespace surefoot {
namespace {

namespace fs = std::filesystem;

// A machine whose logs grow; answers as a service does, and now and then not at all.
class LogMirrorTest : public testing::Test {
 protected:
  LogMirrorTest() {
    std::string form = (fs::temp_directory_path() / "surefoot-mirror-XXXXXX").string();
    EXPECT_NE(::mkdtemp(form.data()), nullptr);
    root_ = form;
  }
  ~LogMirrorTest() override { fs::remove_all(root_); }

  Result<service::Reply> answer(const service::Request& request) {
    ++asked_;
    if (silent_) return error(Code::kRetry, "does not answer");
    const service::ReadLog& read = request.read_log();
    EXPECT_EQ(read.attempt(), 3);
    service::Reply reply;
    const std::string& log = logs_[read.rank()];
    reply.mutable_log()->set_size(static_cast<std::int64_t>(log.size()));
    if (read.offset() < static_cast<std::int64_t>(log.size()))
      reply.mutable_log()->set_text(log.substr(static_cast<std::size_t>(read.offset()),
                                               static_cast<std::size_t>(read.limit())));
    return reply;
  }
  LogMirror mirror() { return {root_ / "attempt-003", "gpu-1", Attempt{3}, {0, 1}}; }
  Result<bool> pull(LogMirror& mirror) {
    return mirror.pull([this](const service::Request& request, Time) { return answer(request); },
                       now() + std::chrono::minutes(1));
  }
  std::string here(const std::string& name) {
    auto text = read_file(root_ / "attempt-003" / name);
    return text ? *text : "";
  }

  fs::path root_;
  std::map<int, std::string> logs_;
  bool silent_ = false;
  int asked_ = 0;
};

TEST_F(LogMirrorTest, BringsWhatIsNewAndNothingTwice) {
  LogMirror first = mirror();
  EXPECT_TRUE(*pull(first));
  EXPECT_FALSE(fs::exists(root_ / "attempt-003")) << "nothing has come";
  logs_ = {{0, "a"}, {-1, "orted\n"}};
  EXPECT_TRUE(*pull(first));
  logs_[0] += "bc";
  logs_[1] = "x";
  EXPECT_TRUE(*pull(first));
  EXPECT_EQ(here("rank-0.log"), "abc");
  EXPECT_EQ(here("rank-1.log"), "x");
  EXPECT_EQ(here("daemon-gpu-1.log"), "orted\n");
  logs_[1] += "y";
  LogMirror later = mirror();  // of the next supervisor
  EXPECT_TRUE(*pull(later));
  EXPECT_EQ(here("rank-0.log"), "abc");
  EXPECT_EQ(here("rank-1.log"), "xy");
}

TEST_F(LogMirrorTest, TakesSoMuchAtOnceAndTheOthersAreNotForgotten) {
  LogMirror one = mirror();
  std::mt19937_64 random(1);
  for (const int rank : {0, 1}) {
    for (int i = 0; i < 3'000'000; ++i) logs_[rank] += static_cast<char>(random());
  }
  EXPECT_FALSE(*pull(one));
  EXPECT_EQ(here("rank-0.log").size() + here("rank-1.log").size(),
            static_cast<std::size_t>(LogMirror::kMostPerPull));
  EXPECT_TRUE(*pull(one));
  EXPECT_TRUE(here("rank-0.log") == logs_[0]);
  EXPECT_TRUE(here("rank-1.log") == logs_[1]);
}

TEST_F(LogMirrorTest, GoesOnWhereItWasAfterSilence) {
  LogMirror one = mirror();
  logs_[0] = "a";
  EXPECT_TRUE(*pull(one));
  silent_ = true;
  EXPECT_FALSE(pull(one));
  silent_ = false;
  logs_[0] += "b";
  EXPECT_TRUE(*pull(one));
  EXPECT_EQ(here("rank-0.log"), "ab");
}

TEST_F(LogMirrorTest, ALogThatIsShorterThanHereChangesNothing) {
  LogMirror one = mirror();
  logs_[0] = "abc";
  EXPECT_TRUE(*pull(one));
  logs_[0] = "x";
  EXPECT_TRUE(*pull(one));
  EXPECT_EQ(here("rank-0.log"), "abc");
}

}  // namespace
}  // namespace surefoot
