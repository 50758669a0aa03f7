// A worker without MPI and libtorch: takes surefoot-worker's place in tests of the launcher, under
// the real mpirun and with the real service.
//
// Speaks to the service and the arena as a worker does: lock, hello, restore, rank lines,
// snapshots, records, finish, exit codes. Its "model" is a thousand numbers whose next values
// depend on the step and on nothing else, so every run of a job must end with the same bits. Ranks
// meet at the slots of the arena only. Takes the injected faults of configs/fault.h in the phases
// that it has (data, update, finishing).
//
// Test keys in the job's environment: FAKE_EXIT=N: leave with N before hello; FAKE_STEP_MS=N: a
// step takes so long; FAKE_NO_CUDA: --describe refuses, as a build without CUDA does.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "checkpoint/arena.h"
#include "checkpoint/layout.h"
#include "checkpoint/service_client.h"
#include "checkpoint/snapshot.h"
#include "common/file.h"
#include "common/log.h"
#include "configs/fault.h"
#include "configs/job.h"
#include "configs/job_directory.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
constexpr std::int64_t kNumbers = 1000;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Start {
  int slot = -1;
  Step step;
};

class FakeWorker {
 public:
  FakeWorker(config::Job job, JobDirectory directory)
      : job_(std::move(job)), directory_(std::move(directory)) {}

  Result<int> run() {
    if (!variable("FAKE_EXIT").empty()) return std::stoi(variable("FAKE_EXIT"));
    SUREFOOT_ASSIGN(id_, directory_.job_id(job_.name()));
    folder_ = arena_folder(job_.checkpoint().arena(), id_);
    SUREFOOT_ASSIGN(const Start start, rank_ == 0 ? lead() : follow());
    spdlog::info("goes on from step {}", start.step);
    Snapshotter snapshotter(*arena_, attempt_, rank_, size_);
    if (start.slot >= 0) snapshotter.start_from(start.slot);
    if (start.slot < 0) SUREFOOT_TRY(step(snapshotter, Step{0}));
    for (Step at = start.slot < 0 ? Step{0} : start.step; at.value < job_.train().max_steps();) {
      at = at.next();
      SUREFOOT_TRY(step(snapshotter, at));
      // mpirun ends the others, who may not have seen the bit yet.
      if ((arena_->requests().load() & kRequestDrain) != 0) return leave(75, "drained");
    }
    enter(Step{job_.train().max_steps()}, Phase::kFinishing);
    if (rank_ == 0) SUREFOOT_TRY(finish());
    return leave(0, "");
  }

 private:
  Result<Start> lead() {
    SUREFOOT_TRY(take_lock());
    ServiceClient client(folder_, id_);
    service::Request request;
    SUREFOOT_ASSIGN(const TrainingIdentity identity, training_identity(job_));
    StateLayout layout;
    TensorSpec tensor;
    tensor.name = "numbers";
    tensor.shape = {kNumbers};
    layout.add_section("parameters", DType::kF32, {tensor});
    auto& hello = *request.mutable_hello();
    hello.set_attempt(attempt_.value);
    hello.set_layout(layout.to_json());
    hello.set_training_hash(identity.hash.hex());
    for (const std::string& line : identity.lines) hello.add_training_lines(line);
    hello.set_numerics_id("fake");
    hello.set_local_size(size_);
    hello.set_node_count(1);
    hello.set_max_steps(job_.train().max_steps());
    SUREFOOT_ASSIGN(const service::Reply reply, client.call(request, now() + 10s));
    SUREFOOT_ASSIGN(arena_, Arena::open(folder_));
    SUREFOOT_TRY(register_writer(*arena_, attempt_, rank_, rank_));
    set_phase(arena_->line(rank_), Phase::kRestoring, Step{0});
    const service::Candidate* best = nullptr;
    for (const auto& candidate : reply.hello().candidates()) {
      const bool memory = best == nullptr || candidate.source() < best->source();
      if (best == nullptr || candidate.step() > best->step() ||
          (candidate.step() == best->step() && memory))
        best = &candidate;
    }
    Start start;
    if (best != nullptr) {
      service::Request restore;
      *restore.mutable_restore()->mutable_candidate() = *best;
      SUREFOOT_ASSIGN(const service::Reply restored, client.call(restore, now() + 10s));
      start = {restored.restore().slot(), Step{restored.restore().step()}};
    }
    SUREFOOT_TRY(
        write_file_atomically(meeting_point(), fmt::format("{} {}", start.slot, start.step)));
    return start;
  }

  Result<Start> follow() {
    const Time deadline = now() + 20s;
    auto text = read_file(meeting_point());
    for (; !text && now() < deadline; text = read_file(meeting_point()))
      std::this_thread::sleep_for(2ms);
    if (!text) return error(Code::kRestart, "rank 0 does not come");
    Start start;
    std::sscanf(text->c_str(), "%d %ld", &start.slot, &start.step.value);
    SUREFOOT_ASSIGN(arena_, Arena::open(folder_));
    SUREFOOT_TRY(register_writer(*arena_, attempt_, rank_, rank_));
    return start;
  }

  [[nodiscard]] std::filesystem::path meeting_point() const {
    return folder_ / fmt::format("attempt-{}/start", attempt_);
  }

  Status take_lock() {
    for (const Time deadline = now() + 5s;; std::this_thread::sleep_for(5ms)) {
      auto lock = FolderLock::take(folder_, "gang.lock");
      if (lock) return lock_.emplace(std::move(*lock)), Status();
      if (lock.error().code != Code::kStale || now() > deadline) return lock.error();
    }
  }

