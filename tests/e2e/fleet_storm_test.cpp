// Fifty events in a random order, by a seed: machines are lost, one or two at once, are told to go,
// are cut off, freeze, reboot, come back; services and the supervisor are killed.
//
//   fleet_storm_test --seed=N --events=N
//
// At each moment one machine that holds the newest finished step is spared, so none may be lost.
// Also a program that hosts run: `fleet_storm_test --newest FOLDER` prints the newest step there.
#include <algorithm>
#include <random>
#include <thread>

#include "checkpoint/arena.h"
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

  Storm() { pace_ = 2ms; }

  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

  // The newest READY step of a machine that is well; -1: none, or it is not.
  std::int64_t newest_on(int number) {
    if (conditions_[number] != Condition::kWell) return -1;
    const auto looked = host(number).run(
        {program("fleet_storm_test").string(), "--newest", sandbox_->arena().string()});
    return looked.exit_code == 0 ? std::atoll(looked.output.c_str()) : -1;
  }
  // Machines that may be taken now, at most `count` of them, in a random order.
  std::vector<int> victims(int count) {
    std::vector<std::int64_t> newest(kNodes);
    for (int number = 0; number < kNodes; ++number) newest[number] = newest_on(number);
    // Machines of a gang are at the same step or one behind.
    const std::int64_t top = *std::max_element(newest.begin(), newest.end());
    std::vector<int> holders;
    std::vector<int> others;
    for (int number = 0; number < kNodes; ++number) {
      if (conditions_[number] != Condition::kWell) continue;
      (newest[number] >= 0 && newest[number] >= top - 1 ? holders : others).push_back(number);
    }
    std::shuffle(holders.begin(), holders.end(), random_);
    if (!holders.empty()) holders.pop_back();  // spared
    holders.insert(holders.end(), others.begin(), others.end());
    std::shuffle(holders.begin(), holders.end(), random_);
    holders.resize(std::min(holders.size(), static_cast<std::size_t>(count)));
    return holders;
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
  }
  // `machine`: for what needs no victim that may be spared.
  void strike(Kind kind, int machine);

  std::mt19937_64 random_{g_seed};
  std::vector<Condition> conditions_ = std::vector<Condition>(kNodes, Condition::kWell);
};

void Storm::strike(Kind kind, int machine) {
  std::printf("%s", kNames[static_cast<int>(kind)]);
  if (kind == Kind::kSupervisor) {
    const std::string lock = (sandbox_->directory() / "supervisor.lock").string();
    std::printf("\n");
    (void)host(kFront).run({"sh", "-c", "kill -9 $(cat " + lock + ")"});
    std::this_thread::sleep_for(std::chrono::milliseconds(below(1500)));
    return resume_job();
  }
  if (kind == Kind::kService) {
    const bool well = conditions_[machine] == Condition::kWell;
    std::printf(well ? " host%d\n" : " (host%d is not well)\n", machine);
    if (!well) return;
    (void)host(machine).run({"sh", "-c",
                             "for p in /proc/[0-9]*; do [ \"$(cat $p/comm)\" = surefoot-node ] && "
                             "kill -9 ${p#/proc/}; done; true"});
    return;
  }
  const std::vector<int> chosen = victims(kind == Kind::kLoseTwo ? 2 : 1);
  for (const int victim : chosen) std::printf(" host%d", victim);
  std::printf(chosen.empty() ? " (none may be taken)\n" : "\n");
  if (chosen.empty()) return;
  const int number = chosen.front();
  switch (kind) {
    case Kind::kLoseTwo:
      if (chosen.size() == 2) {
        ASSERT_TRUE(host(chosen[1]).kill());
        conditions_[chosen[1]] = Condition::kDown;
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
  // Small, so that a step takes as long on one machine as on four: the job must outlast the storm.
  model_ = "{kind: mlp, hidden: [64, 64], dropout: 0.1}";
  start_job({"--set", "train.max_steps=6000", "--set", "recovery.heartbeat_timeout=1500ms", "--set",
             "recovery.notices=[file]", "--set", "recovery.notice_file=/run/goes", "--set",
             "recovery.max_failures=20"});
  reach_step(5);
  int done = 0;
  for (int event = 0; event < g_events; ++event) {
    ASSERT_LT(sandbox_->newest_step(), steps_) << "the job was over after " << done << " events";
    const int hurt = below(kNodes);
    const bool heals = conditions_[hurt] != Condition::kWell && below(2) == 0;
    const auto kind = static_cast<Kind>(below(static_cast<int>(Kind::kCount)));
    if (heals) {
      std::printf("heal host%d\n", hurt);
      heal(hurt);
    } else {
      strike(kind, hurt);
    }
    if (HasFatalFailure()) return;
    ++done;
    std::this_thread::sleep_for(std::chrono::milliseconds(below(1200)));
  }
  for (int number = 0; number < kNodes; ++number) heal(number);
  expect_done_with_same_bits(std::chrono::minutes(10));
  expect_said("steps lost    0");
  expect_nothing_left({0, 1, 2, 3, kFront});
}

int print_newest(const std::string& folder) {
  auto arena = Arena::open(folder);
  if (!arena) return 1;
  const auto newest = (*arena)->newest_ready();
  std::printf("%lld\n", newest ? static_cast<long long>((*arena)->slot(*newest).step.value) : -1LL);
  return 0;
}

}  // namespace
}  // namespace surefoot::e2e

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--newest") return surefoot::e2e::print_newest(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--seed="))
      surefoot::e2e::g_seed = std::strtoull(argv[i] + 7, nullptr, 10);
    if (argument.starts_with("--events=")) surefoot::e2e::g_events = std::atoi(argv[i] + 9);
  }
  return RUN_ALL_TESTS();
}
