// A job with a real service process, and a gang of one played by the test.
#pragma once

#include <fstream>

#include "checkpoint/arena_test_util.h"
#include "checkpoint/checkpoint_store.h"
#include "checkpoint/service_client.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/store/file/file_store.h"
#include "common/test_paths.h"

namespace surefoot {

using namespace std::chrono_literals;

inline constexpr auto kPatience = 30s;  // far more than anything here takes

inline StateLayout test_layout() {
  StateLayout layout;
  layout.add_section("parameters", DType::kF32, {{"w", {1500, 1000}, 0}, {"b", {100}, 0}});
  layout.add_section("exp_avg", DType::kF32, {{"w", {1500, 1000}, 0}, {"b", {100}, 0}});
  return layout;
}

// The state after a step: words in the tensors, zeros in the gaps.
inline void make_state(const StateLayout& layout, std::span<std::byte> state, std::int64_t step) {
  for (const SectionSpec& section : layout.sections) {
    for (const TensorSpec& tensor : section.tensors) {
      const std::int64_t bytes = tensor.elements() * size_of(section.type);
      fill_state(state.subspan(section.offset + tensor.offset, bytes), step);
    }
  }
}

template <class Predicate>
bool eventually(const Predicate& predicate, Duration patience = kPatience) {
  for (const Time deadline = now() + patience; now() < deadline; ::usleep(5000)) {
    if (predicate()) return true;
  }
  return predicate();
}

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    launch_.program = programs_folder() / "surefoot-node";
    launch_.job_file = folder_.path() / "job.yaml";
    launch_.job_directory = folder_.path() / "run";
    std::filesystem::create_directories(launch_.job_directory);
    std::ofstream(launch_.job_directory / "job.json")
        << R"({"id": ")" << kJobId << R"(", "name": "t"})"
        << "\n";
    write_job("interval: 1h");
    arena_ = arena_folder((folder_.path() / "shm").string(), kJobId);
    client_ = std::make_unique<ServiceClient>(arena_, kJobId);
  }
  void TearDown() override {
    const auto process = service_process();
    if (process) (void)end_processes({*process}, now() + kPatience);
    // Of a sanitizer build: the service's own reports.
    EXPECT_FALSE(logged("Sanitizer") || logged("runtime error"));
    if (HasFailure()) std::printf("%s\n", log().c_str());
  }

  // `checkpoint`: more keys of that section, in one line.
  void write_job(const std::string& checkpoint, const std::string& recovery = "") {
    std::ofstream(launch_.job_file)
        << "name: t\nmodel: {kind: mlp}\ndata: {kind: synthetic}\n"
        << "train: {max_steps: " << max_steps_
        << ", global_batch_size: 8, micro_batch_size: 4, optimizer: {kind: "
           "sgd, lr: 0.1}}\n"
        << "checkpoint: {arena: " << (folder_.path() / "shm").string() << ", " << checkpoint
        << "}\nrecovery: {" << recovery << "}\n";
  }

  void start() {
    const Status started = ensure_service(*client_, launch_, now() + kPatience);
    ASSERT_TRUE(started) << started.error().message << log();
  }
  [[nodiscard]] std::optional<ProcessId> service_process() const {
    auto text = read_file(arena_ / "service.lock");
    auto process = text ? process_of(std::atoi(text->c_str())) : error(Code::kNotFound, "none");
    if (!process || !is_alive(*process)) return std::nullopt;
    return *process;
  }
  void kill_service() {
    const auto process = service_process();
    ASSERT_TRUE(process);
    ASSERT_TRUE(end_processes({*process}, now() + kPatience));
  }
  [[nodiscard]] std::string log() const {
    auto text = read_file(launch_.job_directory / "logs" / "node.log");
    return text ? *text : "";
  }
  [[nodiscard]] bool logged(std::string_view text) const {
    return log().find(text) != std::string::npos;
  }

  [[nodiscard]] service::StatusReply status(std::uint64_t records_from = 0) {
    service::Request request;
    request.mutable_status()->set_records_from(records_from);
    auto reply = client_->call(request, now() + kPatience);
    EXPECT_TRUE(reply) << reply.error().message;
    return reply ? reply->status() : service::StatusReply();
  }
  [[nodiscard]] service::Hello hello_of(std::int64_t attempt, const StateLayout& layout,
                                        std::string_view training = "train.seed: 1") const {
    service::Hello hello;
    hello.set_attempt(attempt);
    hello.set_layout(layout.to_json());
    hello.set_training_hash(digest(training).hex());
    hello.add_training_lines(std::string(training));
    hello.set_numerics_id("test");
    hello.set_local_size(1);
    hello.set_node_count(1);
    hello.set_max_steps(max_steps_);
    return hello;
  }
  Result<service::HelloReply> say(const service::Hello& hello) {
    service::Request request;
    *request.mutable_hello() = hello;
    SUREFOOT_ASSIGN(auto reply, client_->call(request, now() + kPatience));
    return reply.hello();
  }
  Result<service::HelloReply> say_hello(std::int64_t attempt) {
    auto reply = say(hello_of(attempt, layout_));
    if (reply) join(reply->attempt());
    return reply;
  }
  Result<service::RestoreReply> restore(const service::Candidate& candidate) {
    service::Request request;
    *request.mutable_restore()->mutable_candidate() = candidate;
    SUREFOOT_ASSIGN(auto reply, client_->call(request, now() + kPatience));
    return reply.restore();
  }
  Result<service::FinishReply> finish(std::int64_t step) {
    service::Request request;
    request.mutable_finish()->set_step(step);
    SUREFOOT_ASSIGN(auto reply, client_->call(request, now() + kPatience));
    return reply.finish();
  }
  Status shut_down(bool flush, bool remove) {
    service::Request request;
    request.mutable_shutdown()->set_flush(flush);
    request.mutable_shutdown()->set_remove(remove);
    SUREFOOT_TRY(client_->call(request, now() + kPatience));
    return {};
  }

  // The gang: maps the arena, then makes steps.
  void join(std::int64_t attempt) {
    auto mapped = Arena::open(arena_);
    ASSERT_TRUE(mapped) << mapped.error().message;
    mapped_ = std::move(*mapped);
    snapshotter_ = std::make_unique<Snapshotter>(*mapped_, Attempt{attempt}, 0, 1);
    if (const auto newest = mapped_->newest_ready()) snapshotter_->start_from(*newest);
    attempt_ = attempt;
  }
  // Makes a step as the control word of a gang of one would have it. True: it is a checkpoint.
  bool make_step(std::int64_t step) {
    SUREFOOT_CHECK(snapshotter_->begin(Step{step}, now() + kPatience).has_value());
    const std::uint64_t bits = mapped_->requests().load();
    const bool wanted = (bits & kRequestCheckpoint) != 0 && (bits & kUploadBusy) == 0;
    const bool checkpoint = wanted && step > 0;
    fill_step(step);
    StepRecord record;
    record.attempt = attempt_;
    record.step = step;
    record.loss = 1.0 / static_cast<double>(step + 1);
    record.checkpoint = checkpoint ? 1 : 0;
    SUREFOOT_CHECK(
        snapshotter_->commit(step * 8, checkpoint, record, now() + kPatience).has_value());
    return checkpoint;
  }
  // What a step makes: here, so that steps may be left out, of its number alone.
  virtual void fill_step(std::int64_t step) {
    make_state(layout_, snapshotter_->write_bytes(), step);
  }
  [[nodiscard]] bool holds(int slot, std::int64_t step) {
    std::vector<std::byte> expected(static_cast<std::size_t>(layout_.bytes));
    make_state(layout_, expected, step);
    const auto bytes = mapped_->bytes(slot);
    return std::equal(bytes.begin(), bytes.end(), expected.begin());
  }

  // The store, looked at from outside.
  [[nodiscard]] std::vector<std::int64_t> stored_steps() {
    std::vector<std::int64_t> steps;
    auto store = FileStore::open(store_folder(), /*read_only=*/true);
    if (!store) return steps;
    CheckpointStore checkpoints(**store, kJobId);
    auto entries = checkpoints.list({});
    if (!entries) return steps;
    for (const StepEntry& entry : *entries) {
      if (entry.inventory.state == StepState::kWhole &&
          checkpoints.verify(entry.inventory.step, {}).has_value())
        steps.push_back(entry.inventory.step.value);
    }
    return steps;
  }
  [[nodiscard]] std::filesystem::path store_folder() const {
    return launch_.job_directory / "checkpoints" / "t";
  }

  static constexpr const char* kJobId = "0123456789abcdef";
  TemporaryFolder folder_;
  ServiceLaunch launch_;
  std::filesystem::path arena_;
  std::unique_ptr<ServiceClient> client_;
  StateLayout layout_ = test_layout();
  std::unique_ptr<Arena> mapped_;
  std::unique_ptr<Snapshotter> snapshotter_;
  std::int64_t attempt_ = 0;
  std::int64_t max_steps_ = 100;
};

}  // namespace surefoot
