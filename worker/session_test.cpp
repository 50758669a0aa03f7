// Gangs over two or three nodes of one machine: a real service and an arena each, ranks as threads
// of a process of its own, so that a later gang may end it.
#include "worker/session.h"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "checkpoint/service_test_util.h"
#include "collectives/local/local_communicator.h"
#include "collectives/testing/reducer_check.h"
#include "common/test_paths.h"
#include "configs/job.h"

namespace surefoot {
namespace {

using nlohmann::json;

class SessionTest : public ::testing::Test {
 protected:
  struct Node {
    ServiceLaunch launch;
    std::filesystem::path arena;
    LoadedJob job;
  };
  void SetUp() override {
    directory_ = folder_.path() / "run";
    std::filesystem::create_directories(directory_);
    std::ofstream(directory_ / "job.json") << R"({"id": ")" << kJobId << R"(", "name": "t"})"
                                           << "\n";
    for (int node = 0; node < 3; ++node) nodes_.push_back(make_node(node));
  }
  void TearDown() override {
    for (const Node& node : nodes_) {
      auto text = read_file(node.arena / "service.lock");
      auto process = text ? process_of(std::atoi(text->c_str())) : error(Code::kNotFound, "none");
      if (process) (void)end_processes({*process}, now() + kPatience);
    }
    if (!HasFailure()) return;
    if (auto log = read_file(directory_ / "logs" / "node.log"); log)
      std::printf("%s\n", log->c_str());
  }

  Node make_node(int number) {
    Node node;
    const auto shm = folder_.path() / std::to_string(number);
    node.launch.program = programs_folder() / "surefoot-node";
    node.launch.job_file = folder_.path() / fmt::format("job-{}.yaml", number);
    node.launch.job_directory = directory_;
    std::ofstream(node.launch.job_file)
        << "name: t\nmodel: {kind: mlp}\ndata: {kind: synthetic}\n"
        << "train: {max_steps: 100, global_batch_size: 8, micro_batch_size: 4, optimizer: {kind: "
           "sgd, lr: 0.1}}\n"
        << "checkpoint: {arena: " << shm.string() << ", interval: 1h}\n";
    node.arena = arena_folder(shm.string(), kJobId);
    LoadOutcome loaded = load_job(node.launch.job_file.string(), {});
    SUREFOOT_CHECK(loaded.faults.empty());
    node.job = std::move(loaded.job);
    return node;
  }
  void serve(int number) {
    const Node& node = nodes_[static_cast<std::size_t>(number)];
    ServiceClient client(node.arena, kJobId);
    const Status started = ensure_service(client, node.launch, now() + kPatience);
    ASSERT_TRUE(started) << started.error().message;
  }

  // One rank of a gang: joins, makes steps up to `last`, and says where it began.
  json take_part(Communicator& communicator, int number, std::int64_t last) {
    const Node& node = nodes_[static_cast<std::size_t>(number)];
    JoinRequest request;
    request.job = &node.job.job;
    request.job_id = kJobId;
    request.layout = layout_;
    request.identity.hash = digest("train.seed: 1");
    request.identity.lines = {"train.seed: 1"};
    request.numerics_id = "test";
    request.host = std::to_string(number);
    auto session = join(communicator, request, now() + kPatience);
    if (!session)
      return {{"error", session.error().message},
              {"attempt", -1},
              {"step", -1},
              {"samples", -1},
              {"good", false}};
    json said = {
        {"attempt", session->attempt.value},
        {"step", session->step.value},
        {"samples", session->samples},
        {"good", session->slot >= 0 && holds(*session->arena, session->slot, session->step.value)}};
    Snapshotter snapshotter(*session->arena, session->attempt, 0, 1);
    if (session->slot >= 0) snapshotter.start_from(session->slot);
    for (std::int64_t step = session->step.value + 1; step <= last; ++step) {
      SUREFOOT_CHECK(snapshotter.begin(Step{step}, now() + kPatience).has_value());
      make_state(layout_, snapshotter.write_bytes(), step);
      StepRecord record;
      record.step = step;
      SUREFOOT_CHECK(
          snapshotter.commit(step * 8, step == checkpoint_, record, now() + kPatience).has_value());
    }
    if (roll_back_before_ > 0) roll_back_as_told(communicator, request, *session, said);
    return said;
  }
  // From the middle of a step, as a trainer does.
  void roll_back_as_told(Communicator& communicator, const JoinRequest& request, Session& session,
                         json& said) {
    set_phase(session.arena->line(0), Phase::kReduction, Step{roll_back_before_});
    if (checkpoint_ > 0) await_checkpoint(checkpoint_);
    if (remove_arena_) std::filesystem::remove(session.arena_path / "arena");
    const Status done =
        roll_back(communicator, request, session, Step{roll_back_before_}, now() + kPatience);
    said["rolled_back"] = done ? "" : done.error().message;
    said["code"] = done ? -1 : static_cast<int>(done.error().code);
    said["step"] = session.step.value;
    const auto newest = session.arena->newest_ready();
    said["newest"] = newest ? session.arena->slot(*newest).step.value : -1;
    said["good"] = newest && holds(*session.arena, *newest, said["newest"]);
  }
  bool holds(Arena& arena, int slot, std::int64_t step) const {
    std::vector<std::byte> expected(static_cast<std::size_t>(layout_.bytes));
    make_state(layout_, expected, step);
    return std::equal(expected.begin(), expected.end(), arena.bytes(slot).begin());
  }

