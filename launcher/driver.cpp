#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "checkpoint/arena.h"
#include "common/log.h"
#include "launcher/driver_internal.h"
#include "launcher/format.h"
#include "launcher/rules.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;

constexpr Duration kPoll = 100ms;
constexpr Duration kPollEarly = 20ms;
constexpr Duration kSaveInterval = 5s;
constexpr Duration kLogInterval = 1s;
constexpr Duration kFinishMargin = 1s;  // so that its answer comes before the core gives up

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

NodeContext node_context(const DriverSettings& settings,
                         const std::filesystem::path& arena_folder) {
  NodeContext context;
  context.alone = core::rules_of(settings.job).fleet.alone;
  context.has_gpus = settings.job.resources().device() == config::Resources::cuda;
  context.arena_folder = arena_folder;
  context.job_id = settings.job_id;
  context.keys = client_half(settings.keys);
  context.directory = settings.directory;
  context.bring_model = settings.bring_model;
  if (!context.alone) {
    context.probe =
        std::make_shared<StoreProbe>(settings.directory.root / "probe", settings.job_id);
    context.stop = Fd(::eventfd(0, EFD_CLOEXEC));
  }
  context.service.program = settings.programs.node;
  context.service.job_file = settings.directory.job_file();
  context.service.job_directory = settings.directory.root;
  context.service.supervised = true;
  BootstrapSettings& others = context.others;
  others.ssh = settings.job.resources().ssh();
  others.job_id = settings.job_id;
  others.job = to_yaml(settings.job);
  others.keys = settings.keys;
  others.directory = settings.directory.root;
  others.arena_folder = arena_folder;
  others.programs = settings.programs.node.parent_path();
  others.bundle = settings.job.resources().bundle();
  return context;
}

core::Rules rules_for(const DriverSettings& settings) {
  core::Rules rules = core::rules_of(settings.job);
  rules.injected_faults = static_cast<std::int64_t>(settings.faults.size());
  rules.faults_count = settings.faults_count;
  rules.accept_changes = settings.accept_changes;
  return rules;
}

}  // namespace

