#include "configs/fault.h"

#include <gmock/gmock.h>

#include <set>

namespace surefoot {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing::SizeIs;

using Action = InjectedFault::Action;
using Target = InjectedFault::Target;

constexpr FaultContext kContext{.max_steps = 100, .workers = 4};

std::vector<InjectedFault> parse(const std::vector<std::string>& texts,
                                 const FaultContext& context = kContext) {
  Result<std::vector<InjectedFault>> faults = parse_faults(texts, context);
  EXPECT_TRUE(faults) << (faults ? "" : faults.error().message);
  return faults ? std::move(faults).value() : std::vector<InjectedFault>{};
}

TEST(Faults, AreReadByActionTargetStepAndPhase) {
  EXPECT_THAT(parse({"kill:rank=1,step=20"}),
              ElementsAre(InjectedFault{Action::kKill, Target::kRank, 1, Step{20},
                                        Phase::kForwardBackward}));
  EXPECT_THAT(
      parse({"term:all,step=2,phase=update", "stop:rank=0,phase=snapshot,step=100"}),
      ElementsAre(InjectedFault{Action::kTerm, Target::kAll, 0, Step{2}, Phase::kUpdate},
                  InjectedFault{Action::kStop, Target::kRank, 0, Step{100}, Phase::kSnapshot}));
  EXPECT_THAT(
      parse({"kill:service,step=1;kill:supervisor,step=1;kill:mpirun,step=1,phase=reduction;"}),
      SizeIs(3));
  EXPECT_THAT(parse({}), IsEmpty());
  EXPECT_THAT(parse({""}), IsEmpty());
}

TEST(Faults, AreReadBackFromTheirText) {
  const std::vector<InjectedFault> faults =
      parse({"kill:rank=3,step=20,phase=data", "term:service,step=5", "stop:mpirun,step=6",
             "random:40,seed=7"});
  std::vector<std::string> texts;
  for (const InjectedFault& fault : faults) texts.push_back(to_text(fault));
  EXPECT_EQ(parse(texts), faults);
  std::string joined;
  for (const std::string& text : texts) joined += (joined.empty() ? "" : ";") + text;
  EXPECT_EQ(parse({joined}), faults);
}

TEST(Faults, ThatAreWrongAreNamed) {
  for (const char* text : {"kil:rank=1,step=2",
                           "kill",
                           "kill:",
                           "kill:rank,step=2",
                           "kill:rank=x,step=2",
                           "kill:rank=-1,step=2",
                           "kill:rank=1",
                           "kill:rank=1,step=0",
                           "kill:rank=1,step=101",
                           "kill:rank=1,step=2,phase=sleep",
                           "kill:rank=1,step=2,phase=starting",
                           "kill:rank=1,step=2,step=3",
                           "kill:rank=1,step=2,",
                           "kill:everyone,step=2",
                           "random:0",
                           "random:257",
                           "random:99",
                           "random:5,seed=x",
                           "random:5,sed=1",
                           "random:5,seed=1,seed=2",
                           "random:",
                           "kill:rank=1,step=99999999999999999999"}) {
    const Result<std::vector<InjectedFault>> faults = parse_faults({text}, kContext);
    ASSERT_FALSE(faults) << text;
    EXPECT_EQ(faults.error().code, Code::kInvalid) << text;
    EXPECT_THAT(faults.error().message, testing::HasSubstr("allowed")) << text;
  }
}

TEST(RandomFaults, AreTheSameForASeedAndOthersForAnother) {
  EXPECT_EQ(parse({"random:20,seed=5"}), parse({"random:20,seed=5"}));
  EXPECT_EQ(parse({"random:20"}), parse({"random:20,seed=1"}));
  EXPECT_NE(parse({"random:20,seed=5"}), parse({"random:20,seed=6"}));
}

TEST(RandomFaults, FallOnStepsOfTheirOwnFromTheSecondToTheLastButOne) {
  for (const int count : {1, 20, 97, 98}) {
    for (int seed = 0; seed < 20; ++seed) {
      std::set<std::int64_t> steps;
      for (const InjectedFault& fault : parse({fmt::format("random:{},seed={}", count, seed)})) {
        steps.insert(fault.step.value);
        EXPECT_LT(fault.rank, 4);
      }
      EXPECT_EQ(steps.size(), static_cast<std::size_t>(count));
      EXPECT_GE(*steps.begin(), 2);
      EXPECT_LE(*steps.rbegin(), 99);
    }
  }
}

TEST(RandomFaults, HitEveryKindOfTargetAndEveryPhaseOfAStep) {
  const std::vector<InjectedFault> faults =
      parse({"random:256"}, {.max_steps = 1'000'000'000'000, .workers = 3});
  EXPECT_THAT(faults, Each(Field(&InjectedFault::action, Action::kKill)));
  std::set<Target> targets;
  std::set<Phase> phases;
  std::set<int> ranks;
  for (const InjectedFault& fault : faults) {
    targets.insert(fault.target);
    phases.insert(fault.phase);
    ranks.insert(fault.rank);
  }
  EXPECT_THAT(targets, ElementsAre(Target::kRank, Target::kAll, Target::kService, Target::kMpirun));
  EXPECT_THAT(phases, ElementsAre(Phase::kData, Phase::kForwardBackward, Phase::kReduction,
                                  Phase::kUpdate, Phase::kSnapshot));
  EXPECT_THAT(ranks, ElementsAre(0, 1, 2));
}

TEST(RandomFaults, NeedRoomBetweenTheFirstAndTheLastStep) {
  EXPECT_FALSE(parse_faults({"random:1"}, {.max_steps = 2, .workers = 1}));
  EXPECT_THAT(parse({"random:1"}, {.max_steps = 3, .workers = 1}), SizeIs(1));
}

}  // namespace
}  // namespace surefoot