  // What each node's rank has said.
  std::vector<json> gang(const std::vector<int>& numbers, std::int64_t last) {
    for (const int number : numbers) serve(number);
    const auto file = folder_.path() / "said.json";
    const pid_t child = fork_child([&] {
      std::vector<json> said(numbers.size());
      testing::on_all_ranks(static_cast<int>(numbers.size()),
                            [&](LocalGang&, Communicator& communicator) {
                              const auto rank = static_cast<std::size_t>(communicator.rank());
                              said[rank] = take_part(communicator, numbers[rank], last);
                            });
      std::ofstream(file) << json(said).dump();
      return 0;
    });
    EXPECT_EQ(wait_for(child), 0);
    auto text = read_file(file);
    const json all = text ? json::parse(*text, nullptr, false) : json();
    EXPECT_EQ(all.size(), numbers.size());
    return {all.begin(), all.end()};
  }
  void await_checkpoint(std::int64_t step) {
    const auto manifest =
        directory_ / "checkpoints" / "t" / step_folder(Step{step}) / "manifest.json";
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(manifest); }));
  }
  // As a machine that reboots.
  void lose(int number) {
    const Node& node = nodes_[static_cast<std::size_t>(number)];
    auto text = read_file(node.arena / "service.lock");
    auto process = text ? process_of(std::atoi(text->c_str())) : error(Code::kNotFound, "none");
    ASSERT_TRUE(process);
    ASSERT_TRUE(end_processes({*process}, now() + kPatience));
    std::filesystem::remove_all(node.arena);
  }

  static constexpr const char* kJobId = "0123456789abcdef";
  TemporaryFolder folder_;
  std::filesystem::path directory_;
  std::vector<Node> nodes_;
  StateLayout layout_ = test_layout();
  std::int64_t checkpoint_ = -1;        // the step that becomes one
  std::int64_t roll_back_before_ = -1;  // then
  bool remove_arena_ = false;           // before that, as logind does
};

TEST_F(SessionTest, AllNodesOfAFreshJobBeginAtStepZero) {
  for (const json& said : gang({0, 1}, 0)) {
    EXPECT_EQ(said["attempt"], 1) << said;
    EXPECT_EQ(said["step"], 0) << said;
  }
}

TEST_F(SessionTest, AnAttemptIsNewToEveryNodeWhicheverIsTheFirst) {
  gang({0}, 2);
  gang({0}, 3);
  // Node 1 has seen nothing, node 0 two attempts.
  for (const json& said : gang({1, 0}, 4)) {
    EXPECT_EQ(said["attempt"], 3) << said;
    EXPECT_EQ(said["step"], 3) << said;
    EXPECT_EQ(said["samples"], 24) << said;
    EXPECT_EQ(said["good"], true) << said;
  }
}

TEST_F(SessionTest, AfterAllMemoryIsLostEachNodeReadsAPartOfTheCheckpoint) {
  checkpoint_ = 3;
  gang({0, 1}, 5);
  await_checkpoint(3);
  lose(0);
  lose(1);
  for (const json& said : gang({2, 1, 0}, 3)) {
    EXPECT_EQ(said["step"], 3) << said;
    EXPECT_EQ(said["good"], true) << said;
  }
  const auto log = read_file(directory_ / "logs" / "node.log");
  ASSERT_TRUE(log);
  for (int part = 0; part < 3; ++part)
    EXPECT_NE(log->find(fmt::format("restored part {} of 3 of step 3", part)), std::string::npos);
}

TEST_F(SessionTest, ARollbackWithNothingToGoBackToLosesNothing) {
  roll_back_before_ = 4;
  for (const json& said : gang({0, 1}, 3)) {
    EXPECT_EQ(said["code"], static_cast<int>(Code::kNotFound)) << said;
    EXPECT_EQ(said["newest"], 3) << said;
    EXPECT_EQ(said["good"], true) << said;
  }
}

TEST_F(SessionTest, ARollbackGoesOnFromTheCheckpointAndFreesWhatCameAfterIt) {
  checkpoint_ = 1;
  roll_back_before_ = 4;
  for (const json& said : gang({0, 1}, 3)) {
    EXPECT_EQ(said["rolled_back"], "") << said;
    EXPECT_EQ(said["step"], 1) << said;
    EXPECT_EQ(said["newest"], 1) << said;
    EXPECT_EQ(said["good"], true) << said;
  }
}

// The hello of a rollback makes it anew; who went on with the old one would train where nobody
// looks.
TEST_F(SessionTest, ARollbackAfterTheArenaWasRemovedAsksForANewAttempt) {
  checkpoint_ = 1;
  roll_back_before_ = 4;
  remove_arena_ = true;
  for (const json& said : gang({0}, 3))
    EXPECT_EQ(said["code"], static_cast<int>(Code::kRestart)) << said;
  roll_back_before_ = -1;
  for (const json& said : gang({0}, 3)) {
    EXPECT_EQ(said["step"], 3) << said;
    EXPECT_EQ(said["good"], true) << said;
  }
}

TEST(Places, RanksOfOneHostShareANode) {
  const auto places = places_of({"b", "a", "b", "c"});
  EXPECT_EQ(places[0].node, 0);
  EXPECT_EQ(places[1].node, 1);
  EXPECT_EQ(places[2].node, 0);
  EXPECT_EQ(places[2].local_rank, 1);
  EXPECT_EQ(places[2].local_size, 2);
  EXPECT_EQ(places[3].node, 2);
  EXPECT_EQ(places[3].local_size, 1);
}

}  // namespace
}  // namespace surefoot
