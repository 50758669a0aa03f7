// Notices of every cloud, by services that speak its protocol at its own address on one host of a
// test cluster, and of no other: the job leaves each machine in turn.
#include <array>

#include "common/file.h"
#include "tests/e2e/fleet.h"

namespace surefoot::e2e {
namespace {

struct Cloud {
  const char* name;
  const char* address;
};

class Clouds : public Fleet {
 protected:
  // host0..host2 are machines of these clouds, host3 is none's.
  void leave_one_after_the_other(const std::array<Cloud, 3>& clouds) {
    std::vector<cluster::Running> services;
    std::string sources;
    for (int number = 0; number < 3; ++number) {
      const Cloud& cloud = clouds[static_cast<std::size_t>(number)];
      ASSERT_TRUE(host(number).add_address(cloud.address));
      auto service = host(number).start({program("surefoot-mock-metadata").string(), "--address",
                                         cloud.address, "--port", "80", "--when", "/run/leave"},
                                        {});
      ASSERT_TRUE(service) << service.error().message;
      services.push_back(std::move(*service));
      sources += fmt::format("{}{}", sources.empty() ? "" : ", ", cloud.name);
    }
    // tencent is asked by name.
    start_job({"--set", "recovery.notices=[" + sources + "]", "--set",
               "recovery.notice_endpoints=[\"tencent=http://100.88.222.5\"]", "--set",
               "train.max_steps=150"});
    reach_step(5);
    for (int number = 0; number < 3; ++number) {
      ASSERT_EQ(host(number).run({"sh", "-c", "echo 90 > /run/leave"}).exit_code, 0);
      await_line(fmt::format("machine host{} goes", number));
      await_line(fmt::format("attempt {}: starting", number + 2));
      ASSERT_TRUE(host(number).kill());
    }
    expect_done_with_same_bits();
    expect_no_step_lost();
  }
};

TEST_F(Clouds, AwsGcpAndAzureAreHeard) {
  leave_one_after_the_other(
      {{{"aws", "169.254.169.254"}, {"gcp", "169.254.169.254"}, {"azure", "169.254.169.254"}}});
}

TEST_F(Clouds, AlibabaTencentAndVolcengineAreHeard) {
  leave_one_after_the_other({{{"alibaba", "100.100.100.200"},
                              {"tencent", "100.88.222.5"},
                              {"volcengine", "100.96.0.96"}}});
}

}  // namespace
}  // namespace surefoot::e2e
