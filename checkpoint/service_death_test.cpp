// The service killed at each point of what it does, its workers killed while it uploads, all of
// them at once, and a store that is away for long. The real program with faults in its store
// (launcher/testing/faulty_node.cpp).
#include <sys/wait.h>

#include <set>
#include <sstream>

#include "checkpoint/service_history.h"
#include "checkpoint/service_test_util.h"

namespace surefoot {
namespace {

// As training has it, each step is made of the one before: who has gone on from a wrong state never
// comes to the right one.
void train_step(const StateLayout& layout, const Snapshotter& snapshotter,
                std::span<std::byte> state, std::int64_t step) {
  make_state(layout, state, 0);
  if (step == 0) return;
  const std::span<const std::byte> before = snapshotter.read_bytes();
  for (const SectionSpec& section : layout.sections) {
    for (const TensorSpec& tensor : section.tensors) {
      const std::int64_t begin = section.offset + tensor.offset;
      const std::int64_t bytes = tensor.elements() * size_of(section.type);
      for (std::int64_t at = begin; at + 8 <= begin + bytes; at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, before.data() + at, 8);
        word += kStateOfAStep;
        std::memcpy(state.data() + at, &word, 8);
      }
    }
  }
}

class DeathTest : public ServiceTest {
 protected:
  void fill_step(std::int64_t step) override {
    train_step(layout_, *snapshotter_, snapshotter_->write_bytes(), step);
  }
  void SetUp() override {
    ServiceTest::SetUp();
    launch_.program = programs_folder() / "faulty_node";
    points_ = folder_.path() / "points";
    failing_ = folder_.path() / "failing";
    set("FAULTY_POINTS", points_.string());
    set("FAULTY_FAILING", failing_.string());
    client_->when_missing([this] { start_again(); });
  }
  void TearDown() override {
    ServiceTest::TearDown();
    for (const char* name : {"FAULTY_POINTS", "FAULTY_FAILING", "FAULTY_DIE", "FAULTY_PIECE_MS"})
      ::unsetenv(name);
  }
  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
  // Without the fault that ended the one before.
  void start_again() {
    ::unsetenv("FAULTY_DIE");
    ServiceClient other(arena_, kJobId);
    const Status started = ensure_service(other, launch_, now() + kPatience);
    EXPECT_TRUE(started) << started.error().message;
  }
  [[nodiscard]] std::vector<std::string> points() const {
    std::istringstream lines(read_file(points_).has_value() ? *read_file(points_) : "");
    std::vector<std::string> points;
    for (std::string line; std::getline(lines, line);) points.push_back(line);
    return points;
  }
  [[nodiscard]] static service::Candidate newest_of(const service::HelloReply& reply) {
    service::Candidate best = reply.candidates(0);
    for (const auto& candidate : reply.candidates()) {
      if (candidate.step() > best.step()) best = candidate;
    }
    return best;
  }
  Status tell(const std::function<void(service::Request&)>& what) {
    service::Request request;
    what(request);
    SUREFOOT_TRY(client_->call(request, now() + kPatience));
    return {};
  }

  // A job from its first hello to its end, with each verb in it. Steps are made whether there is a
  // service or not.
  std::string whole_life() {
    EXPECT_TRUE(say_hello(1));
    std::int64_t step = 0;
    make_step(step);
    const auto step_when_asked = [&] {
      if (step < 95 && (mapped_->requests().load() & kRequestCheckpoint) != 0) make_step(++step);
    };
    EXPECT_TRUE(eventually([&] {
      step_when_asked();
      return status().durable_step() > 0;
    }));
    const std::int64_t first = status().durable_step();
    auto reply = say_hello(2);
    EXPECT_TRUE(reply) << reply.error().message;
    if (!reply || reply->candidates_size() == 0) return "";
    EXPECT_EQ(newest_of(*reply).step(), step) << "no finished step is lost";
    const auto restored = restore(newest_of(*reply));
    EXPECT_TRUE(restored) << restored.error().message;
    if (restored) {
      EXPECT_TRUE(holds(restored->slot(), step));
    }
    // An ask that was answered may be forgotten only with the step that it was for.
    EXPECT_TRUE(eventually([&] {
      EXPECT_TRUE(tell([](auto& request) { request.mutable_ask()->set_checkpoint(true); }));
      step_when_asked();
      return status().durable_step() > first;
    }));
    EXPECT_TRUE(tell([](auto& request) { request.mutable_end_gang(); }));
    while (step < 100) make_step(++step);
    const auto finished = finish(100);
    EXPECT_TRUE(finished) << finished.error().message;
    EXPECT_EQ(stored_steps().front(), 100);
    (void)shut_down(false, true);  // killed after it was done, nobody is there to answer again
    client_->when_missing({});
    EXPECT_TRUE(eventually([&] { return !service_process(); }));
    return finished ? finished->weights_sha256() : "";
  }
  void begin_anew() {
    std::filesystem::remove_all(arena_);
    std::filesystem::remove_all(launch_.job_directory / "checkpoints");
    std::filesystem::remove_all(launch_.job_directory / "final");
    std::filesystem::remove_all(launch_.job_directory / "service");
    std::filesystem::remove(points_);
    client_ = std::make_unique<ServiceClient>(arena_, kJobId);
    client_->when_missing([this] { start_again(); });
  }

