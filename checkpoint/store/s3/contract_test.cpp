// The contract suite of stores, over each S3 service there is.
#include "checkpoint/store/s3/s3_store.h"
#include "checkpoint/store/s3/testing/servers.h"
#include "checkpoint/store/store_contract.h"

namespace surefoot::testing {
namespace {

using s3::S3Server;
using s3::S3Store;

// A folder of a bucket of its own for each test.
class S3Place : public StorePlace {
 public:
  explicit S3Place(const S3Server& server) : options_(server.options(fresh_prefix())) {
    options_.part_bytes = 8 << 20;  // the least: the suite's large objects take two parts
  }
  std::unique_ptr<Store> open() override {
    return S3Store::open(options_, false, now() + std::chrono::minutes(1)).value();
  }

 private:
  static std::string fresh_prefix() {
    static int count = 0;
    return "to/job-" + std::to_string(++count);
  }
  s3::S3Options options_;
};

std::unique_ptr<S3Server> seaweedfs;
std::unique_ptr<S3Server> rclone;

class Servers : public ::testing::Environment {
 public:
  void SetUp() override {
    seaweedfs = S3Server::seaweedfs();
    rclone = S3Server::rclone();
    if (!seaweedfs || !rclone)
      GTEST_SKIP() << "weed and rclone are not installed: run tools/install_python.sh";
  }
  void TearDown() override {
    seaweedfs.reset();
    rclone.reset();
  }
};
const auto* const kServers = ::testing::AddGlobalTestEnvironment(new Servers);

INSTANTIATE_TEST_SUITE_P(
    S3, StoreContract,
    ::testing::Values(StoreFixture{.name = "SeaweedFS",
                                   .make = [] { return std::make_unique<S3Place>(*seaweedfs); },
                                   // Looks before it puts the parts together, not while it does.
                                   .one_large_winner = false},
                      // Ignores If-None-Match.
                      StoreFixture{.name = "Rclone",
                                   .make = [] { return std::make_unique<S3Place>(*rclone); },
                                   .one_winner = false,
                                   // Removes an object while it replaces it.
                                   .large_contest = false}),
    [](const auto& info) { return info.param.name; });

TEST(S3Store, FindsOutWhetherAServiceHonoursPutIfAbsent) {
  for (const auto& [server, honoured] :
       {std::pair(seaweedfs.get(), true), std::pair(rclone.get(), false)}) {
    s3::S3Options options = server->options("probe");
    options.part_bytes = 8 << 20;
    const Time later = now() + std::chrono::minutes(1);
    const auto store = S3Store::open(options, false, later).value();
    EXPECT_FALSE(store->honours_put());
    ASSERT_TRUE(put_if_absent(*store, "small", "x", later));
    ASSERT_TRUE(put_if_absent(*store, "large", std::string(9 << 20, 'x'), later));
    EXPECT_EQ(store->honours_put(), honoured);
    EXPECT_EQ(store->honours_complete(), honoured);
    EXPECT_EQ(put_if_absent(*store, "large", std::string(9 << 20, 'y'), later).error().code,
              Code::kExists);
    EXPECT_EQ(store->list("", later)->size(), 2u);
  }
}

}  // namespace
}  // namespace surefoot::testing
