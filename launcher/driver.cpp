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
#include <nlohmann/json.hpp>

#include "checkpoint/arena.h"
#include "common/log.h"
#include "launcher/control.h"
#include "launcher/fleet_report.h"
#include "launcher/format.h"
#include "launcher/machines.h"
#include "launcher/metrics/metrics.h"
#include "launcher/mpirun/gang.h"
#include "launcher/narration.h"
#include "launcher/nodes/discovery.h"
#include "launcher/nodes/network.h"
#include "launcher/observer.h"
#include "launcher/requests.h"
#include "launcher/rules.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
namespace core = supervisor;

constexpr Duration kPoll = 100ms;
constexpr Duration kPollEarly = 20ms;
// How long the last words of a gang that has ended are waited for. Of the only machine: its service
// may have died with it, and a new one answers in a quarter of a second. Of several, one that says
// nothing within a second is lost.
constexpr Duration kServiceReturns = 5s;
constexpr Duration kLastWords = 1s;
constexpr Duration kNoticeChange = 1s;  // arbitrary: deadlines that differ by less are the same
constexpr Duration kSaveInterval = 5s;
constexpr Duration kLogInterval = 1s;
constexpr Duration kSnapshotAge = 100ms;  // arbitrary: however often verbs ask
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

class Driver final : MachineListener {
 public:
  Driver(const DriverSettings& settings, Journal& journal, Console& console);
  Result<int> run();

 private:
  // What happened -> the core -> what is to be done.
  void post(auto what) { events_.push_back({now(), std::move(what)}); }
  Status decide_all();
  Status decide_one(const core::Event& event);
  void perform(const core::Effect& effect, std::int64_t action);
  void launch(const core::LaunchGang& launch, std::int64_t action);

  // What the machines tell.
  void happened(core::Event event) override { events_.push_back(std::move(event)); }
  void answered(core::NodeId node, const service::StatusReply& status, Time at) override;
  void performed(std::int64_t action, const std::string& outcome) override;
  void has_result(const JournalResult& result) override;

  // Edges that bring news.
  void open();
  void wait();
  void take_signals();
  void take_hosts();
  void take_metrics(core::NodeId node, const std::vector<MetricRecord>& metrics);
  void take_notice(core::NodeId node, const service::NoticeStatus& notice, Time at);
  void look_at_gang();
  bool has_last_words();
  Status save_now_and_then();

  // What verbs ask for.
  void open_control();
  Result<nlohmann::json> answer(const nlohmann::json& request);
  [[nodiscard]] const nlohmann::json& snapshot();
  std::string_view decide_now();

  [[nodiscard]] GangSpec gang_spec(Attempt attempt) const;
  [[nodiscard]] std::vector<core::Member> rank_order(std::vector<core::Member> members) const;
  [[nodiscard]] core::NodeId node_of_rank(int rank) const;
  [[nodiscard]] service::StatusReply gang_status(core::NodeId newest) const;
  [[nodiscard]] bool is_of_gang(core::NodeId node) const;
  [[nodiscard]] bool early() const;
  [[nodiscard]] bool worker_seen();

  const DriverSettings& settings_;
  Journal& journal_;
  core::Rules rules_;
  core::State state_;
  Narration narration_;
  std::deque<core::Event> events_;
  std::optional<core::Stop> stop_;
  Status journal_status_;  // of what was noted between decisions

  std::filesystem::path arena_folder_;
  Machines machines_;
  std::optional<Discovery> discovery_;
  Fd signals_;
  Observer observer_;
  std::optional<Gang> gang_;
  std::vector<core::Member> members_;  // of the gang, in the order of the ranks
  bool gang_exit_told_ = false;
  std::optional<Time> gang_exit_seen_;
  bool worker_seen_ = false;

  std::map<core::NodeId, core::NoticeReceived> notices_;  // as told last
  Time saved_{};
  Time next_logs_{};
  core::NodeId metrics_from_ = -1;                        // who told the newest record
  std::pair<std::int64_t, std::int64_t> metrics_newest_;  // attempt and step of it
  std::unique_ptr<MetricsWriter> metrics_;

  BusyTimes busy_;
  std::string_view last_reason_;
  nlohmann::json snapshot_;
  Time snapshot_at_{};
  std::unique_ptr<ControlServer> control_;  // last: its items name all of this
};

NodeContext node_context(const DriverSettings& settings,
                         const std::filesystem::path& arena_folder) {
  NodeContext context;
  context.alone = core::rules_of(settings.job).fleet.alone;
  context.arena_folder = arena_folder;
  context.job_id = settings.job_id;
  context.keys = client_half(settings.keys);
  context.directory = settings.directory;
  context.bring_model = settings.bring_model;
  context.probe = std::make_shared<StoreProbe>("probe-" + settings.job_id);
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
  return rules;
}

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

