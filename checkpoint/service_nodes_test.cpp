// Several services: two nodes of one job, each with an arena of its own and one store, and several
// jobs on one machine. The real program.
#include <fcntl.h>
#include <sys/stat.h>

#include "checkpoint/part.h"
#include "checkpoint/service_test_util.h"

namespace surefoot {
namespace {

// A node: a service process with its arena, and a gang of one worker there.
class Node {
 public:
  Node(ServiceLaunch launch, const std::filesystem::path& base, std::string job_id)
      : launch_(std::move(launch)), job_id_(std::move(job_id)) {
    launch_.sets.push_back("checkpoint.arena=" + base.string());
    arena_ = arena_folder(base.string(), job_id_);
    client_ = std::make_unique<ServiceClient>(arena_, job_id_);
  }
  ~Node() { kill(); }

  void start() {
    const Status started = ensure_service(*client_, launch_, now() + kPatience);
    ASSERT_TRUE(started) << started.error().message;
  }
  void kill() {
    auto text = read_file(arena_ / "service.lock");
    auto process = text ? process_of(std::atoi(text->c_str())) : error(Code::kNotFound, "none");
    if (process) (void)end_processes({*process}, now() + kPatience);
  }
  Result<service::HelloReply> say(const service::Hello& hello) {
    service::Request request;
    *request.mutable_hello() = hello;
    SUREFOOT_ASSIGN(auto reply, client_->call(request, now() + kPatience));
    SUREFOOT_ASSIGN(mapped_, Arena::open(arena_));
    attempt_ = reply.hello().attempt();
    snapshotter_ = std::make_unique<Snapshotter>(*mapped_, Attempt{attempt_}, 0, 1);
    if (const auto newest = mapped_->newest_ready()) snapshotter_->start_from(*newest);
    return reply.hello();
  }
  Result<service::RestoreReply> restore(const service::Candidate& candidate) {
    service::Request request;
    *request.mutable_restore()->mutable_candidate() = candidate;
    SUREFOOT_ASSIGN(auto reply, client_->call(request, now() + kPatience));
    const auto newest = mapped_->newest_ready();
    if (newest) snapshotter_->start_from(*newest);
    return reply.restore();
  }
  [[nodiscard]] service::StatusReply status() {
    service::Request request;
    request.mutable_status();
    auto reply = client_->call(request, now() + kPatience);
    EXPECT_TRUE(reply) << reply.error().message;
    return reply ? reply->status() : service::StatusReply();
  }
  [[nodiscard]] std::uint64_t requests() { return mapped_->requests().load(); }
  void make_step(const StateLayout& layout, std::int64_t step, bool checkpoint) {
    SUREFOOT_CHECK(snapshotter_->begin(Step{step}, now() + kPatience).has_value());
    make_state(layout, snapshotter_->write_bytes(), step);
    StepRecord record;
    record.attempt = attempt_;
    record.step = step;
    SUREFOOT_CHECK(
        snapshotter_->commit(step * 8, checkpoint, record, now() + kPatience).has_value());
  }
  [[nodiscard]] const std::filesystem::path& arena() const { return arena_; }
  [[nodiscard]] ServiceClient& client() { return *client_; }