  std::filesystem::path points_;
  std::filesystem::path failing_;
};

TEST_F(DeathTest, TheSameComesOutWhereverTheServiceIsKilled) {
  launch_.supervised = true;
  write_job("interval: 1h, keep: 1");
  start();
  const std::string weights = whole_life();
  ASSERT_FALSE(weights.empty());
  const auto seen = points();
  const std::set<std::string> kinds(seen.begin(), seen.end());
  // So that this test cannot go blind: each reply and each operation on the store is a point.
  for (const char* kind :
       {"reply hello", "reply restore", "reply done", "reply finish", "put job", "put part",
        "put manifest", "read part", "read manifest", "list", "remove part", "remove manifest"}) {
    EXPECT_TRUE(kinds.contains(std::string("before ") + kind)) << kind;
    EXPECT_TRUE(kinds.contains(std::string("after ") + kind)) << kind;
  }
  int killed = 0;
  for (const std::string& kind : kinds) {
    for (const int time : {1, 3}) {
      if (std::count(seen.begin(), seen.end(), kind) < time) continue;
      SCOPED_TRACE(fmt::format("killed {} for the {}. time", kind, time));
      begin_anew();
      set("FAULTY_DIE", fmt::format("{} {}", time, kind));
      // It may die before it has answered once.
      ServiceClient first(arena_, kJobId);
      (void)ensure_service(first, launch_, now() + 1s);
      EXPECT_EQ(whole_life(), weights);
      killed += std::getenv("FAULTY_DIE") == nullptr ? 1 : 0;
      if (HasFailure()) return;
    }
  }
  std::printf("killed at %d points of %zu kinds\n", killed, kinds.size());
  EXPECT_GE(killed, 30);
}

// A worker of its own process: makes steps until it is killed.
class Worker {
 public:
  Worker(const std::filesystem::path& arena, std::int64_t attempt,
         const std::function<void(Arena&, Snapshotter&)>& run) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    auto mapped = Arena::open(arena);
    if (!mapped || !register_writer(**mapped, Attempt{attempt}, 0, 0)) ::_exit(1);
    Snapshotter snapshotter(**mapped, Attempt{attempt}, 0, 1);
    if (const auto newest = (*mapped)->newest_ready()) snapshotter.start_from(*newest);
    run(**mapped, snapshotter);
    ::_exit(0);
  }
  ~Worker() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
};

class KilledWorkers : public DeathTest {
 protected:
  std::function<void(Arena&, Snapshotter&)> endless() {
    return [this](Arena& arena, Snapshotter& snapshotter) {
      const auto newest = arena.newest_ready();
      for (std::int64_t step = newest ? arena.slot(*newest).step.value + 1 : 0;; ++step) {
        if (!snapshotter.begin(Step{step}, now() + kPatience)) ::_exit(2);
        const std::uint64_t bits = arena.requests().load();
        const bool checkpoint =
            step > 0 && (bits & kRequestCheckpoint) != 0 && (bits & kUploadBusy) == 0;
        train_step(layout_, snapshotter, snapshotter.write_bytes(), step);
        StepRecord record;
        record.attempt = arena.gang().attempt;
        record.step = step;
        if (!snapshotter.commit(step * 8, checkpoint, record, now() + kPatience)) ::_exit(3);
        ::usleep(3000);
      }
    };
  }
};

