#include "collectives/nccl/nccl_host_id.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace surefoot {
namespace {

TEST(NcclHostId, IsLeftAloneWhereEveryRankHasADevice) {
  EXPECT_EQ(nccl_host_id({.node = 0, .local_rank = 3, .local_size = 4}, 4), std::nullopt);
  EXPECT_EQ(nccl_host_id({.node = 0, .local_rank = 0, .local_size = 1}, 8), std::nullopt);
}

TEST(NcclHostId, DiffersForAllRanksOfAllNodesWhereDevicesAreShared) {
  std::set<std::string> ids;
  for (int node = 0; node < 3; ++node) {
    for (int rank = 0; rank < 4; ++rank) {
      const auto id = nccl_host_id({.node = node, .local_rank = rank, .local_size = 4}, 2);
      ASSERT_TRUE(id.has_value());
      ids.insert(*id);
    }
  }
  EXPECT_EQ(ids.size(), 12u);
}

TEST(NcclHostId, KeepsWhatTheUserHasSet) {
  setenv("NCCL_HOSTID", "mine", 1);
  set_nccl_host_id({.node = 0, .local_rank = 1, .local_size = 2}, 1);
  EXPECT_STREQ(getenv("NCCL_HOSTID"), "mine");
  unsetenv("NCCL_HOSTID");
  set_nccl_host_id({.node = 0, .local_rank = 1, .local_size = 2}, 1);
  EXPECT_STRNE(getenv("NCCL_HOSTID"), nullptr);
  unsetenv("NCCL_HOSTID");
}

}  // namespace
}  // namespace surefoot