 private:
  ServiceLaunch launch_;
  std::string job_id_;
  std::filesystem::path arena_;
  std::unique_ptr<ServiceClient> client_;
  std::unique_ptr<Arena> mapped_;
  std::unique_ptr<Snapshotter> snapshotter_;
  std::int64_t attempt_ = 0;
};

class Nodes : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    launch_.supervised = true;  // it stays for the supervisor, whatever its workers do
    for (const char* name : {"a", "b"}) {
      nodes_.push_back(std::make_unique<Node>(launch_, folder_.path() / name, kJobId));
      nodes_.back()->start();
    }
  }
  // One gang over the nodes `which`, in this order.
  void begin(std::int64_t attempt, const std::vector<int>& which) {
    for (std::size_t i = 0; i < which.size(); ++i) {
      service::Hello hello = hello_of(attempt, layout_);
      hello.set_node_index(static_cast<int>(i));
      hello.set_node_count(static_cast<int>(which.size()));
      const auto reply = nodes_[which[i]]->say(hello);
      ASSERT_TRUE(reply) << reply.error().message;
    }
    gang_ = which;
  }
  // As the control word has it: one node's request is everybody's, and busy is too.
  bool step(std::int64_t number) {
    std::uint64_t bits = 0;
    for (const int node : gang_) bits |= nodes_[node]->requests();
    const bool checkpoint =
        number > 0 && (bits & kRequestCheckpoint) != 0 && (bits & kUploadBusy) == 0;
    for (const int node : gang_) nodes_[node]->make_step(layout_, number, checkpoint);
    return checkpoint;
  }
  void ask_for_checkpoint(int node) {
    service::Request ask;
    ask.mutable_ask()->set_checkpoint(true);
    ASSERT_TRUE(nodes_[node]->client().call(ask, now() + kPatience));
  }
  void flush(int node) {
    service::Request flush;
    flush.mutable_shutdown()->set_flush(true);
    const auto flushed = nodes_[node]->client().call(flush, now() + kPatience);
    ASSERT_TRUE(flushed) << flushed.error().message;
  }
  void notice_for_everyone(int node) {
    service::Request request;
    request.mutable_notice()->set_deadline_seconds(60);
    request.mutable_notice()->set_everyone(true);
    ASSERT_TRUE(nodes_[node]->client().call(request, now() + kPatience));
  }
  // Nothing is being stored, and nobody says so any more.
  void await_rest() {
    for (const int node : gang_) {
      ASSERT_TRUE(eventually([&] { return (nodes_[node]->requests() & kUploadBusy) == 0; }));
    }
  }
  // Steps until one is a checkpoint, and which.
  std::int64_t step_to_checkpoint(std::int64_t& number) {
    const Time deadline = now() + kPatience;
    while (now() < deadline) {
      if (step(++number)) return number;
      ::usleep(2000);
    }
    ADD_FAILURE() << "no checkpoint is asked for";
    return -1;
  }
  [[nodiscard]] std::vector<std::filesystem::path> parts_of(std::int64_t step) const {
    std::vector<std::filesystem::path> parts;
    std::error_code none;
    const auto folder = (store_folder() / part_name(Step{step}, Attempt{1}, 0, 1)).parent_path();
    for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
      if (entry.path().extension() == ".safetensors") parts.push_back(entry.path());
    }
    return parts;
  }

  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<int> gang_;
};

TEST_F(Nodes, PublishASetThatTheyWriteTogether) {
  begin(1, {0, 1});
  std::int64_t number = 0;
  step(0);
  const std::int64_t stored = step_to_checkpoint(number);
  for (const auto& node : nodes_)
    ASSERT_TRUE(eventually([&] { return node->status().durable_step() == stored; }));
  EXPECT_EQ(stored_steps(), std::vector<std::int64_t>{stored});
  EXPECT_EQ(parts_of(stored).size(), 2u);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const auto status = nodes_[i]->status();
    EXPECT_EQ(status.node_index(), static_cast<int>(i));
    EXPECT_EQ(status.node_count(), 2);
    EXPECT_EQ(status.stored_part_step(), stored);
  }
}

TEST_F(Nodes, EachStoreTheirShareOfTheLastStepWhenAllGoAtOnce) {
  begin(1, {0, 1});
  for (std::int64_t number = 0; number <= 3; ++number) step(number);
  await_rest();
  step(4);
  for (const int node : gang_) notice_for_everyone(node);
  for (const int node : gang_)
    ASSERT_TRUE(eventually([&] { return nodes_[node]->status().notice().safe_step() == 4; }));
  EXPECT_EQ(stored_steps().front(), 4);
  EXPECT_EQ(parts_of(4).size(), 2u);
  EXPECT_EQ(nodes_[1]->status().stored_part_step(), 4);
  for (const auto& part : parts_of(4))
    EXPECT_NE(part.string().find("-of-02"), std::string::npos) << part;
}

