#include "launcher/effects.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "checkpoint/arena.h"
#include "common/file.h"
#include "launcher/traces.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
namespace core = supervisor;

// Each is below the core's limit for the same effect (supervisor::Rules), so that its answer comes
// before the core gives up.
constexpr Duration kServiceStart = 25s;
constexpr Duration kTraces = 4s;
constexpr Duration kEndGang = 3s;
constexpr Duration kFlush = 4min;
constexpr Duration kFree = 10s;
constexpr Duration kAsk = 1s;

class Performer {
 public:
  explicit Performer(EffectContext context)
      : context_(std::move(context)),
        client_({context_.arena_folder, context_.keys}, context_.job_id) {}

  EffectOutcome operator()(const core::Effect& effect, std::optional<Gang>& gang) {
    EffectOutcome outcome;
    const auto answer = [&](auto what) { outcome.event = core::Event{now(), std::move(what)}; };
    if (std::holds_alternative<core::StartService>(effect)) {
      start_service(outcome);
    } else if (std::holds_alternative<core::RequestDrain>(effect)) {
      service::Request request;
      request.mutable_ask()->set_drain(true);
      note(outcome, client_.call(request, now() + kAsk));
    } else if (const auto* traces = std::get_if<core::CollectTraces>(&effect)) {
      collect_traces(traces->attempt, gang, outcome);
      answer(core::TracesCollected{traces->attempt});
    } else if (const auto* end = std::get_if<core::EndGang>(&effect)) {
      const Status ended = end_gang(gang);
      if (!ended) outcome.outcome = ended.error().message;
      ended ? answer(core::GangEnded{end->attempt})
            : answer(core::GangNotEnded{end->attempt, ended.error().message});
    } else if (std::holds_alternative<core::FinishJob>(effect)) {
      finish(outcome);
    } else if (std::holds_alternative<core::FlushAndKeepArena>(effect)) {
      const Status flushed = shut_down(true, false, kFlush);
      answer(core::ArenaFlushed{flushed.has_value(), flushed ? "" : flushed.error().message});
      if (!flushed) outcome.outcome = flushed.error().message;
    } else if (std::holds_alternative<core::FreeArena>(effect)) {
      const Status freed = free_arena();
      answer(core::ArenaFreed{freed.has_value(), freed ? "" : freed.error().message});
      if (!freed) outcome.outcome = freed.error().message;
    }
    return outcome;
  }

 private:
  static void note(EffectOutcome& outcome, const Result<service::Reply>& reply) {
    if (!reply) outcome.outcome = reply.error().message;
  }

  Result<service::StatusReply> status(Time deadline) {
    service::Request request;
    request.mutable_status()->set_records_from(~std::uint64_t{0});  // no records
    SUREFOOT_ASSIGN(const service::Reply reply, client_.call(request, deadline));
    return reply.status();
  }

  void start_service(EffectOutcome& outcome) {
    const Time deadline = now() + kServiceStart;
    Status started = ensure_service(client_, context_.service, deadline);
    auto reply = started ? status(deadline) : Result<service::StatusReply>(started.error());
    if (reply) {
      outcome.event = core::Event{
          now(), core::ServiceAnswered{Step{reply->ready_step()}, Step{reply->durable_step()}}};
    } else {
      outcome.outcome = reply.error().message;
      outcome.event = core::Event{now(), core::ServiceStartFailed{reply.error().message}};
    }
  }

  void collect_traces(Attempt attempt, const std::optional<Gang>& gang, EffectOutcome& outcome) {
    const auto folder = context_.directory.attempt_logs(attempt);
    auto reply = status(now() + 500ms);
    const Status written =
        write_traces(folder, reply ? &*reply : nullptr,
                     gang ? gang->processes() : std::vector<ProcessId>{}, now() + kTraces);
    if (!written) outcome.outcome = written.error().message;
  }

  Status end_gang(std::optional<Gang>& gang) {
    const Time deadline = now() + kEndGang;
    service::Request request;
    request.mutable_end_gang();
    // The service knows its writers; without it all of them are found as processes of mpirun's
    // session.
    auto asked = client_.call(request, now() + kAsk);
    if (!asked && asked.error().code != Code::kRetry) return asked.error();
    return gang ? gang->end(deadline) : Status();
  }

