// Machines that are lost, go, freeze, come back: the job goes on over those that are left, ends
// with the bits of one worker alone, and loses no finished step while one machine lives.
#include "tests/e2e/fleet.h"

namespace surefoot::e2e {
namespace {

using namespace std::chrono_literals;

TEST_F(Fleet, FourMachinesGiveTheBitsOfOneWorkerAloneAndNothingIsLeftOnThem) {
  start_job();
  expect_done_with_same_bits();
  expect_no_step_lost();
  expect_nothing_left({0, 1, 2, 3, kFront});
}

TEST_F(Fleet, AMachineIsLostWithoutAWordAndTheOthersGoOn) {
  start_job();
  reach_step(10);
  ASSERT_TRUE(host(2).kill());
  await_line("machine host2 is lost");
  await_line("back at work");
  expect_done_with_same_bits();
  expect_no_step_lost();
  expect_nothing_left({0, 1, 3, kFront});
}

}  // namespace
}  // namespace surefoot::e2e