TEST_F(Nodes, OneStoresTheWholeLastStepWhenTheOthersShareDoesNotCome) {
  begin(1, {0, 1});
  for (std::int64_t number = 0; number <= 3; ++number) step(number);
  await_rest();
  step(4);
  nodes_[1]->kill();
  notice_for_everyone(0);
  ASSERT_TRUE(eventually([&] { return nodes_[0]->status().notice().safe_step() == 4; }));
  EXPECT_EQ(stored_steps().front(), 4);
}

// Left alone for arena_ttl, as nobody but the test sends them anything.
class LeftAlone : public Nodes {
 protected:
  void SetUp() override {
    launch_.sets = {"checkpoint.arena_ttl=1s"};
    Nodes::SetUp();
  }
  void make_steps() {
    begin(1, {0, 1});
    for (std::int64_t number = 0; number <= 3; ++number) step(number);
    await_rest();
    step(4);
    // Its workers never were processes that could be seen to be gone.
    service::Request request;
    request.mutable_end_gang();
    for (const int node : gang_)
      ASSERT_TRUE(nodes_[node]->client().call(request, now() + kPatience));
  }
  [[nodiscard]] bool has_given_up(int node) const {
    return !std::filesystem::exists(nodes_[node]->arena());
  }
};

TEST_F(LeftAlone, OneStoresTheLastStepOfAGangThatWasLeftAlone) {
  make_steps();
  // The memory goes when its node knows the step to be in the store.
  for (const int node : gang_) ASSERT_TRUE(eventually([&] { return has_given_up(node); }));
  EXPECT_EQ(stored_steps().front(), 4);
  EXPECT_EQ(parts_of(4).size(), 1u);
  EXPECT_TRUE(logged("step 4 was stored by another node"));
}

TEST_F(LeftAlone, TheNextStoresTheLastStepWhenTheFirstIsGone) {
  make_steps();
  nodes_[0]->kill();
  ASSERT_TRUE(eventually([&] { return has_given_up(1); }));
  EXPECT_EQ(stored_steps().front(), 4);
  EXPECT_FALSE(logged("was stored by another node"));
}

TEST_F(Nodes, NeverOfferASetOfWhichOneDiedAndCleanItUp) {
  begin(1, {0, 1});
  step(0);
  std::int64_t number = 0;
  const std::int64_t whole = step_to_checkpoint(number);
  await_rest();
  // Node b is gone before it has written its part: its machine was taken.
  nodes_[1]->kill();
  ask_for_checkpoint(0);
  const std::int64_t half = step_to_checkpoint(number);
  ASSERT_TRUE(eventually([&] { return parts_of(half).size() == 1; }));
  ASSERT_TRUE(eventually([&] {
    return nodes_[0]->status().waiting_for().find("part") != std::string::npos;
  })) << nodes_[0]->status().waiting_for();
  EXPECT_EQ(stored_steps(), std::vector<std::int64_t>{whole});

  // What is left goes on alone, from its memory. The half set is not on offer.
  begin(2, {0});
  const auto offered = nodes_[0]->say(hello_of(2, layout_));
  ASSERT_TRUE(offered);
  for (const auto& candidate : offered->candidates()) {
    if (candidate.source() == service::Candidate::STORE) {
      EXPECT_EQ(candidate.step(), whole);
    }
  }
  // Nor will it be: it was agreed on by two. Once it is old it goes when a newer one is verified.
  for (const auto& part : parts_of(half)) {
    const timespec long_ago[2] = {{1, 0}, {1, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, part.c_str(), long_ago, 0), 0);
  }
  // Nor does it keep the new gang from its checkpoints.
  await_rest();
  step(++number);
  flush(0);
  EXPECT_EQ(stored_steps().front(), number);
  EXPECT_TRUE(eventually([&] { return parts_of(half).empty(); }));
  EXPECT_TRUE(eventually([&] { return nodes_[0]->status().storing_step() < 0; }));
}

