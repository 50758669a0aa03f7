// Fifty events in a random order, by a seed: machines are lost, one or two at once, are told to go,
// are cut off, freeze, reboot, come back; services and the supervisor are killed.
//
//   fleet_storm_test --seed=N --events=N
#include <random>
#include <thread>

#include "tests/e2e/fleet.h"

namespace surefoot::e2e {
namespace {

using namespace std::chrono_literals;

std::uint64_t g_seed = 1;
int g_events = 50;

enum class Kind {
  kLose,
  kLoseTwo,
  kNotice,
  kCutBriefly,
  kCut,
  kFreeze,
  kReboot,
  kService,
  kSupervisor,
  kCount
};
constexpr const char* kNames[] = {"lose",   "lose two", "notice",  "cut briefly", "cut",
                                  "freeze", "reboot",   "service", "supervisor"};

class Storm : public Fleet {
 protected:
  enum class Condition { kWell, kDown, kCut, kFrozen, kGoing };

  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

  int well() const {
    int count = 0;
    for (const Condition condition : conditions_) count += condition == Condition::kWell ? 1 : 0;
    return count;
  }
  // One of those that are well; -1: it is the last, which is spared: no finished step may be lost.
  int victim() {
    if (well() < 2) return -1;
    for (;;) {
      const int number = below(kNodes);
      if (conditions_[number] == Condition::kWell) return number;
    }
  }
  void heal(int number) {
    switch (conditions_[number]) {
      case Condition::kWell:
        return;
      case Condition::kDown:
      case Condition::kGoing:
        ASSERT_TRUE(host(number).reboot());
        break;
      case Condition::kCut:
        ASSERT_TRUE(host(number).heal());
        break;
      case Condition::kFrozen:
        ASSERT_TRUE(host(number).thaw());
        break;
    }
    conditions_[number] = Condition::kWell;
    since_[number] = now();
  }
  // A machine that has just come back holds nothing yet: as long as no other one is in use it is
  // not counted on.
  void strike(Kind kind);

  std::mt19937_64 random_{g_seed};
  std::vector<Condition> conditions_ = std::vector<Condition>(kNodes, Condition::kWell);
  std::vector<Time> since_ = std::vector<Time>(kNodes);
};

void Storm::strike(Kind kind) {
  const int number = victim();
  if (kind == Kind::kSupervisor) {
    const std::string lock = (sandbox_->directory() / "supervisor.lock").string();
    (void)host(kFront).run({"sh", "-c", "kill -9 $(cat " + lock + ")"});
    std::this_thread::sleep_for(std::chrono::milliseconds(below(1500)));
    return resume_job();
  }
  if (kind == Kind::kService) {
    for (int any = 0; any < kNodes; ++any) {
      if (conditions_[any] != Condition::kWell) continue;
      (void)host(any).run({"sh", "-c",
                           "for p in /proc/[0-9]*; do [ \"$(cat $p/comm)\" = surefoot-node ] && "
                           "kill -9 ${p#/proc/}; done; true"});
      return;
    }
  }
  if (number < 0) return;
  switch (kind) {
    case Kind::kLoseTwo:
      if (const int other = well() > 2 ? (number + 1) % kNodes : -1;
          other >= 0 && conditions_[other] == Condition::kWell) {
        ASSERT_TRUE(host(other).kill());
        conditions_[other] = Condition::kDown;
      }
      [[fallthrough]];
    case Kind::kLose:
      ASSERT_TRUE(host(number).kill());
      conditions_[number] = Condition::kDown;
      return;
    case Kind::kNotice:
      ASSERT_EQ(host(number).run({"sh", "-c", "echo 20 > /run/goes"}).exit_code, 0);
      conditions_[number] = Condition::kGoing;
      return;
    case Kind::kCutBriefly:
      ASSERT_TRUE(host(number).cut());
      std::this_thread::sleep_for(700ms);
      ASSERT_TRUE(host(number).heal());
      return;
    case Kind::kCut:
      ASSERT_TRUE(host(number).cut());
      conditions_[number] = Condition::kCut;
      return;
    case Kind::kFreeze:
      ASSERT_TRUE(host(number).freeze());
      conditions_[number] = Condition::kFrozen;
      return;
    case Kind::kReboot:
      ASSERT_TRUE(host(number).reboot());
      return;
    default:
      return;
  }
}

TEST_F(Storm, EndsWithTheBitsOfOneWorkerAlone) {
  std::printf("seed %llu, %d events\n", static_cast<unsigned long long>(g_seed), g_events);
  start_job({"--set", "train.max_steps=600", "--set", "recovery.heartbeat_timeout=1500ms", "--set",
             "recovery.notices=[file]", "--set", "recovery.notice_file=/run/goes", "--set",
             "recovery.max_failures=20"});
  reach_step(5);
  int done = 0;
  for (int event = 0; event < g_events; ++event) {
    ASSERT_LT(sandbox_->newest_step(), 600) << "the job was over after " << done << " events";
    const int hurt = below(kNodes);
    const bool heals = conditions_[hurt] != Condition::kWell && below(2) == 0;
    const auto kind = static_cast<Kind>(below(static_cast<int>(Kind::kCount)));
    std::printf("%s host%d\n", heals ? "heal" : kNames[static_cast<int>(kind)], hurt);
    heals ? heal(hurt) : strike(kind);
    if (HasFatalFailure()) return;
    ++done;
    std::this_thread::sleep_for(std::chrono::milliseconds(below(3000)));
  }
  for (int number = 0; number < kNodes; ++number) heal(number);
  expect_done_with_same_bits(std::chrono::minutes(6));
  expect_nothing_left({0, 1, 2, 3, kFront});
}

}  // namespace
}  // namespace surefoot::e2e

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--seed="))
      surefoot::e2e::g_seed = std::strtoull(argv[i] + 7, nullptr, 10);
    if (argument.starts_with("--events=")) surefoot::e2e::g_events = std::atoi(argv[i] + 9);
  }
  return RUN_ALL_TESTS();
}