TEST_F(KilledWorkers, WhileAnUploadRunsItIsFinishedAndPublished) {
  set("FAULTY_PIECE_MS", "100");
  start();
  ASSERT_TRUE(say(hello_of(1, layout_)));
  Worker worker(arena_, 1, endless());
  std::int64_t storing = -1;
  ASSERT_TRUE(eventually([&] { return (storing = status().storing_step()) > 0; }));
  worker.kill();
  ASSERT_TRUE(eventually([&] { return status().durable_step() >= storing; }));
  EXPECT_EQ(stored_steps().back(), storing);
  const auto reply = say_hello(2);
  ASSERT_TRUE(reply);
  EXPECT_GE(newest_of(*reply).step(), storing);
}

// Service and worker at the same moment, many times over: the newest READY step is found again.
TEST_F(KilledWorkers, WithTheServiceAtOnceTheNewestStepIsFoundAgain) {
  write_job("interval: 100ms, keep: 1, cpu_limit: unlimited");
  std::mt19937_64 random(9);
  start();
  std::int64_t newest = 0;
  int restored_later = 0;
  for (std::int64_t attempt = 1; attempt <= 12; ++attempt) {
    const auto reply = say(hello_of(attempt, layout_));
    ASSERT_TRUE(reply) << reply.error().message;
    if (attempt > 1) {
      ASSERT_GE(reply->candidates_size(), 1);
      const service::Candidate best = newest_of(*reply);
      EXPECT_EQ(best.step(), newest);
      const auto restored = restore(best);
      ASSERT_TRUE(restored) << restored.error().message;
      auto mapped = Arena::open(arena_);
      ASSERT_TRUE(mapped);
      mapped_ = std::move(*mapped);
      EXPECT_TRUE(holds(restored->slot(), newest));
      restored_later += newest > 0 ? 1 : 0;
    }
    Worker worker(arena_, attempt, endless());
    ::usleep(static_cast<useconds_t>(20000 + random() % 200000));
    const auto process = service_process();
    ASSERT_TRUE(process);
    EXPECT_TRUE(send_signal(*process, SIGKILL));
    worker.kill();
    ASSERT_TRUE(end_processes({*process}, now() + kPatience));
    auto mapped = Arena::open(arena_);
    ASSERT_TRUE(mapped);
    if (const auto ready = (*mapped)->newest_ready()) newest = (*mapped)->slot(*ready).step.value;
    start();
  }
  EXPECT_GT(restored_later, 6);
  // And with the memory gone too, what was published.
  kill_service();
  std::filesystem::remove_all(arena_);
  const auto stored = stored_steps();
  ASSERT_FALSE(stored.empty());
  start();
  const auto reply = say_hello(0);
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(newest_of(*reply).step(), stored.front());
  ASSERT_TRUE(restore(newest_of(*reply)));
  EXPECT_TRUE(logged("all memory of the job was lost")) << log();
}

// Ten minutes in small: the store answers nothing for as long as a dozen intervals.
TEST_F(DeathTest, TrainsOnWhileTheStoreIsAwayAndShowsHowOldTheLastCheckpointIs) {
  write_job("interval: 100ms");
  start();
  ASSERT_TRUE(say_hello(1));
  std::int64_t step = 0;
  make_step(step);
  ASSERT_TRUE(eventually([&] {
    make_step(++step);
    return status().durable_step() > 0;
  }));
  std::ofstream(failing_) << "yes";
  // What was under way when it failed may still have come through.
  ASSERT_TRUE(eventually([&] {
    make_step(++step);
    return status().waiting_for().find("of the test fails") != std::string::npos;
  }));
  const auto failing = status();
  const auto memory = [&] {
    const auto text = read_file(fmt::format("/proc/{}/status", service_process()->pid));
    return std::atoll(text->c_str() + text->find("RssAnon:") + 8);
  };
  const auto before = memory();
  double age = failing.durable_age_seconds();
  for (const Time until = now() + 2s; now() < until; ::usleep(2000)) make_step(++step);
  const auto later = status();
  EXPECT_EQ(later.durable_step(), failing.durable_step());
  EXPECT_GT(later.durable_age_seconds(), age + 1.5);
  EXPECT_EQ(later.ready_step(), step);
  EXPECT_NE(later.waiting_for(), "");
  EXPECT_LT(memory() - before, 16 << 10);
  std::filesystem::remove(failing_);
  ASSERT_TRUE(eventually([&] { return status().durable_step() > failing.ready_step(); }))
      << "the newest state goes up, not the one that failed first";
  EXPECT_EQ(status().waiting_for(), "");
}