  Status step(Snapshotter& snapshotter, Step step) {
    const Time deadline = now() + 20s;
    enter(step, Phase::kData);
    SUREFOOT_TRY(snapshotter.begin(step, deadline));
    if (!variable("FAKE_STEP_MS").empty())
      std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(variable("FAKE_STEP_MS"))));
    enter(step, Phase::kUpdate);
    auto* to = reinterpret_cast<float*>(snapshotter.write_bytes().data());
    const auto* from =
        step.value == 0 ? nullptr : reinterpret_cast<const float*>(snapshotter.read_bytes().data());
    for (std::int64_t i = kNumbers * rank_ / size_; i < kNumbers * (rank_ + 1) / size_; ++i) {
      to[i] = from == nullptr ? static_cast<float>(i)
                              : from[i] * 0.99f + static_cast<float>(step.value);
    }
    StepRecord record;
    record.attempt = attempt_.value;
    record.step = step.value;
    record.samples = step.value * job_.train().global_batch_size();
    record.loss = 1.0 / (1.0 + static_cast<double>(step.value));
    record.checkpoint = (arena_->requests().load() & kRequestCheckpoint) != 0 ? 1 : 0;
    record.phase_seconds[static_cast<std::size_t>(Phase::kData)] = 1e-3;
    set_phase(arena_->line(rank_), Phase::kSnapshot, step);
    return snapshotter.commit(record.samples, record.checkpoint != 0, record, deadline);
  }

  Status finish() {
    service::Request request;
    request.mutable_finish()->set_step(job_.train().max_steps());
    auto reply = ServiceClient(folder_, id_).call(request, now() + 20s);
    return reply ? Status() : Status(reply.error());
  }

  Result<int> leave(int code, const std::string& reason) {
    set_exit(arena_->line(rank_), code, reason);
    return code;
  }

  void enter(Step step, Phase phase) {
    set_phase(arena_->line(rank_), phase, step);
    auto faults = parse_faults({variable("SUREFOOT_FAULTS")}, {job_.train().max_steps(), size_});
    if (!faults || variable("SUREFOOT_FAULTS").empty()) return;
    for (std::size_t i = 0; i < faults->size(); ++i) {
      const InjectedFault& fault = (*faults)[i];
      const bool mine =
          fault.target == InjectedFault::Target::kRank ? fault.rank % size_ == rank_ : rank_ == 0;
      const Phase wanted = fault.phase == Phase::kForwardBackward ? Phase::kData : fault.phase;
      if (fault.step == step && wanted == phase && mine && arena_->mark_fault(static_cast<int>(i)))
        fire(fault);
    }
  }

  void fire(const InjectedFault& fault) {
    const int signal = fault.action == InjectedFault::Action::kKill   ? SIGKILL
                       : fault.action == InjectedFault::Action::kTerm ? SIGTERM
                                                                      : SIGSTOP;
    const pid_t supervisor = std::stoi("0" + variable("SUREFOOT_SUPERVISOR"));
    switch (fault.target) {
      case InjectedFault::Target::kService:
        (void)send_signal(arena_->service(), signal);
        return;
      case InjectedFault::Target::kSupervisor:
        if (supervisor > 0) ::kill(supervisor, signal);
        return;
      case InjectedFault::Target::kMpirun:
        ::kill(::getppid(), signal);
        return;
      case InjectedFault::Target::kAll:
        ::kill(::getppid(), signal);
        for (int other = 1; other < size_; ++other)
          (void)send_signal(arena_->line(other).process, signal);
        [[fallthrough]];
      case InjectedFault::Target::kRank:
        ::kill(::getpid(), signal);
    }
  }

  config::Job job_;
  JobDirectory directory_;
  std::string id_;
  std::filesystem::path folder_;
  int rank_ = std::stoi("0" + variable("OMPI_COMM_WORLD_RANK"));
  int size_ = std::max(1, std::stoi("0" + variable("OMPI_COMM_WORLD_SIZE")));
  Attempt attempt_{std::stoll("0" + variable("SUREFOOT_ATTEMPT"))};
  std::unique_ptr<Arena> arena_;
  std::optional<FolderLock> lock_;
};

// As one whose build knows of CUDA, or (FAKE_NO_CUDA) not.
int describe() {
  if (!variable("FAKE_NO_CUDA").empty()) {
    std::puts("resources.device: this build of surefoot-worker has no CUDA");
    return 64;
  }
  std::puts(R"({"numerics_id": "fake", "training_hash": "0", "flops_per_sample": 1e9})");
  return 0;
}

int fake_worker(int argc, char** argv) {
  init_log("fake");
  const bool asked = std::any_of(
      argv, argv + argc, [](const char* word) { return std::string_view(word) == "--describe"; });
  if (asked) return describe();
  if (argc < 4 || std::string(argv[2]) != "--dir") return 64;
  LoadOutcome outcome = load_job(argv[1], {});
  if (!outcome.faults.empty()) return 64;
  auto code = FakeWorker(std::move(outcome.job.job), JobDirectory{argv[3]}).run();
  if (code) return *code;
  spdlog::error("{}", code.error().message);
  return code.error().code == Code::kInvalid ? 65 : 76;
}

}  // namespace
}  // namespace surefoot

int main(int argc, char** argv) {
  return surefoot::fake_worker(argc, argv);
}