GangSpec Driver::gang_spec(Attempt attempt) const {
  GangSpec spec;
  spec.program = settings_.programs.worker;
  spec.job_file = settings_.directory.job_file();
  spec.job_directory = settings_.directory.root;
  spec.arena_folder = arena_folder_;
  spec.attempt = attempt;
  spec.workers = core::workers_of(members_);
  if (!rules_.fleet.alone) {
    std::vector<std::string> addresses;
    for (const core::Member& member : members_) {
      const std::string endpoint = machines_.endpoint(member.node);
      const std::string address = address_of_endpoint(endpoint);
      const bool local = machines_.local(member.node);
      addresses.push_back(address);
      spec.nodes.push_back({local ? host_name() : address, member.workers, endpoint, local});
    }
    if (!addresses.empty()) {
      if (auto own = address_towards(addresses.back())) addresses.push_back(*own);
    }
    spec.network = mpi_network(settings_.job.resources().network(), addresses);
    spec.ports = settings_.job.resources().ports();
    spec.has_bundle = !settings_.job.resources().bundle().empty();
    spec.rsh = settings_.programs.worker.parent_path() / "surefoot-rsh";
    spec.job_id = settings_.job_id;
  }
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
  open_control();
  open();
  SUREFOOT_TRY(decide_all());
  while (!stop_) {
    wait();
    take_signals();
    take_hosts();
    machines_.handle();
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
  machines_.close(now() + 100ms);
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
    machines_.start_service(*start, state_.fleet[start->node].host.name, action);
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
                     core::time_limit(rules_, core::Stage::kFinishing) * 9 / 10, action);
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

// mpirun begins with the machine that it runs on.
std::vector<core::Member> Driver::rank_order(std::vector<core::Member> members) const {
  std::stable_partition(members.begin(), members.end(), [this](const core::Member& member) {
    return machines_.local(member.node);
  });
  return members;
}

core::NodeId Driver::node_of_rank(int rank) const {
  for (const core::Member& member : members_) {
    if (rank >= 0 && rank < member.workers) return member.node;
    rank -= member.workers;
  }
  return -1;
}

void Driver::launch(const core::LaunchGang& launch, std::int64_t action) {
  const Attempt attempt = launch.attempt;
  members_ = rank_order(launch.members);
  auto gang = Gang::start(gang_spec(attempt));
  gang_.reset();
  if (gang) gang_ = std::move(*gang);
  gang_exit_told_ = false;
  gang_exit_seen_.reset();
  worker_seen_ = false;
  observer_.follow(attempt, core::workers_of(members_));
  int rank = 0;
  for (const core::Member& member : members_) {
    std::vector<int> ranks(static_cast<std::size_t>(member.workers));
    for (int& number : ranks) number = rank++;
    machines_.follow_logs(member.node, attempt, ranks);
  }
  machines_.ask_at_once();
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

void Driver::take_hosts() {
  if (!discovery_) return;
  if (const auto complaint = discovery_->complaint()) narration_.warning(*complaint);
  const auto hosts = discovery_->take();
  if (!hosts) return;
  core::HostsListed listed;
  for (const HostSpec& host : *hosts)
    listed.hosts.push_back({host.name, host.slots, is_this_machine(host.name)});
  post(std::move(listed));
}

bool Driver::is_of_gang(core::NodeId node) const {
  return rules_.fleet.alone || state_.fleet[node].in_gang;
}

// What the services of the gang's machines know of it together.
service::StatusReply Driver::gang_status(core::NodeId newest) const {
  service::StatusReply together = *machines_.status(newest);
  for (core::NodeId node = 0; node < static_cast<core::NodeId>(state_.fleet.size()); ++node) {
    const service::StatusReply* other = machines_.status(node);
    if (node == newest || other == nullptr || !is_of_gang(node)) continue;
    together.mutable_ranks()->MergeFrom(other->ranks());
    together.mutable_fired_faults()->MergeFrom(other->fired_faults());
    together.set_durable_step(std::max(together.durable_step(), other->durable_step()));
    together.set_ready_step(std::max(together.ready_step(), other->ready_step()));
  }
  return together;
}

void Driver::answered(core::NodeId node, const service::StatusReply& status, Time at) {
  if (status.has_notice()) take_notice(node, status.notice(), at);
  if (!is_of_gang(node)) return;
  std::vector<MetricRecord> metrics;
  for (const service::Record& record : status.records()) metrics.push_back(metric_of(record));
  take_metrics(node, metrics);
  const service::StatusReply together = gang_status(node);
  busy_.learn(together, state_.history.attempt);
  for (core::Event& event : observer_.observe(together, worker_seen(), at))
    events_.push_back(std::move(event));
  narration_.answered(together);
}

// Each machine of the gang tells of the same steps.
void Driver::take_metrics(core::NodeId node, const std::vector<MetricRecord>& metrics) {
  std::vector<MetricRecord> fresh;
  for (const MetricRecord& metric : metrics) {
    const auto at = std::pair(metric.record.attempt, metric.record.step);
    if (node != metrics_from_ && at <= metrics_newest_) continue;
    fresh.push_back(metric);
    metrics_from_ = node;
    metrics_newest_ = at;
  }
  if (fresh.empty()) return;
  narration_.learn(fresh);
  if (!metrics_) return;
  if (Status written = metrics_->append(fresh); !written)
    narration_.warning("metrics of some steps are lost: " + written.error().message);
}

void Driver::take_notice(core::NodeId node, const service::NoticeStatus& notice, Time at) {
  const Time leaves = at + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
                               std::clamp(notice.seconds_left(), -1e6, 1e6)));
  const auto told = notices_.find(node);
  const bool same =
      told != notices_.end() && std::chrono::abs(*told->second.leaves - leaves) < kNoticeChange;
  if (same) return;
  notices_[node] = core::NoticeReceived{leaves, node};
  post(core::NoticeReceived{leaves, node});
}