TEST_F(DeathTest, CountsTheAgeOfACheckpointFromItsStepAndNotFromItsUpload) {
  set("FAULTY_PIECE_MS", "100");
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  ASSERT_TRUE(make_step(1));
  ASSERT_TRUE(eventually([&] { return status().storing_step() == 1; }));
  const Time seen = now();
  ASSERT_TRUE(eventually([&] { return status().durable_step() == 1; }));
  const double uploading = seconds(now() - seen);
  EXPECT_GE(status().durable_age_seconds(), uploading);
}

TEST_F(DeathTest, RemembersWhatAFlushTookToo) {
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  ASSERT_TRUE(shut_down(true, false));
  ASSERT_EQ(stored_steps(), std::vector<std::int64_t>{0});
  const auto remembered = [&]() -> std::vector<StoredCheckpoint> {
    std::error_code none;
    const auto folder = launch_.job_directory / "service";
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, none)) {
      if (entry.path().extension() != ".json") continue;
      if (const auto history = read_service_history(entry.path())) return history->checkpoints;
    }
    return {};
  };
  ASSERT_TRUE(eventually([&] { return !remembered().empty(); }));
  EXPECT_GT(remembered().back().seconds, 0);
}

// ---- before a deadline ----

TEST_F(DeathTest, StoresTheNewestStepAtOnceOnANoticeAndSaysWhenItWasSafe) {
  start();
  ASSERT_TRUE(say_hello(1));
  for (std::int64_t step = 0; step <= 5; ++step) make_step(step);
  ASSERT_TRUE(eventually([&] { return status().durable_step() > 0; }));
  make_step(6);
  ASSERT_TRUE(tell([](auto& request) {
    request.mutable_notice()->set_deadline_seconds(60);
    request.mutable_notice()->set_everyone(true);
  }));
  EXPECT_NE(mapped_->requests().load() & kRequestDrain, 0u);
  ASSERT_TRUE(eventually([&] { return status().notice().safe_step() == 6; }));
  EXPECT_GT(status().notice().safe_before_seconds(), 0);
  EXPECT_EQ(stored_steps().front(), 6);
  // The step in hand was finished meanwhile: it still fits.
  make_step(7);
  ASSERT_TRUE(eventually([&] { return status().notice().safe_step() == 7; }));
  EXPECT_EQ(stored_steps().front(), 7);
  EXPECT_TRUE(logged("step 7 is safe in the store")) << log();
  // A new gang means that the machine has been spared.
  ASSERT_TRUE(say_hello(2));
  EXPECT_FALSE(status().has_notice());
}

TEST_F(DeathTest, DropsAnUploadInHandWhenOnlyTheNewestFits) {
  set("FAULTY_PIECE_MS", "1000");
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  ASSERT_TRUE(make_step(1));
  ASSERT_TRUE(eventually([&] { return status().storing_step() == 1; }));
  make_step(2);
  // Nothing is measured yet: what is assumed for 12 MB is 1.3 s, for both of them 2.5.
  ASSERT_TRUE(tell([](auto& request) {
    request.mutable_notice()->set_deadline_seconds(2);
    request.mutable_notice()->set_everyone(true);
  }));
  ASSERT_TRUE(eventually([&] { return status().notice().safe_step() == 2; }));
  const auto stored = stored_steps();
  EXPECT_EQ(stored, std::vector<std::int64_t>{2}) << "step 1 was dropped";
}

TEST_F(DeathTest, LeavesItToTheOtherNodesMemoryWhenOnlyThisOneGoes) {
  start();
  service::Hello hello = hello_of(1, layout_);
  hello.set_node_count(2);
  ASSERT_TRUE(say(hello));
  join(1);
  make_step(0);
  ASSERT_TRUE(tell([](auto& request) { request.mutable_notice()->set_deadline_seconds(30); }));
  EXPECT_NE(mapped_->requests().load() & kRequestDrain, 0u);
  EXPECT_NE(status().notice().decision().find("other nodes"), std::string::npos);
  EXPECT_EQ(status().storing_step(), -1);
}

}  // namespace
}  // namespace surefoot
