#include "launcher/driver.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <fstream>
#include <iterator>

#include "checkpoint/arena.h"
#include "common/log.h"
#include "launcher/effects.h"
#include "launcher/format.h"
#include "launcher/metrics/metrics.h"
#include "launcher/mpirun/gang.h"
#include "launcher/narration.h"
#include "launcher/observer.h"
#include "launcher/rules.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
namespace core = supervisor;

constexpr Duration kPoll = 100ms;
constexpr Duration kPollEarly = 20ms;
constexpr Duration kStatusPatience = 200ms;
constexpr Duration kLastWords =
    2s;  // a busy machine must not cost the steps and reasons of a gang that has ended
constexpr Duration kServiceReturns = 5s;  // a new service answers in a quarter of a second
constexpr Duration kServiceSilence =
    5s;  // arbitrary; a service whose process is gone is noticed at once
constexpr Duration kSaveInterval = 5s;
constexpr std::streamoff kLogTail =
    64 * 1024;  // of mpirun's log: its message on who ended stands last

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

MetricRecord metric_of(const service::Record& record) {
  MetricRecord metric;
  metric.record.kind = record.kind() == 0 ? StepRecord::kTrain : StepRecord::kEvaluation;
  metric.record.attempt = record.attempt();
  metric.record.step = record.step();
  metric.record.samples = record.samples();
  metric.record.loss = record.loss();
  metric.record.learning_rate = record.learning_rate();
  metric.record.gradient_norm = record.gradient_norm();
  metric.record.accuracy = record.accuracy();
  metric.record.checkpoint = record.checkpoint() ? 1 : 0;
  for (int i = 0; i < record.phase_seconds_size() && i < static_cast<int>(kPhaseCount); ++i) {
    metric.record.phase_seconds[i] = record.phase_seconds(i);
  }
  metric.wall_seconds = wall_clock() - record.age_seconds();
  return metric;
}

std::string tail_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) return {};
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - kLogTail));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

class Driver {
 public:
  Driver(const DriverSettings& settings, Journal& journal, Console& console);
  Result<int> run();

 private:
  // What happened -> the core -> what is to be done.
  void post(auto what) { events_.push_back({now(), std::move(what)}); }
  Status decide_all();
  Status decide_one(const core::Event& event);
  void perform(const core::Effect& effect, std::int64_t action);
  void launch(Attempt attempt, std::int64_t action);

  // Edges that bring news.
  void open();
  void wait();
  void take_signals();
  Status take_outcomes();
  void ask_service(Duration patience);
  void take_answer(const service::StatusReply& status, Time at);
  void look_at_gang();
  bool has_last_words();
  Status save_now_and_then();

  [[nodiscard]] GangSpec gang_spec(Attempt attempt) const;
  [[nodiscard]] bool early() const;
  [[nodiscard]] bool service_up() const { return !state_.fleet.empty() && state_.fleet[0].up(); }
  [[nodiscard]] bool worker_seen();

  const DriverSettings& settings_;
  Journal& journal_;
  core::Rules rules_;
  core::State state_;
  Narration narration_;
  std::deque<core::Event> events_;
  std::optional<core::Stop> stop_;

  std::filesystem::path arena_folder_;
  ServiceClient client_;
  EffectThread effects_;
  Fd signals_;
  Observer observer_;
  std::optional<Gang> gang_;
  bool gang_exit_told_ = false;
  std::optional<Time> gang_exit_seen_;
  bool worker_seen_ = false;

  std::optional<service::StatusReply> status_;  // the last answer
  ProcessId service_;
  Time answered_{};
  Time next_poll_{};
  Time saved_{};
  std::uint64_t records_next_ = 0;
  std::unique_ptr<MetricsWriter> metrics_;
};

EffectContext effect_context(const DriverSettings& settings, const core::Rules& rules,
                             const std::filesystem::path& arena_folder) {
  EffectContext context;
  context.arena_folder = arena_folder;
  context.job_id = settings.job_id;
  context.keys = settings.keys;
  context.service.program = settings.programs.node;
  context.service.job_file = settings.directory.job_file();
  context.service.job_directory = settings.directory.root;
  context.service.supervised = true;
  context.directory = settings.directory;
  context.max_steps = settings.job.train().max_steps();
  context.finish_timeout = core::time_limit(rules, core::Stage::kFinishing) * 9 / 10;
  return context;
}

core::Rules rules_for(const DriverSettings& settings) {
  core::Rules rules = core::rules_of(settings.job);
  rules.injected_faults = static_cast<std::int64_t>(settings.faults.size());
  rules.faults_count = settings.faults_count;
  return rules;
}