TEST_F(Nodes, IgnoreAStaleServiceOfAnOlderAttempt) {
  begin(1, {0, 1});
  step(0);
  std::int64_t number = 0;
  const std::int64_t whole = step_to_checkpoint(number);
  await_rest();
  // Node b cannot be reached, with a pinned slot of attempt 1 in its memory.
  nodes_[1]->kill();
  ask_for_checkpoint(0);
  const std::int64_t cut = step_to_checkpoint(number);
  // The job goes on without it, in attempt 2.
  begin(2, {0});
  for (int i = 0; i < 3; ++i) step(++number);
  flush(0);
  EXPECT_EQ(stored_steps().front(), number);
  // It comes back, and does what it had to do in its attempt. All that can come of it is what the
  // two had agreed on; it is not mixed with anything, and the newest stays the newest.
  nodes_[1]->start();
  ASSERT_TRUE(eventually([&] { return nodes_[1]->status().storing_step() < 0; }));
  EXPECT_EQ(stored_steps().front(), number);
  EXPECT_EQ(nodes_[1]->status().attempt(), 1) << "by which a supervisor knows it";
  for (const std::int64_t stored : stored_steps())
    EXPECT_TRUE(stored == whole || stored == cut || stored == number) << stored;
  // A gang of the old attempt is refused where the new one has run.
  service::Hello old = hello_of(1, layout_);
  EXPECT_EQ(nodes_[0]->say(old).error().code, Code::kStale);
}

// ---- several jobs ----

// A second job, with a directory of its own.
class TwoJobs : public ServiceTest {
 protected:
  static constexpr const char* kOtherId = "feedfeedfeedfeed";
  ServiceLaunch other_launch(const std::string& to) {
    ServiceLaunch other = launch_;
    other.job_directory = folder_.path() / "other";
    std::filesystem::create_directories(other.job_directory);
    std::ofstream(other.job_directory / "job.json")
        << R"({"id": ")" << kOtherId << R"(", "name": "t"})"
        << "\n";
    if (!to.empty()) other.sets.push_back("checkpoint.to=" + to);
    return other;
  }
};

TEST_F(TwoJobs, OfOneNameOnOneMachineStaySeparate) {
  start();
  Node other(other_launch(""), folder_.path() / "shm", kOtherId);
  other.start();
  ASSERT_TRUE(say_hello(1));
  ASSERT_TRUE(other.say(hello_of(1, layout_)));
  EXPECT_NE(arena_, other.arena());
  make_step(0);
  ASSERT_TRUE(make_step(1));
  for (std::int64_t step = 0; step <= 5; ++step) other.make_step(layout_, step, step == 5);
  ASSERT_TRUE(eventually([&] { return status().durable_step() == 1; }));
  ASSERT_TRUE(eventually([&] { return other.status().durable_step() == 5; }));
  EXPECT_EQ(stored_steps(), std::vector<std::int64_t>{1});
  // Who asks the wrong one is told so.
  ServiceClient lost(arena_, kOtherId);
  service::Request request;
  request.mutable_status();
  EXPECT_EQ(lost.call(request, now() + kPatience).error().code, Code::kInvalid);
  EXPECT_EQ(status().refused().at("job"), 1);
}

TEST_F(TwoJobs, OfOneNameMayNotShareAFolderOfCheckpoints) {
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  ASSERT_TRUE(make_step(1));
  ASSERT_TRUE(eventually([&] { return status().durable_step() == 1; }));
  Node other(other_launch((launch_.job_directory / "checkpoints").string()), folder_.path() / "shm",
             kOtherId);
  other.start();
  const auto refused = other.say(hello_of(1, layout_));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_NE(refused.error().message.find(kJobId), std::string::npos) << refused.error().message;
  EXPECT_EQ(stored_steps(), std::vector<std::int64_t>{1});
}

}  // namespace
}  // namespace surefoot
