#include "configs/machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace surefoot {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

HostSpec host(const std::string& name, int slots = 0) {
  return {name, slots};
}

TEST(Hosts, AreNamesAsSshTakesThemWithOrWithoutSlots) {
  const std::pair<const char*, HostSpec> cases[] = {
      {"a", host("a")},
      {" gpu-1.example.com:4 ", host("gpu-1.example.com", 4)},
      {"me@10.0.0.5:256", host("me@10.0.0.5", 256)},
      {"fd00::5", host("fd00::5")},
      {"[fd00::5]:2", host("fd00::5", 2)},
      {"me@[fd00::5]", host("me@fd00::5")},
  };
  for (const auto& [text, expected] : cases) {
    const auto parsed = parse_host(text);
    ASSERT_TRUE(parsed) << text << ": " << parsed.error().message;
    EXPECT_EQ(*parsed, expected) << text;
  }
}

TEST(Hosts, AreRefusedWhenSshOrAShellCouldTakeThemForSomethingElse) {
  for (const char* text : {"",           " ",     "-oProxyCommand=x",
                           "a b",        "a;b",   "$(a)",
                           "a\nb",       "a:0",   "a:257",
                           "a:x",        "a:",    ":2",
                           "@a",         "a@",    "-l@a",
                           "a@-b",       "[a]",   "[fd00::5",
                           "[fd00::5]x", "a:1:2", "a'b",
                           "a=2"}) {
    const auto parsed = parse_host(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr("allowed is NAME"));
  }
}

TEST(Hosts, NamedTwiceHaveTheSumOfTheirSlots) {
  EXPECT_THAT(*parse_hosts({"b", "a:2", "b", "a:3", "b:4", "c"}),
              ElementsAre(host("b", 6), host("a", 5), host("c")));
  EXPECT_EQ(parse_hosts({"a:200", "a:57"}).error().message,
            "found 257 slots of a in all, allowed are at most 256");
}

TEST(Hostfile, IsReadAsOpenMpiAndDeepSpeedWriteIt) {
  const auto hosts = parse_hostfile(
      "# ours\r\n"
      "\n"
      "node-1 slots=4\n"
      "  node-2\tslots = 8 max_slots=6  # small\n"
      "me@node-3 max-slots=2\n"
      "node-4\n"
      "node-1 slots=2\n"
      "node-5\n"
      "node-5");
  ASSERT_TRUE(hosts) << hosts.error().message;
  EXPECT_THAT(*hosts, ElementsAre(host("node-1", 6), host("node-2", 6), host("me@node-3", 2),
                                  host("node-4"), host("node-5", 2)));
  EXPECT_TRUE(parse_hostfile("")->empty());
}

TEST(Hostfile, NamesTheLineThatIsWrong) {
  EXPECT_THAT(parse_hostfile("a\n\nb slots=x\n").error().message,
              HasSubstr("line 3: found \"slots=x\", allowed after the name are slots=N"));
  EXPECT_THAT(parse_hostfile("a gpus=2").error().message, HasSubstr("line 1: found \"gpus=2\""));
  EXPECT_THAT(parse_hostfile("a\n^b").error().message, HasSubstr("line 2: found \"^b\""));
}

TEST(DiscoveryOutput, HasAHostALineWithOrWithoutSlots) {
  EXPECT_THAT(*parse_discovery("a:4\nb\n\n# gone: c\n"), ElementsAre(host("a", 4), host("b")));
  EXPECT_THAT(parse_discovery("a:4\nTraceback (most recent call last):\n").error().message,
              HasSubstr("line 2: found \"Traceback"));
}

TEST(HostLists, OfArbitraryBytesAreReadOrRefused) {
  std::mt19937_64 random(1);
  const std::string letters = "ab:@[]=# \n\t-.0129\\\"'\xff";
  int good = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (std::uint64_t n = random() % 30; n > 0; --n) text += letters[random() % letters.size()];
    for (const auto& parsed : {parse_hostfile(text), parse_discovery(text)}) {
      if (!parsed) continue;
      for (const HostSpec& found : *parsed) {
        ++good;
        EXPECT_EQ(found.name.find_first_of(" \n\t'\"\\=#"), std::string::npos) << found.name;
        EXPECT_NE(found.name.front(), '-');
        EXPECT_LE(found.slots, kMaxSlots);
      }
    }
  }
  EXPECT_GT(good, 1000);
}

TEST(Networks, AreACidrOrAnInterface) {
  EXPECT_EQ(parse_network("eth0")->interface, "eth0");
  EXPECT_EQ(parse_network("10.0.0.0/16")->prefix, 16);
  for (const char* text : {"", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/0", "10.0.0/8", "a b", "/8",
                           "fd00::/129", "a-very-long-interface", "-eth0"})
    EXPECT_FALSE(parse_network(text)) << text;
}

TEST(Networks, ContainTheAddressesThatShareTheirFirstBits) {
  const Network network = *parse_network("10.77.128.0/17");
  EXPECT_TRUE(contains(network, "10.77.128.1"));
  EXPECT_TRUE(contains(network, "10.77.255.255"));
  EXPECT_FALSE(contains(network, "10.77.127.255"));
  EXPECT_FALSE(contains(network, "fd00::1"));
  EXPECT_FALSE(contains(network, "host"));
  EXPECT_TRUE(contains(*parse_network("fd00::/8"), "fdff::1"));
}

TEST(Ports, AreARangeOfAtLeastEight) {
  EXPECT_EQ(parse_ports("4000-4007")->count(), 8);
  for (const char* text : {"", "4000", "4000-", "-4000", "4000-4006", "4010-4000", "80-4000",
                           "4000-70000", "4000-4010x"})
    EXPECT_FALSE(parse_ports(text)) << text;
}

TEST(NcclInterfaces, AreThoseInTheNetworkOfTheJob) {
  const std::vector<InterfaceAddress> own = {{"lo", "127.0.0.1"},
                                             {"docker0", "172.17.0.1"},
                                             {"eth0", "10.0.0.5"},
                                             {"eth0", "fe80::1"},
                                             {"eth1", "10.0.1.5"}};
  EXPECT_EQ(nccl_interfaces("10.0.0.0/24", own), "=eth0");
  EXPECT_EQ(nccl_interfaces("10.0.0.0/16", own), "=eth0,eth1");
  EXPECT_EQ(nccl_interfaces("eth1", own), "=eth1");
  EXPECT_EQ(nccl_interfaces("192.168.0.0/16", own), "");
  EXPECT_EQ(nccl_interfaces("", own), "") << "one machine";
}

}  // namespace
}  // namespace surefoot