Driver::Driver(const DriverSettings& settings, Journal& journal, Console& console)
    : settings_(settings),
      journal_(journal),
      rules_(rules_for(settings)),
      narration_(console, settings.job.resources().workers_per_node().max(), rules_.max_steps),
      arena_folder_(arena_folder(settings.job.checkpoint().arena(), settings.job_id)),
      client_({arena_folder_, settings.keys}, settings.job_id),
      effects_(effect_context(settings, rules_, arena_folder_)),
      saved_(now()) {
  const sigset_t set = handled_signals();
  signals_ = Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

GangSpec Driver::gang_spec(Attempt attempt) const {
  GangSpec spec;
  spec.program = settings_.programs.worker;
  spec.job_file = settings_.directory.job_file();
  spec.job_directory = settings_.directory.root;
  spec.arena_folder = arena_folder_;
  spec.attempt = attempt;
  spec.workers = settings_.job.resources().workers_per_node().max();
  for (const std::string& fault : settings_.faults)
    spec.faults += (spec.faults.empty() ? "" : ";") + fault;
  spec.supervisor_pid = ::getpid();
  spec.known_step = state_.history.finished_step;
  spec.accept_changes = settings_.accept_changes;
  spec.root = ::geteuid() == 0;
  return spec;
}

Result<int> Driver::run() {
  auto writer = MetricsWriter::open(settings_.directory.metrics());
  if (writer) metrics_ = std::move(*writer);
  if (!metrics_) narration_.warning("no metrics are written: " + writer.error().message);
  open();
  SUREFOOT_TRY(decide_all());
  while (!stop_) {
    wait();
    take_signals();
    SUREFOOT_TRY(take_outcomes());
    if (service_up() && now() >= next_poll_) ask_service(kStatusPatience);
    look_at_gang();
    SUREFOOT_TRY(decide_all());
    narration_.show(state_, now());
    if (now() >= core::deadline(rules_, state_)) {
      post(core::TimerFired{});
      SUREFOOT_TRY(decide_all());
    }
    SUREFOOT_TRY(save_now_and_then());
  }
  SUREFOOT_TRY(journal_.save(state_.history));
  // mpirun may have been ended a moment ago; nobody else reaps it.
  if (gang_) [[maybe_unused]]
    const auto reaped = gang_->poll();
  effects_.close(now() + 100ms);
  return stop_->exit_code;
}

void Driver::open() {
  const core::History& history = journal_.history();
  bool alive = false;
  if (history.attempt_open) {
    gang_ = Gang::left_behind(journal_.open_gang(), gang_spec(history.attempt));
    alive = !gang_->processes().empty();
    observer_.follow(history.attempt,
                     rules_.max_steps.value > 0 ? gang_spec(history.attempt).workers : 1);
  }
  post(core::JobOpened{history, alive});
  if (settings_.cancel) post(core::CancelAsked{});
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
  std::vector<std::int64_t> actions(decision.effects.size());
  if (decision.record) {
    decision.next = state_;
    SUREFOOT_ASSIGN(actions, journal_.record(event, decision));
    spdlog::info("{}: {}", core::name(event), decision.reason);
  }
  narration_.decided(event, decision.reason);
  for (std::size_t i = 0; i < decision.effects.size(); ++i) {
    spdlog::info("  -> {}", core::name(decision.effects[i]));
    narration_.effect(decision.effects[i]);
    perform(decision.effects[i], i < actions.size() ? actions[i] : 0);
  }
  return {};
}

void Driver::perform(const core::Effect& effect, std::int64_t action) {
  if (const auto* gang = std::get_if<core::LaunchGang>(&effect)) {
    launch(gang->attempt, action);
  } else if (const auto* stop = std::get_if<core::Stop>(&effect)) {
    stop_ = *stop;
    if (action != 0) (void)journal_.done(action);
  } else if (!std::holds_alternative<core::RecordAttemptEnd>(effect) &&
             !std::holds_alternative<core::RecordRecovery>(effect)) {
    effects_.start(effect, action, gang_);
  }
}

void Driver::launch(Attempt attempt, std::int64_t action) {
  auto gang = Gang::start(gang_spec(attempt));
  gang_.reset();
  if (gang) gang_ = std::move(*gang);
  gang_exit_told_ = false;
  gang_exit_seen_.reset();
  worker_seen_ = false;
  observer_.follow(attempt, settings_.job.resources().workers_per_node().max());
  next_poll_ = now();
  std::string outcome = "done";
  if (gang_) {
    if (Status noted = journal_.launched(attempt, gang_->mpirun()); !noted)
      spdlog::warn("{}", noted.error().message);
    post(core::GangLaunched{attempt});
  } else {
    outcome = gang.error().message;
    post(core::LaunchFailed{attempt, outcome});
  }
  if (Status noted = journal_.done(action, outcome); !noted)
    spdlog::warn("{}", noted.error().message);
}

bool Driver::early() const {
  return state_.doing == core::Doing::kRunning && state_.attempt_step.value < 0;
}

void Driver::wait() {
  Time until = std::min(core::deadline(rules_, state_), now() + kPoll);
  if (service_up()) until = std::min(until, next_poll_);
  if (gang_ && !gang_exit_told_ && early()) until = std::min(until, now() + kPollEarly);
  const auto patience = std::chrono::ceil<std::chrono::milliseconds>(
      std::max<Duration>(until - now(), Duration::zero()));
  pollfd fds[] = {{signals_.get(), POLLIN, 0}, {effects_.event_fd(), POLLIN, 0}};
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

Status Driver::take_outcomes() {
  for (EffectOutcome& outcome : effects_.take()) {
    if (outcome.result) SUREFOOT_TRY(journal_.set_result(*outcome.result));
    if (outcome.action != 0) SUREFOOT_TRY(journal_.done(outcome.action, outcome.outcome));
    if (outcome.outcome != "done") spdlog::warn("{}", outcome.outcome);
    if (!outcome.event) continue;
    if (std::holds_alternative<core::ServiceAnswered>(outcome.event->what)) {
      answered_ = next_poll_ = now();
      service_ = {};
    }
    // Ranks that outlived mpirun may have finished steps that nobody has told yet.
    if (std::holds_alternative<core::GangEnded>(outcome.event->what) && service_up())
      ask_service(kLastWords);
    outcome.event->at = now();
    events_.push_back(std::move(*outcome.event));
  }
  return {};
}

void Driver::ask_service(Duration patience) {
  if (service_.pid != 0 && !is_alive(service_)) {
    spdlog::warn("the service is gone");
    service_ = {};
    return post(core::ServiceLost{});
  }
  service::Request request;
  request.mutable_status()->set_records_from(records_next_);
  auto reply = client_.call(std::move(request), now() + patience);
  const Time at = now();
  next_poll_ = at + (early() ? kPollEarly : kPoll);
  if (reply) return take_answer(reply->status(), at);
  if (at - answered_ < kServiceSilence) return;
  spdlog::warn("the service has not answered for 5 s");
  post(core::ServiceLost{});
}

void Driver::take_answer(const service::StatusReply& status, Time at) {
  answered_ = at;
  if (service_.pid != status.pid()) {
    auto process = process_of(status.pid());
    service_ = process ? *process : ProcessId{};
  }
  // An arena that was made anew counts its records from the start.
  records_next_ = status.records_next() < records_next_ ? 0 : status.records_next();
  std::vector<MetricRecord> metrics;
  for (const service::Record& record : status.records()) metrics.push_back(metric_of(record));
  if (metrics_ && !metrics.empty()) {
    if (Status written = metrics_->append(metrics); !written)
      narration_.warning("metrics of some steps are lost: " + written.error().message);
  }
  for (core::Event& event : observer_.observe(status, worker_seen(), at))
    events_.push_back(std::move(event));
  narration_.answered(status, metrics);
  status_ = status;
}

bool Driver::worker_seen() {
  // Only before the first line is there: later nobody asks.
  if (!worker_seen_ && gang_ && early()) worker_seen_ = gang_->processes().size() > 1;
  return worker_seen_;
}

// The last steps, the marks of injected faults and the ranks' last words lie in the arena, where
// only a service can read them; one that died with the gang is on its way back. They come before
// the end of the gang, or it would be judged by less than is known.
bool Driver::has_last_words() {
  if (!gang_exit_seen_) gang_exit_seen_ = now();
  const bool wanted = state_.history.attempt_open && state_.doing != core::Doing::kEnding;
  if (!wanted || now() - *gang_exit_seen_ > kServiceReturns) return true;
  status_.reset();
  if (service_up()) ask_service(kLastWords);
  return status_.has_value();
}

void Driver::look_at_gang() {
  if (!gang_ || gang_exit_told_) return;
  const auto exit = gang_->poll();
  if (!exit || !has_last_words()) return;
  gang_exit_told_ = true;
  if (!state_.history.attempt_open) return;
  GangEndFacts facts;
  facts.attempt = state_.history.attempt;
  facts.mpirun = *exit;
  const std::filesystem::path logs = settings_.directory.attempt_logs(facts.attempt);
  facts.mpirun_log = tail_of(logs / "mpirun.log");
  for (int rank = 0; rank < settings_.job.resources().workers_per_node().max(); ++rank) {
    facts.rank_logs[rank] = tail_of(logs / fmt::format("rank-{}.log", rank));
  }
  facts.host = host_name();
  facts.status = status_;
  facts.at = now();
  post(core::GangExited{core::GangExited(gang_exited(facts))});
}

Status Driver::save_now_and_then() {
  if (now() - saved_ < kSaveInterval) return {};
  saved_ = now();
  return journal_.save(state_.history);
}

}  // namespace

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
