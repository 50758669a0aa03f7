// What a watch makes of a service that is not there; of one that is: driver_test.cpp.
#include "launcher/service_watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include "common/process.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
constexpr Duration kPatience = 30s;

class Watch : public testing::Test {
 protected:
  // What is reported first.
  std::string first_report(std::int32_t pid, Duration silence) {
    watch_.watch(ServiceAddress("/nowhere"), silence, pid);
    for (const Time late = now() + kPatience; said_.empty() && now() < late;) {
      pollfd one{inbox_->event_fd(), POLLIN, 0};
      ::poll(&one, 1, 100);
      for (const Inbox::Item& item : inbox_->take()) item();
    }
    return std::exchange(said_, "");
  }

  std::string said_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  ServiceWatch watch_{
      inbox_,
      "0123456789abcdef",
      {[this](const service::StatusReply&, Time) { said_ = "status"; }, [this] { said_ = "gone"; },
       [this](const std::string&) { said_ = "silent"; }}};
};

TEST_F(Watch, AServiceThatHasEndedBeforeTheFirstLookIsGone) {
  const auto child = spawn({.argv = {"true"}});
  ASSERT_TRUE(child);
  while (!poll_exit(*child)) continue;
  EXPECT_EQ(first_report(child->pid, 1h), "gone");
}

TEST_F(Watch, AServiceThatEndsMeanwhileIsGoneAndOneThatSaysNothingIsSilent) {
  const auto child = spawn({.argv = {"sleep", "1000"}});
  ASSERT_TRUE(child);
  EXPECT_EQ(first_report(child->pid, 1ms), "silent");
  ASSERT_TRUE(end_processes({*child}, now() + kPatience));
  EXPECT_EQ(first_report(child->pid, 1h), "gone") << "nobody has reaped it yet";
  EXPECT_TRUE(poll_exit(*child));
}

}  // namespace
}  // namespace surefoot
