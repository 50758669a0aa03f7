// The supervisor core in a simulated world (sim/world.h): safety after each event, liveness at the
// end of each schedule.
//
//   supervisor_sim_test --schedules=1000000 --seed=1
//     many schedules, of one machine and of up to 16; a failure prints its seed and the command
//     that replays it
//   supervisor_sim_test --large_schedules=100 --gtest_filter=*TenThousand*
//   supervisor_sim_test --replay=SEED --machines=16 [--plant=N]
//     one schedule, told line by line; --machines=1 is the world of one machine
#include <gtest/gtest.h>

#include <charconv>
#include <cstdio>
#include <memory>
#include <string>

#include "launcher/sim/fleet_world.h"
#include "launcher/sim/world.h"

namespace surefoot::sim {
namespace {

std::uint64_t g_first_seed = 1;
std::uint64_t g_schedules = 100'000;
std::uint64_t g_fleet_schedules = 100'000;
std::uint64_t g_large_schedules = 2;
std::uint64_t g_machines = 16;  // 16: up to so many

// `machines`: 1, up to 16, or exactly so many.
std::unique_ptr<Life> make_world(std::uint64_t seed, Plant plant, bool narrate,
                                 std::uint64_t machines) {
  if (machines == 1) return std::make_unique<World>(seed, plant, narrate);
  return std::make_unique<FleetWorld>(seed, plant, narrate,
                                      machines <= 16 ? 0 : static_cast<int>(machines));
}

// The seed of the first schedule in which a promise was broken; 0: none was.
std::uint64_t first_broken(Plant plant, std::uint64_t machines, std::uint64_t schedules,
                           Sights* sights, std::string* what) {
  for (std::uint64_t seed = g_first_seed; seed < g_first_seed + schedules; ++seed) {
    const auto world = make_world(seed, plant, false, machines);
    *what = world->run();
    sights->add(world->sights());
    if (!what->empty()) return seed;
  }
  return 0;
}

void print(const Sights& s, std::uint64_t schedules) {
  fmt::print(
      "{} schedules: {} decisions, {} launches, {} steps ({} done again), attempts: {} failed, {} "
      "forgiven, {} hung, {} preempted, {} "
      "drained, {} ended, {} refused, {} abandoned; jobs: {} done, {} cancelled, {} interrupted, "
      "{} not to be requeued; {} deaths of "
      "supervisors, {} resumes, {} reboots, {} starts of services, {} orphans ended, {} gangs "
      "given up, {} stale events, {} recoveries\n",
      schedules, s.decisions, s.launches, s.steps, s.steps_redone, s.failed, s.forgiven, s.hung,
      s.preempted, s.drained, s.ended, s.refused, s.abandoned, s.done, s.cancelled, s.interrupted,
      s.do_not_requeue, s.supervisor_deaths, s.resumes, s.reboots, s.service_restarts,
      s.orphans_ended, s.given_up, s.stale, s.recoveries);
}

TEST(SupervisorInSimulation, KeepsItsPromisesInEverySchedule) {
  Sights s;
  std::string what;
  const std::uint64_t seed = first_broken(Plant::kNone, 1, g_schedules, &s, &what);
  ASSERT_EQ(seed, 0u) << what << "\nreplay: supervisor_sim_test --machines=1 --replay=" << seed;
  print(s, g_schedules);
  for (const std::int64_t seen :
       {s.launches,  s.steps,       s.steps_redone,     s.failed,
        s.forgiven,  s.hung,        s.preempted,        s.drained,
        s.ended,     s.refused,     s.abandoned,        s.done,
        s.cancelled, s.interrupted, s.do_not_requeue,   s.supervisor_deaths,
        s.resumes,   s.reboots,     s.service_restarts, s.orphans_ended,
        s.stale,     s.recoveries}) {
    EXPECT_GT(seen, 0) << "a simulation that never sees one of these proves little";
  }
}

TEST(FleetInSimulation, KeepsItsPromisesInEverySchedule) {
  Sights s;
  std::string what;
  const std::uint64_t seed = first_broken(Plant::kNone, g_machines, g_fleet_schedules, &s, &what);
  ASSERT_EQ(seed, 0u) << what << "\nreplay: supervisor_sim_test --machines=" << g_machines
                      << " --replay=" << seed;
  print(s, g_fleet_schedules);
  fmt::print(
      "of machines: {} lost, {} taken again, {} notices, {} reboots; {} regroups, {} times stored "
      "before "
      "others went on, {} times too few machines, at most {} workers\n",
      s.losses, s.returns, s.notices, s.reboots, s.regrouped, s.saved, s.too_few, s.most_workers);
  if (g_fleet_schedules < 1000) return;
  for (const std::int64_t seen : {s.launches,      s.steps,          s.steps_redone,
                                  s.failed,        s.hung,           s.preempted,
                                  s.drained,       s.ended,          s.refused,
                                  s.abandoned,     s.done,           s.cancelled,
                                  s.interrupted,   s.do_not_requeue, s.supervisor_deaths,
                                  s.resumes,       s.reboots,        s.service_restarts,
                                  s.orphans_ended, s.stale,          s.recoveries,
                                  s.losses,        s.returns,        s.notices,
                                  s.regrouped,     s.saved,          s.too_few}) {
    EXPECT_GT(seen, 0) << "a simulation that never sees one of these proves little";
  }
}

TEST(FleetInSimulation, KeepsItsPromisesOnTenThousandMachines) {
  constexpr std::uint64_t kMachines = 10'000;
  Sights s;
  std::string what;
  const std::uint64_t seed = first_broken(Plant::kNone, kMachines, g_large_schedules, &s, &what);
  ASSERT_EQ(seed, 0u) << what << "\nreplay: supervisor_sim_test --machines=" << kMachines
                      << " --replay=" << seed;
  print(s, g_large_schedules);
}

class Planted : public testing::TestWithParam<int> {};

TEST_P(Planted, BugIsFound) {
  const auto plant = static_cast<Plant>(GetParam());
  constexpr std::uint64_t kEnough = 50'000;
  Sights sights;
  std::string what;
  const std::uint64_t seed =
      first_broken(plant, plant >= Plant::kFirstOfFleet ? 16 : 1, kEnough, &sights, &what);
  EXPECT_NE(seed, 0u) << "the bug \"" << name(plant) << "\" lives through " << kEnough
                      << " schedules";
  fmt::print("{}: {} (after {} schedules)\n", name(plant), what, seed - g_first_seed + 1);
}

INSTANTIATE_TEST_SUITE_P(Bugs, Planted, testing::Range(1, static_cast<int>(Plant::kCount)),
                         [](const auto& info) {
                           std::string text;
                           for (const char c : name(static_cast<Plant>(info.param)))
                             text += c == ' ' ? '_' : c;
                           return text;
                         });

std::uint64_t flag(const std::string& argument, const std::string& key, std::uint64_t otherwise) {
  const std::string start = "--" + key + "=";
  if (!argument.starts_with(start)) return otherwise;
  std::uint64_t value = 0;
  std::from_chars(argument.data() + start.size(), argument.data() + argument.size(), value);
  return value;
}

}  // namespace
}  // namespace surefoot::sim

int main(int argc, char** argv) {
  using namespace surefoot::sim;
  testing::InitGoogleTest(&argc, argv);
  std::uint64_t replay = 0;
  std::uint64_t plant = 0;
  for (int i = 1; i < argc; ++i) {
    g_schedules = flag(argv[i], "schedules", g_schedules);
    g_fleet_schedules = flag(argv[i], "schedules", g_fleet_schedules);
    g_fleet_schedules = flag(argv[i], "fleet_schedules", g_fleet_schedules);
    g_large_schedules = flag(argv[i], "large_schedules", g_large_schedules);
    g_machines = flag(argv[i], "machines", g_machines);
    g_first_seed = flag(argv[i], "seed", g_first_seed);
    replay = flag(argv[i], "replay", replay);
    plant = flag(argv[i], "plant", plant);
  }
  if (replay == 0) return RUN_ALL_TESTS();
  const std::string what = make_world(replay, static_cast<Plant>(plant), true, g_machines)->run();
  fmt::print("{}\n", what.empty() ? "every promise was kept" : "BROKEN: " + what);
  return what.empty() ? 0 : 1;
}