Driver::Driver(const DriverSettings& settings, Journal& journal, Console& console)
    : settings_(settings),
      journal_(journal),
      rules_(rules_for(settings)),
      narration_(console, rules_),
      arena_folder_(arena_folder(settings.job.checkpoint().arena(), settings.job_id)),
      machines_(node_context(settings, arena_folder_), rules_.fleet, *this),
      saved_(now()) {
  const sigset_t set = handled_signals();
  signals_ = Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

Result<int> Driver::run() {
  auto writer = MetricsWriter::open(settings_.directory.metrics());
  if (writer) metrics_ = std::move(*writer);
  if (!metrics_) narration_.warning("no metrics are written: " + writer.error().message);
  open_control();
  open();
  SUREFOOT_TRY(decide_all());
  while (!stop_) {
    wait();
    take_signals();
    take_hosts();
    machines_.handle();
    observe_answers();
    SUREFOOT_TRY(journal_status_);
    look_at_gang();
    SUREFOOT_TRY(decide_all());
    narration_.show(state_, now());
    if (now() >= core::deadline(rules_, state_)) {
      post(core::TimerFired{});
      SUREFOOT_TRY(decide_all());
    }
    if (now() >= next_logs_) {
      machines_.mirror_logs();
      next_logs_ = now() + kLogInterval;
    }
    SUREFOOT_TRY(save_now_and_then());
  }
  control_.reset();
  SUREFOOT_TRY(journal_.save(state_.history));
  // mpirun may have been ended a moment ago; nobody else reaps it.
  if (gang_) [[maybe_unused]]
    const auto reaped = gang_->poll();
  machines_.close(now() + 1s);
  return stop_->exit_code;
}

void Driver::open() {
  const core::History& history = journal_.history();
  bool alive = false;
  if (history.attempt_open) {
    gang_ = Gang::left_behind(journal_.open_gang(), gang_spec(history.attempt));
    alive = !gang_->processes().empty();
    // How many workers it has only its supervisor knew; that they are all there was seen to.
    observer_.follow(history.attempt, 1);
  }
  post(core::JobOpened{history, alive});
  if (settings_.cancel) post(core::CancelAsked{});
  if (!rules_.fleet.alone)
    discovery_.emplace(discovery_options(settings_.job.resources(), settings_.directory.root));
}

Status Driver::decide_all() {
  while (!events_.empty() && !stop_) {
    const core::Event event = std::move(events_.front());
    events_.pop_front();
    SUREFOOT_TRY(decide_one(event));
  }
  return {};
}

Status Driver::decide_one(const core::Event& event) {
  core::Decision decision = core::decide(rules_, std::move(state_), event);
  state_ = std::move(decision.next);
  last_reason_ = decision.reason;
  std::vector<std::int64_t> actions(decision.effects.size());
  if (decision.record) {
    decision.next = state_;
    SUREFOOT_ASSIGN(actions, journal_.record(event, decision));
    spdlog::info("{}: {}", core::name(event), decision.reason);
  }
  narration_.decided(event, decision.reason, state_);
  machines_.follow(state_.fleet);
  for (std::size_t i = 0; i < decision.effects.size(); ++i) {
    spdlog::info("  -> {}", core::name(decision.effects[i]));
    narration_.effect(decision.effects[i]);
    perform(decision.effects[i], i < actions.size() ? actions[i] : 0);
  }
  return {};
}

void Driver::perform(const core::Effect& effect, std::int64_t action) {
  const Attempt attempt = state_.history.attempt;
  if (const auto* start = std::get_if<core::StartService>(&effect)) {
    const core::Node& node = state_.fleet[start->node];
    const int workers = node.host.slots > 0 ? node.host.slots : rules_.fleet.workers_per_node;
    machines_.start_service(start->node, node.host.name, {start->spare, workers, node.in_gang},
                            action);
  } else if (const auto* gang = std::get_if<core::LaunchGang>(&effect)) {
    launch(*gang, action);
  } else if (std::holds_alternative<core::RequestDrain>(effect)) {
    machines_.drain(state_.fleet, attempt, action);
  } else if (std::holds_alternative<core::TellEveryone>(effect)) {
    machines_.tell_everyone(state_.fleet, action);
  } else if (std::holds_alternative<core::CollectTraces>(effect)) {
    machines_.collect_traces(state_.fleet, attempt, gang_, action);
  } else if (std::holds_alternative<core::EndGang>(effect)) {
    machines_.end_gang(state_.fleet, attempt, gang_, action);
  } else if (const auto* finish = std::get_if<core::FinishJob>(&effect)) {
    machines_.finish(finish->node, rules_.max_steps,
                     std::max<Duration>(state_.finish_limit - now() - kFinishMargin, 1s), action);
  } else if (const auto* flush = std::get_if<core::FlushAndKeepArena>(&effect)) {
    machines_.flush(flush->nodes, action);
  } else if (std::holds_alternative<core::FreeArena>(effect)) {
    machines_.free(action);
  } else if (const auto* stop = std::get_if<core::Stop>(&effect)) {
    stop_ = *stop;
    if (action != 0) (void)journal_.done(action);
  }
}

void Driver::performed(std::int64_t action, const std::string& outcome) {
  if (outcome != "done") spdlog::warn("{}", outcome);
  if (action != 0 && journal_status_) journal_status_ = journal_.done(action, outcome);
}

void Driver::has_result(const JournalResult& result) {
  if (journal_status_) journal_status_ = journal_.set_result(result);
}

bool Driver::early() const {
  return state_.doing == core::Doing::kRunning && state_.attempt_step.value < 0;
}

void Driver::wait() {
  machines_.set_pace(early() ? kPollEarly : kPoll);
  Time until = std::min(core::deadline(rules_, state_), now() + kPoll);
  if (gang_ && !gang_exit_told_ && early()) until = std::min(until, now() + kPollEarly);
  const auto patience = std::chrono::ceil<std::chrono::milliseconds>(
      std::max<Duration>(until - now(), Duration::zero()));
  pollfd fds[] = {{signals_.get(), POLLIN, 0}, {machines_.event_fd(), POLLIN, 0}};
  ::poll(fds, 2, static_cast<int>(patience.count()));
}

void Driver::take_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) continue;  // look_at_gang() follows
    if (info.ssi_signo == SIGUSR1) {
      post(core::CancelAsked{});
    } else {
      post(core::Interrupted{});
    }
  }
}

Status Driver::save_now_and_then() {
  if (now() - saved_ < kSaveInterval) return {};
  saved_ = now();
  return journal_.save(state_.history);
}

void block_signals() {
  const sigset_t set = handled_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // whoever reads our output may leave; the job goes on
}

Result<int> supervise(const DriverSettings& settings, Journal& journal, Console& console) {
  auto code = Driver(settings, journal, console).run();
  if (code) return code;
  return error(code.error().code, "{}; what runs goes on, `surefoot resume {}` takes it up again",
               code.error().message, settings.directory.root.string());
}

}  // namespace surefoot
