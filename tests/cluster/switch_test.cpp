#include "tests/cluster/switch.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace surefoot::cluster {
namespace {

// Sockets that keep frames apart stand in for tap devices.
class SwitchTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int port = 0; port < 3; ++port) plug(port);
  }
  void plug(int port) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    switch_.plug(port, Fd(ends[0]));
    ends_[static_cast<std::size_t>(port)] = Fd(ends[1]);
  }
  // to: a port, or -1 for everybody.
  void send(int from, int to, const std::string& text) {
    std::string frame;
    const MacAddress target = to < 0 ? MacAddress{255, 255, 255, 255, 255, 255} : mac_of(to);
    const MacAddress source = mac_of(from);
    frame.append(target.begin(), target.end());
    frame.append(source.begin(), source.end());
    frame += "\x08" + std::string(1, '\0') + text;
    ASSERT_EQ(::send(end(from), frame.data(), frame.size(), 0), static_cast<ssize_t>(frame.size()));
    switch_.forward(from, at_);
  }
  // All that has arrived, one after another.
  std::string received(int port) {
    std::string all;
    char buffer[100];
    for (ssize_t got; (got = ::recv(end(port), buffer, sizeof buffer, 0)) > 0;)
      all.append(buffer + 14, static_cast<std::size_t>(got) - 14);
    return all;
  }
  [[nodiscard]] int end(int port) const { return ends_[static_cast<std::size_t>(port)].get(); }

  Switch switch_{1};
  std::array<Fd, 3> ends_;
  Time at_ = now();
};

using std::chrono::milliseconds;

TEST_F(SwitchTest, BringsAFrameToItsAddressOnly) {
  send(0, 1, "a");
  EXPECT_EQ(received(1), "a");
  EXPECT_EQ(received(0) + received(2), "");
}

TEST_F(SwitchTest, BringsWhatIsForEverybodyToAllOthers) {
  send(0, -1, "a");
  EXPECT_EQ(received(0), "");
  EXPECT_EQ(received(1), "a");
  EXPECT_EQ(received(2), "a");
}

TEST_F(SwitchTest, LosesWhatGoesOverACutCableUntilItIsHealed) {
  switch_.cut(1, -1);
  switch_.cut(-1, 1);
  send(0, 1, "a");
  send(1, 0, "b");
  send(0, 2, "c");
  EXPECT_EQ(received(0) + received(1), "");
  EXPECT_EQ(received(2), "c");
  switch_.heal(1);
  send(0, 1, "d");
  EXPECT_EQ(received(1), "d");
}

TEST_F(SwitchTest, CutsOneDirectionBetweenTwo) {
  switch_.cut(0, 1);
  send(0, 1, "a");
  send(1, 0, "b");
  send(2, 1, "c");
  EXPECT_EQ(received(0), "b");
  EXPECT_EQ(received(1), "c");
}

TEST_F(SwitchTest, DelaysWithoutChangingTheOrder) {
  switch_.impair(1, {milliseconds(10), 0});
  send(0, 1, "a");
  send(2, 1, "b");
  EXPECT_EQ(switch_.deliver(at_ + milliseconds(9)), at_ + milliseconds(10));
  EXPECT_EQ(received(1), "");
  EXPECT_EQ(switch_.deliver(at_ + milliseconds(10)), Time::max());
  EXPECT_EQ(received(1), "ab");
}

TEST_F(SwitchTest, LosesWhatIsOnItsWayWhenTheCableGoes) {
  switch_.impair(1, {milliseconds(10), 0});
  send(0, 1, "a");
  switch_.cut(-1, 1);
  switch_.deliver(at_ + milliseconds(10));
  EXPECT_EQ(received(1), "");
}

TEST_F(SwitchTest, DropsTheShareThatWasAskedForTheSameOnesEachTime) {
  switch_.impair(1, {Duration::zero(), 0.25});
  std::string first;
  for (int i = 0; i < 400; ++i) {
    send(0, 1, std::string(1, static_cast<char>('a' + i % 26)));
    first += received(1);
  }
  EXPECT_GT(first.size(), 250u);
  EXPECT_LT(first.size(), 350u);
  switch_ = Switch(1);
  for (int port = 0; port < 3; ++port) plug(port);
  switch_.impair(1, {Duration::zero(), 0.25});
  std::string second;
  for (int i = 0; i < 400; ++i) {
    send(0, 1, std::string(1, static_cast<char>('a' + i % 26)));
    second += received(1);
  }
  EXPECT_EQ(first, second);
}

TEST_F(SwitchTest, AnUnpluggedPortGetsNothingAndDisturbsNobody) {
  switch_.unplug(1);
  send(0, 1, "a");
  send(0, -1, "b");
  switch_.forward(1, at_);
  EXPECT_EQ(received(2), "b");
}

}  // namespace
}  // namespace surefoot::cluster