  void finish(EffectOutcome& outcome) {
    service::Request request;
    request.mutable_finish()->set_step(context_.max_steps);
    auto reply = client_.call(request, now() + context_.finish_timeout);
    if (!reply) {
      outcome.outcome = reply.error().message;
      const bool may_pass = reply.error().code == Code::kRetry;
      outcome.event = core::Event{now(), core::FinishFailed{reply.error().message, may_pass}};
      return;
    }
    const service::FinishReply& finish = reply->finish();
    outcome.result = JournalResult{finish.weights_sha256(), finish.state_sha256(), finish.folder(),
                                   Step{context_.max_steps}.value};
    outcome.event = core::Event{now(), core::JobFinished{}};
  }

  Status shut_down(bool flush, bool remove, Duration patience) {
    service::Request request;
    request.mutable_shutdown()->set_flush(flush);
    request.mutable_shutdown()->set_remove(remove);
    auto reply = client_.call(request, now() + patience);
    return reply ? Status() : Status(reply.error());
  }

  // The folder goes when no service holds its lock any more: one that answers and refuses has a
  // reason, one that hangs is ended.
  Status free_arena() {
    const Time deadline = now() + kFree;
    const std::filesystem::path& folder = context_.arena_folder;
    if (!std::filesystem::exists(folder)) return {};
    const Status asked = shut_down(false, true, kFree / 2);
    if (!asked && status(now() + kAsk)) return asked.error();
    for (bool ended = false;;) {
      auto lock = FolderLock::take(folder, "service.lock");
      if (lock || lock.error().code != Code::kStale) break;
      if (now() > deadline) return lock.error();
      if (!asked && !ended) {
        ended = true;
        const auto holder = read_file((folder / "service.lock").string());
        const auto process = process_of(holder ? std::atoi(holder->c_str()) : 0);
        if (process) SUREFOOT_TRY(end_processes({*process}, deadline));
      }
      std::this_thread::sleep_for(5ms);
    }
    std::error_code failed;
    std::filesystem::remove_all(folder, failed);
    if (failed)
      return error(Code::kRetry, "cannot remove {}: {}", folder.string(), failed.message());
    return {};
  }

  EffectContext context_;
  ServiceClient client_;
};

struct Task {
  core::Effect effect;
  std::int64_t action = 0;
  std::optional<Gang> gang;
};

}  // namespace

struct EffectThread::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  std::vector<EffectOutcome> outcomes;
  bool closing = false;
  bool ended = false;
  Fd event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  void run(EffectContext context) {
    Performer perform(std::move(context));
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return closing || !tasks.empty(); });
      if (tasks.empty()) break;
      Task task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      EffectOutcome outcome = perform(task.effect, task.gang);
      outcome.action = task.action;
      lock.lock();
      outcomes.push_back(std::move(outcome));
      const std::uint64_t one = 1;
      [[maybe_unused]] const ssize_t put = ::write(event.get(), &one, sizeof one);
    }
    ended = true;
    changed.notify_all();
  }
};

EffectThread::EffectThread(EffectContext context) : shared_(std::make_shared<Shared>()) {
  thread_ = std::thread([shared = shared_, context = std::move(context)] { shared->run(context); });
}

EffectThread::~EffectThread() {
  close(now());
}

void EffectThread::start(const core::Effect& effect, std::int64_t action,
                         const std::optional<Gang>& gang) {
  const std::lock_guard lock(shared_->mutex);
  shared_->tasks.push_back({effect, action, gang});
  shared_->changed.notify_all();
}

std::vector<EffectOutcome> EffectThread::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(shared_->event.get(), &count, sizeof count);
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->outcomes, {});
}

int EffectThread::event_fd() const {
  return shared_->event.get();
}

void EffectThread::close(Time deadline) {
  if (!thread_.joinable()) return;
  std::unique_lock lock(shared_->mutex);
  shared_->closing = true;
  shared_->tasks.clear();
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_until(lock, deadline, [&] { return shared_->ended; });
  lock.unlock();
  ended ? thread_.join() : thread_.detach();
}

}  // namespace surefoot
