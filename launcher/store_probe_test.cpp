#include "launcher/store_probe.h"

#include <gtest/gtest.h>

#include <thread>

#include "checkpoint/testing/temporary_folder.h"
#include "common/file.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;

class Probe : public ::testing::Test {
 protected:
  testing::TemporaryFolder folder_;
  std::filesystem::path note_ = folder_.path() / "probe";
  StoreProbe probe_{note_, "0123456789abcdef"};
};

TEST_F(Probe, IsPutByOneAndLookedForByTheOthersWhoWaitMeanwhile) {
  EXPECT_EQ(probe_.part(now()).value(), StoreProbe::Part::kPut);
  std::jthread other([this] {
    const auto part = probe_.part(now() + 20s);
    EXPECT_TRUE(part && *part == StoreProbe::Part::kFind);
  });
  probe_.put_by("a");
  other.join();
  EXPECT_EQ(probe_.putter(), "a");
}

TEST_F(Probe, IsPutByAnotherOneWhereTheFirstCannot) {
  EXPECT_EQ(probe_.part(now()).value(), StoreProbe::Part::kPut);
  EXPECT_EQ(probe_.part(now() + 1ms).error().code, Code::kRetry) << "the first is still at it";
  probe_.put_by("");
  EXPECT_EQ(probe_.part(now()).value(), StoreProbe::Part::kPut);
}

TEST_F(Probe, IsTakenAwayOnceAndOnlyWhereItIs) {
  EXPECT_FALSE(probe_.take());
  (void)probe_.part(now());
  probe_.put_by("a");
  EXPECT_TRUE(probe_.take());
  EXPECT_FALSE(probe_.take());
  EXPECT_FALSE(std::filesystem::exists(note_));
}

TEST_F(Probe, HasAnotherNameForEachSupervisorAndKnowsTheOneThatWasLeft) {
  EXPECT_EQ(probe_.old_name(), "");
  (void)probe_.part(now());
  probe_.put_by("a");
  const StoreProbe next{note_, "0123456789abcdef"};
  EXPECT_NE(next.name(), probe_.name());
  EXPECT_EQ(next.old_name(), probe_.name());
}

}  // namespace
}  // namespace surefoot
