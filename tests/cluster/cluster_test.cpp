#include "tests/cluster/cluster.h"

#include <gtest/gtest.h>

namespace surefoot::cluster {
namespace {

class ClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cluster_unavailable(); !why.empty()) GTEST_SKIP() << why;
  }
  std::unique_ptr<Cluster> make(const ClusterOptions& options) {
    auto cluster = Cluster::start(options);
    EXPECT_TRUE(cluster) << cluster.error().message;
    return cluster ? std::move(*cluster) : nullptr;
  }
};

TEST_F(ClusterTest, HostsHaveNamesOfTheirOwnAndReachEachOtherBySsh) {
  const auto cluster = make({2, {}});
  ASSERT_TRUE(cluster);
  const CommandResult own = cluster->host(0).run({"hostname"});
  EXPECT_EQ(own.exit_code, 0) << own.output;
  EXPECT_EQ(own.output, "host0\n");
  const CommandResult other = cluster->host(0).run({"ssh", "host1", "hostname"});
  EXPECT_EQ(other.exit_code, 0) << other.output;
  EXPECT_EQ(other.output, "host1\n");
}

}  // namespace
}  // namespace surefoot::cluster