bool Driver::worker_seen() {
  // Only before the first line is there: later nobody asks.
  if (!worker_seen_ && gang_ && early()) worker_seen_ = gang_->processes().size() > 1;
  return worker_seen_;
}

// The last steps, the marks of injected faults and the ranks' last words lie in the arenas, where
// only a service can read them. They come before the end of the gang, or it would be judged by less
// than is known.
bool Driver::has_last_words() {
  if (!gang_exit_seen_) {
    gang_exit_seen_ = now();
    machines_.ask_at_once();
    machines_.mirror_logs();
  }
  const bool wanted = state_.history.attempt_open && state_.doing != core::Doing::kEnding;
  const Duration patience = rules_.fleet.alone ? kServiceReturns : kLastWords;
  if (!wanted || now() - *gang_exit_seen_ > patience) return true;
  for (const core::Member& member : members_) {
    const auto answered = machines_.answered_at(member.node);
    if (!answered || *answered <= *gang_exit_seen_) return false;
  }
  return true;
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
  for (int rank = 0; rank < core::workers_of(members_); ++rank) {
    facts.rank_logs[rank] = tail_of(logs / fmt::format("rank-{}.log", rank));
  }
  for (const core::Member& member : members_) {
    if (machines_.status(member.node) == nullptr) continue;
    facts.status = gang_status(member.node);
    break;
  }
  facts.at = now();
  core::GangExited exited = gang_exited(facts);
  core::Culprit& culprit = exited.culprit;
  culprit.node = node_of_rank(culprit.rank);
  if (culprit.node >= 0)
    culprit.host = rules_.fleet.alone ? host_name() : state_.fleet[culprit.node].host.name;
  post(std::move(exited));
}

// ---- What verbs ask for ----

void Driver::open_control() {
  auto opened =
      ControlServer::open(settings_.directory.root, machines_.inbox(),
                          [this](const nlohmann::json& request) { return answer(request); });
  if (opened) control_ = std::move(*opened);
  if (!control_)
    narration_.warning("`surefoot nodes` and `drain` will not reach this: " +
                       opened.error().message);
}

// An item of the inbox: between decisions.
Result<nlohmann::json> Driver::answer(const nlohmann::json& request) {
  const auto ask = request.find("ask");
  if (ask != request.end() && *ask == "status") return snapshot();
  if (ask != request.end() && *ask == "drain") {
    SUREFOOT_ASSIGN(const auto notice,
                    notice_asked_for(request, rules_, state_.fleet, host_name(), now()));
    post(notice);
    return nlohmann::json{{"node", request["node"]}, {"what", decide_now()}};
  }
  if (ask != request.end() && *ask == "cancel") {
    post(core::CancelAsked{});
    return nlohmann::json{{"what", decide_now()}, {"pid", ::getpid()}};
  }
  return error(Code::kInvalid, "status, drain and cancel can be asked for");
}

const nlohmann::json& Driver::snapshot() {
  if (snapshot_.is_null() || now() - snapshot_at_ >= kSnapshotAge) {
    snapshot_at_ = now();
    snapshot_ = to_json(fleet_report({rules_, state_, members_,
                                      [this](core::NodeId node) { return machines_.status(node); },
                                      busy_, host_name(), snapshot_at_}));
  }
  return snapshot_;
}

// What came of the event that was posted last.
std::string_view Driver::decide_now() {
  snapshot_ = nullptr;
  if (const Status decided = decide_all(); !decided && journal_status_) journal_status_ = decided;
  return last_reason_;
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
