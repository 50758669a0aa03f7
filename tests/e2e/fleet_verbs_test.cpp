// Verbs against a supervisor of several machines: what they say of the machines, and what becomes
// of a machine that is drained, and of a job that is cancelled.
#include <regex>

#include "tests/e2e/fleet.h"

namespace surefoot::e2e {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

class FleetVerbs : public Fleet {
 protected:
  [[nodiscard]] std::string directory() const { return sandbox_->directory().string(); }
  json nodes() {
    const RunResult result = verb({"nodes", directory(), "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result.json;
  }
  json node(const std::string& name) {
    const json all = nodes();
    for (const json& node : all.value("nodes", json::array())) {
      if (node.value("name", "") == name) return node;
    }
    ADD_FAILURE() << "no " << name << " in " << all;
    return json::object();
  }
};

TEST_F(FleetVerbs, NodesNamesEachMachineItsRanksAndItsSnapshot) {
  start_job();
  reach_step(5);
  const json all = nodes();
  ASSERT_EQ(all["nodes"].size(), 4u) << all;
  EXPECT_TRUE(all["live"]);
  for (const json& node : all["nodes"]) {
    EXPECT_EQ(node["standing"], "in_use") << node;
    EXPECT_EQ(node["slots"], 1) << node;
    EXPECT_EQ(node["first_rank"], node["last_rank"]) << node;
    EXPECT_GE(node["snapshot"], 1) << node;
    EXPECT_GT(node["arena_bytes"], 0) << node;
    EXPECT_EQ(node["ranks"].size(), 1u) << node;
  }
  const RunResult screen = verb({"nodes", directory()});
  EXPECT_NE(screen.output.find("4 of 4 machines ready"), std::string::npos) << screen.output;
  const RunResult status = verb({"status", directory(), "--json"});
  EXPECT_EQ(status.json["state"], "running") << status.output;
  EXPECT_EQ(status.json["fleet"]["nodes"].size(), 4u) << status.output;
  expect_done_with_same_bits();
}

TEST_F(FleetVerbs, AMachineThatIsDrainedLeavesAndTheOthersGoOnWithoutLosingAStep) {
  start_job();
  reach_step(8);
  const RunResult unknown = verb({"drain", "host9", directory()});
  EXPECT_EQ(unknown.exit_code, 64) << unknown.output;
  EXPECT_NE(unknown.output.find("host0, host1, host2, host3"), std::string::npos) << unknown.output;
  const RunResult drained = verb({"drain", "host2", directory(), "--in", "100s", "--json"});
  EXPECT_EQ(drained.exit_code, 0) << drained.output;
  EXPECT_EQ(drained.json["node"], "host2") << drained.output;
  await_line("back at work");
  const json gone = node("host2");
  EXPECT_EQ(gone["goes"], true) << gone;
  EXPECT_TRUE(gone["first_rank"].is_null()) << gone;
  expect_done_with_same_bits();
  EXPECT_EQ(result_.json["preemptions"], 1) << result_.output;
  const json notice = result_.json["attempt_list"][0]["notice"];
  ASSERT_TRUE(notice.is_object()) << result_.output;
  EXPECT_EQ(notice["steps_lost"], 0) << notice;
  EXPECT_GT(notice["time_left_seconds"], 0) << notice;
  EXPECT_GT(notice["back_at_work_seconds"], 0) << notice;
  expect_no_step_lost();
  expect_nothing_left({0, 1, 2, 3, kFront});
}

TEST_F(FleetVerbs, StatusSaysWhichMachineIsLostAndWithoutASupervisorWhatTheJournalKnows) {
  start_job();
  reach_step(5);
  ASSERT_TRUE(host(1).kill());
  await_line("machine host1 is lost");
  const json lost = node("host1");
  EXPECT_NE(lost["standing"], "in_use") << lost;
  EXPECT_TRUE(eventually(
      [&] {
        const RunResult status = verb({"status", directory()});
        EXPECT_EQ(status.exit_code, 0) << status.output;
        return std::regex_search(status.output, std::regex("host1.*lost: it has not answered"));
      },
      20s))
      << verb({"status", directory()}).output;
  expect_done_with_same_bits();
  const json after = nodes();
  EXPECT_FALSE(after["live"]) << after;
  EXPECT_EQ(verb({"status", directory(), "--json"}).json["steps"], steps_);
}

TEST_F(FleetVerbs, CancelLeavesNothingOnAnyHost) {
  start_job();
  reach_step(5);
  const RunResult cancelled = verb({"cancel", directory(), "--json"});
  EXPECT_EQ(cancelled.exit_code, 0) << cancelled.output;
  EXPECT_EQ(cancelled.json["state"], "cancelled") << cancelled.output;
  EXPECT_EQ(finish().exit_code, 93);
  expect_nothing_left({0, 1, 2, 3, kFront});
}

}  // namespace
}  // namespace surefoot::e2e
