#include "launcher/flushing.h"

#include <gtest/gtest.h>

#include <vector>

namespace surefoot {
namespace {

Flushed stores(std::int64_t step) {
  return {Step{step}, {}};
}
Flushed fails_at(std::int64_t step) {
  return {Step{step}, error(Code::kRetry, "the store is full")};
}
Flushed is_away() {
  return {.stored = error(Code::kRetry, "b is lost")};
}

std::string failure_of(const std::vector<Flushed>& machines) {
  Flushing flushing;
  for (const Flushed& machine : machines) flushing.note(machine);
  return flushing.failure();
}

TEST(Flushing, IsDoneWhenNobodyThatFailedMayHoldANewerStep) {
  EXPECT_EQ(failure_of({stores(7)}), "");
  EXPECT_EQ(failure_of({stores(7), stores(5)}), "");
  EXPECT_EQ(failure_of({fails_at(5), stores(7)}), "");
  EXPECT_EQ(failure_of({fails_at(7), stores(7)}), "");
  EXPECT_EQ(failure_of({stores(-1)}), "") << "nobody holds anything";
}

TEST(Flushing, SaysWhyTheNewestMayNotBeStored) {
  EXPECT_EQ(failure_of({fails_at(7), stores(5)}), "the store is full");
  EXPECT_EQ(failure_of({stores(7), is_away()}), "b is lost") << "what it holds is not known";
  EXPECT_EQ(failure_of({is_away(), fails_at(7)}), "b is lost");
}

TEST(Flushing, TellsTheNextMachineWhatIsStored) {
  Flushing flushing;
  EXPECT_EQ(flushing.stored(), Step{-1});
  flushing.note(stores(7));
  flushing.note(fails_at(9));
  EXPECT_EQ(flushing.stored(), Step{7});
}

}  // namespace
}  // namespace surefoot
