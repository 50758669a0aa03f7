#include "collectives/watchdog.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace surefoot {
namespace {

TEST(WatchdogDeathTest, EndsAProcessWhoseCallDoesNotReturnAndSaysWhichCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Watchdog watchdog("MPI_Finalize", now() + std::chrono::milliseconds(10), 76);
        while (true) pause();
      },
      ::testing::ExitedWithCode(76), "MPI_Finalize");
}

TEST(Watchdog, LeavesAProcessAloneWhoseCallReturns) {
  for (int i = 0; i < 100; ++i)
    const Watchdog watchdog("a call", now() + std::chrono::hours(1), 76);
}

}  // namespace
}  // namespace surefoot
