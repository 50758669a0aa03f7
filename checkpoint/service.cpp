// The loop of a service and its messages. Gangs: service_gang.cpp; store: service_upload.cpp.
#include "checkpoint/service.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "checkpoint/service_client.h"
#include "checkpoint/service_internal.h"
#include "checkpoint/service_message.h"
#include "common/file.h"
#include "common/log.h"
#include "configs/fault.h"
#include "configs/job_directory.h"

namespace surefoot {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr Duration kHeartbeat = std::chrono::milliseconds(100);
constexpr Duration kLook = std::chrono::milliseconds(100);
constexpr Duration kFolderLook = std::chrono::seconds(1);
constexpr std::size_t kMaxWaiting = 16;  // arbitrary; pieces of work a thread may have before it
constexpr int kMessagesATurn = 64;  // arbitrary: a flood must not keep the loop from its other work

Retention retention_of(const config::Job& job) {
  return {job.checkpoint().keep(), job.checkpoint().keep_every()};
}

// checkpoint.cpu_limit: percent of a core; 0 and -1 ("unlimited"): none.
double share_of(const config::Job& job) {
  return std::max(0.0, static_cast<double>(job.checkpoint().cpu_limit()) / 100);
}

std::string_view name_of(const service::Reply& reply) {
  if (reply.has_error()) return "error";
  if (reply.has_hello()) return "hello";
  if (reply.has_restore()) return "restore";
  if (reply.has_finish()) return "finish";
  return reply.has_status() ? "status" : "done";
}

// Seconds from a monotonic time in shared memory, which may be anything, to now.
double seconds_since(std::int64_t then_ns, Time at) {
  return (static_cast<double>(at.time_since_epoch().count()) - static_cast<double>(then_ns)) * 1e-9;
}

}  // namespace

Result<std::unique_ptr<Service>> Service::start(ServiceSettings settings) {
  auto service = std::make_unique<ServiceImpl>(std::move(settings));
  SUREFOOT_TRY(service->open());
  return std::unique_ptr<Service>(std::move(service));
}

ServiceImpl::ServiceImpl(ServiceSettings settings)
    : settings_(std::move(settings)),
      gang_store_(settings_.open_store, settings_.job_id, settings_.job.name(),
                  retention_of(settings_.job), settings_.encryption_keys),
      upload_store_(settings_.open_store, settings_.job_id, settings_.job.name(),
                    retention_of(settings_.job), settings_.encryption_keys),
      supervised_(settings_.supervised),
      last_visit_(now()),
      last_supervisor_(now()),
      launches_(settings_.arena_folder, settings_.job_id),
      throttle_(share_of(settings_.job)) {}

ServiceImpl::~ServiceImpl() = default;

Status ServiceImpl::open() {
  std::error_code ignored;
  std::filesystem::create_directories(settings_.arena_folder.parent_path(), ignored);
  if (::mkdir(settings_.arena_folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return error(Code::kNoSpace,
                 "cannot make the folder {} for snapshots: {}; set checkpoint.arena to a folder "
                 "that can be written",
                 settings_.arena_folder.string(), errno_text(errno));
  }
  SUREFOOT_ASSIGN(lock_, FolderLock::take(settings_.arena_folder, "service.lock"));
  open_history();
  launches_.read();
  open_arena();
  decide_about_interval();
  if (settings_.read_keys) take_keys(settings_.read_keys());
  shares_directory_ = sees_job_directory();
  SUREFOOT_TRY(sockets_.listen_locally(settings_.arena_folder));
  look_at_store();
  return {};
}

// A stand-in of this machine's own has no journal. Any thread.
bool ServiceImpl::sees_job_directory() const {
  const JobDirectory directory{settings_.job_directory};
  const auto id = directory.existing_job_id(settings_.job.name());
  std::error_code none;
  return !directory.root.empty() && id && *id == settings_.job_id &&
         std::filesystem::exists(directory.journal(), none);
}

// The file comes before the socket on this machine: who finds the socket finds the endpoint.
void ServiceImpl::look_at_job_directory() {
  if (!keys_thread_.idle()) return;
  keys_thread_.start([this]() -> WorkThread::Outcome {
    const bool shared = sees_job_directory();
    const auto keys = settings_.read_keys ? settings_.read_keys()
                                          : Result<ServiceKeys>(error(Code::kNotFound, "none"));
    return [this, keys, shared] {
      shares_directory_ = shared;
      take_keys(keys);
    };
  });
}

void ServiceImpl::take_keys(const Result<ServiceKeys>& keys) {
  if (!keys && keys.error().code == Code::kNotFound) return;
  if (keys && !sockets_.endpoint().empty() && to_text(*keys) == keys_in_use_) return;
  const Status listening = keys ? listen_remotely(*keys) : Status(keys.error());
  if (!listening && !std::exchange(complained_of_keys_, true))
    spdlog::error("no supervisor can ask this service: {}", listening.error().message);
}

Status ServiceImpl::listen_remotely(const ServiceKeys& keys) {
  SUREFOOT_TRY(sockets_.listen_remotely(settings_.listen, keys));
  keys_in_use_ = to_text(keys);
  return write_file_atomically(settings_.arena_folder / "endpoint", sockets_.endpoint() + "\n");
}

std::string ServiceImpl::run() {
  while (ended_.empty()) {
    std::vector<int> fds;
    for (const WorkThread* thread : threads()) fds.push_back(thread->event_fd());
    if (settings_.signals >= 0) fds.push_back(settings_.signals);
    const auto readable = sockets_.wait(fds, kPoll);
    if (!readable) return readable.error().message;
    if (settings_.signals >= 0) read_signals();
    sockets_.look_at_strangers();
    receive();
    for (WorkThread* thread : threads()) {
      for (const auto& outcome : thread->take()) outcome();
    }
    tick();
  }
  write_metrics();
  sockets_.close();
  if (removing_) remove_folder();
  close_history();
  return ended_;
}

bool ServiceImpl::close(Time deadline) {
  // All are told before one is waited for.
  for (WorkThread* thread : threads()) (void)thread->close(now());
  const auto all = threads();
  return std::all_of(all.begin(), all.end(),
                     [&](WorkThread* thread) { return thread->close(deadline); });
}

void ServiceImpl::read_signals() {
  signalfd_siginfo info{};
  while (::read(settings_.signals, &info, sizeof info) == sizeof info) {
    // A terminal that closes, or systemd, sends it beside SIGTERM: alone it drains, and no more.
    const bool hang_up = info.ssi_signo == SIGHUP;
    if (hang_up && departure_) continue;
    if (!hang_up && ++signals_seen_ > 1) {
      ended_ = fmt::format("signal {} twice: the snapshots stay in {}", info.ssi_signo,
                           settings_.arena_folder.string());
      return;
    }
    spdlog::warn("signal {}: when the end follows is not known, {:.0f} s are reckoned with",
                 info.ssi_signo, seconds(kUnknownDeadline));
    // Whether other machines stay only a notice can tell; memory that goes everywhere is lost.
    depart(kUnknownDeadline, /*everyone=*/true);
  }
}

// ---- messages ----

void ServiceImpl::receive() {
  for (int i = 0; i < kMessagesATurn && ended_.empty(); ++i) {
    const auto message = sockets_.next();
    if (!message) return;
    take(*message);
  }
}

void ServiceImpl::take(const Frames& message) {
  const Peer& peer = message.peer;
  if (message.frames.size() != 2 || message.frames[0].size() != 0)
    return refuse(peer, "malformed", "not a request: two frames, the first empty, are expected");
  const zmq::message_t& payload = message.frames[1];
  if (payload.size() > kMaxMessageBytes)
    return refuse(peer, "oversized", fmt::format("a request may have {} bytes", kMaxMessageBytes));
  const auto parsed = parse_request(payload.to_string_view(), settings_.job_id);
  if (const auto* refusal = std::get_if<Refusal>(&parsed))
    return refuse(peer, refusal->kind, refusal->message);
  dispatch(peer, std::get<service::Request>(parsed));
}

// One peer has one question at a time, but it may have been killed and come again.
bool ServiceImpl::too_much_waits(const service::Request& request) const {
  const bool for_store = request.has_finish() || request.shutdown().flush();
  const bool for_gang = request.has_hello() || request.has_restore();
  return (for_store && store_thread_.unfinished() >= kMaxWaiting) ||
         (for_gang && gang_thread_.unfinished() >= kMaxWaiting) ||
         (request.has_launch() && launch_thread_.unfinished() >= kMaxWaiting) ||
         (request.has_check() && check_thread_.unfinished() >= kMaxWaiting) ||
         ((request.has_read_log() || request.has_trace()) &&
          log_thread_.unfinished() >= kMaxWaiting);
}

void ServiceImpl::dispatch(const Peer& peer, const service::Request& request) {
  last_question_ = now();
  // Who only looks wants nothing; the supervisor is known by its key.
  if (!request.has_status() || peer.remote) last_visit_ = last_question_;
  if (peer.remote) last_supervisor_ = last_question_;
  if (too_much_waits(request))
    return refuse(peer, "busy", fmt::format("{} requests wait for what takes long", kMaxWaiting));
  switch (request.what_case()) {
    case service::Request::kHello:
      return hello(peer, request.hello());
    case service::Request::kRestore:
      return restore(peer, request.restore());
    case service::Request::kFinish:
      if (const Status last = is_last_step(request.finish()); !last)
        return reply(peer, last.error());
      return finish(peer, request.finish());
    case service::Request::kStatus: {
      service::Reply message;
      *message.mutable_status() = status(request.status());
      return reply(peer, message);
    }
    case service::Request::kAsk:
      return ask(peer, request.ask());
    case service::Request::kEndGang:
      return end_gang(peer, request.end_gang());
    case service::Request::kShutdown:
      return shutdown(peer, request.shutdown());
    case service::Request::kNotice:
      return notice(peer, request.notice());
    case service::Request::kLaunch:
      return launch(peer, request.launch());
    case service::Request::kCheck:
      return check(peer, request.check());
    case service::Request::kReadLog:
      return read_log(peer, request.read_log());
    case service::Request::kTrace:
      return trace(peer, request.trace());
    case service::Request::WHAT_NOT_SET:
      return;
  }
}

// A job that counts as finished may lose its memory. What the gang has said goes before the job
// file, which may have been changed since this service read it.
Status ServiceImpl::is_last_step(const service::Finish& request) const {
  const std::int64_t said = memory_.hello().max_steps();
  const std::int64_t last = said > 0 ? said : settings_.job.train().max_steps();
  if (request.step() >= last) return {};
  return error(Code::kInvalid, "step {} is not the last one: the job has {}", request.step(), last);
}

void ServiceImpl::reply(const Peer& peer, const service::Reply& message) {
  const bool told = settings_.at_reply && !message.has_status();
  if (told) settings_.at_reply(fmt::format("before {}", name_of(message)));
  sockets_.send(peer, message.SerializeAsString());
  if (told) settings_.at_reply(fmt::format("after {}", name_of(message)));
}

void ServiceImpl::reply(const Peer& peer, const Error& failed) {
  service::Reply message;
  message.mutable_error()->set_code(static_cast<std::int32_t>(failed.code));
  message.mutable_error()->set_message(as_utf8(failed.message));
  reply(peer, message);
}

void ServiceImpl::done(const Peer& peer) {
  service::Reply message;
  message.mutable_done();
  reply(peer, message);
}

void ServiceImpl::refuse(const Peer& peer, std::string_view kind, const std::string& message) {
  if (++refused_[std::string(kind)] == 1)
    spdlog::warn("refused a message ({}; more of this kind are only counted): {}", kind, message);
  const Code code = kind == "stale" ? Code::kStale : kind == "busy" ? Code::kRetry : Code::kInvalid;
  reply(peer, error(code, "{}", message));
}

// ---- between messages ----

void ServiceImpl::tick() {
  const Time at = now();
  if (at >= next_heartbeat_) {
    next_heartbeat_ = at + kHeartbeat;
    if (arena_) arena_->service_heartbeat();
  }
  look_at_slots();
  decide_about_checkpoint();
  look_at_endings();
  if (at >= next_folder_) {
    next_folder_ = at + kFolderLook;
    look_after_folder();
  }
  if (at >= next_look_) {
    next_look_ = at + kLook;
    write_metrics();
    decide_about_interval();
    decide_about_departure();
    look_at_notices();
    look_at_gpus();
    decide_about_life();
  }
}

// logind removes shared memory of ordinary users at log-out (RemoveIPC). A removed file cannot get
// its name back, but it lives as long as somebody has it mapped: the next gang gets a new one with
// the newest step in it.
void ServiceImpl::look_after_folder() {
  look_at_job_directory();
  std::error_code ignored;
  if (!std::filesystem::exists(settings_.arena_folder / "service.sock", ignored)) {
    spdlog::warn("the folder {} was removed by somebody (logind's RemoveIPC?): making it anew",
                 settings_.arena_folder.string());
    sockets_.close_local();
    lock_.reset();
    ::mkdir(settings_.arena_folder.c_str(), 0700);
    auto lock = FolderLock::take(settings_.arena_folder, "service.lock");
    if (!lock) {
      ended_ = lock.error().message;
      return;
    }
    lock_ = std::move(*lock);
    (void)launches_.save();
    if (settings_.placed_files) settings_.placed_files(/*anew=*/true);
    if (!sockets_.endpoint().empty()) {
      (void)write_file_atomically(settings_.arena_folder / "endpoint", sockets_.endpoint() + "\n");
    }
    if (auto bound = sockets_.listen_locally(settings_.arena_folder); !bound)
      ended_ = bound.error().message;
  } else if (settings_.placed_files) {
    settings_.placed_files(/*anew=*/false);
  }
  if (!arena_ || !arena_->unlinked() || arena_unlinked_) return;
  arena_unlinked_ = true;
  newest_checkpoint_.reset();
  spdlog::warn(
      "the snapshot memory was removed by somebody (logind's RemoveIPC? `loginctl enable-linger`): "
      "training goes on, a checkpoint is asked for, the next start gets new memory");
}

void ServiceImpl::write_metrics() {
  if (!arena_ || supervised_ || !settings_.metrics) return;
  const auto records = arena_->read(records_from_);
  // Each node has them; the first one writes for all.
  if (!records.empty() && arena_->gang().node_index == 0) settings_.metrics(records);
}

// The lock goes last: until then no other service can begin in this folder.
void ServiceImpl::remove_folder() {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(settings_.arena_folder, failed)) {
    if (entry.path().filename() == "service.lock") continue;
    std::error_code ignored;
    std::filesystem::remove_all(entry.path(), ignored);
  }
  ::unlink((settings_.arena_folder / "service.lock").c_str());
  ::rmdir(settings_.arena_folder.c_str());
}

// ---- status ----

service::StatusReply ServiceImpl::status(const service::Status& request) {
  service::StatusReply reply;
  reply.set_ready_step(-1);
  reply.set_durable_step(durable_ ? durable_->value : -1);
  reply.set_durable_age_seconds(durable_ ? seconds(now() - durable_at_) : 0);
  const std::optional<Step> storing = flushing_ ? flushing_ : in_hand_;
  reply.set_storing_step(storing ? storing->value : -1);
  for (const auto& [slot, upload] : uploads_) {
    if (!storing) reply.set_storing_step(std::max(reply.storing_step(), upload.step.value));
  }
  reply.set_upload_bytes_per_second(upload_rate_);
  reply.set_uploading_bytes(in_hand_ || flushing_ ? uploading_bytes_.load() : 0);
  reply.set_stored_part_step(stored_part_ ? stored_part_->value : -1);
  reply.set_storing_seconds(storing_ ? seconds(*storing_) : 0);
  reply.set_interval_seconds(seconds(interval_.interval));
  reply.set_interval_rule(std::string(name(interval_.rule)));
  reply.set_interval_reason(interval_.reason);
  add_notice(reply);
  reply.set_waiting_for(as_utf8(waiting_for_));
  reply.set_pid(::getpid());
  add_refused(reply);
  reply.set_endpoint(sockets_.endpoint());
  reply.set_host(host_name());
  reply.set_shares_directory(shares_directory_);
  reply.set_boot_id(fmt::format("{:016x}", self_process().boot));
  reply.set_node_index(memory_.hello().node_index());
  reply.set_node_count(std::max(1, memory_.hello().node_count()));
  reply.set_finished(finished_.has_value());
  if (!arena_) return reply;
  if (const auto newest = arena_->newest_ready()) {
    const SlotInfo slot = arena_->slot(*newest);
    reply.set_ready_step(slot.step.value);
    reply.set_ready_attempt(slot.attempt.value);
    reply.set_state_digest(slot.digest.hex());
  }
  reply.set_arena_bytes(arena_->file_bytes());
  reply.set_attempt(arena_->gang().attempt);
  for (int fault = 0; fault < kMaxFaults; ++fault) {
    if (arena_->fault_fired(fault)) reply.add_fired_faults(fault);
  }
  for (const service::GpuStatus& gpu : gpus_) *reply.add_gpus() = gpu;
  add_ranks(reply);
  add_records(reply, request.records_from());
  return reply;
}

void ServiceImpl::look_at_gpus() {
  if (!settings_.gpus) return;
  int workers = 0;
  for (int local_rank = 0; arena_ && local_rank < kMaxLocalRanks; ++local_rank) {
    const ProcessId process = registered_process(arena_->line(local_rank));
    if (process.pid != 0 && is_alive(process)) workers = local_rank + 1;
  }
  gpus_ = settings_.gpus(workers);
}

void ServiceImpl::add_refused(service::StatusReply& reply) const {
  std::int64_t messages = 0;
  for (const auto& [kind, count] : refused_) {
    (*reply.mutable_refused())[kind] = count;
    messages += count;
  }
  reply.set_refused_messages(messages);
  if (sockets_.strangers() > 0) (*reply.mutable_refused())["stranger"] = sockets_.strangers();
  if (sockets_.wrong_keys() > 0) (*reply.mutable_refused())["key"] = sockets_.wrong_keys();
}

void ServiceImpl::add_ranks(service::StatusReply& reply) const {
  const Time at = now();
  for (int local_rank = 0; local_rank < kMaxLocalRanks; ++local_rank) {
    const RankLine& line = arena_->line(local_rank);
    const ProcessId process = registered_process(line);
    if (process.pid == 0) continue;
    service::RankStatus& rank = *reply.add_ranks();
    rank.set_rank(line.rank.load());
    rank.set_pid(process.pid);
    rank.set_start_ticks(process.start_ticks);
    rank.set_alive(is_alive(process));
    rank.set_phase(std::string(name(line.phase.load())));
    rank.set_step(line.step.load());
    rank.set_seconds_in_phase(seconds_since(line.changed_ns.load(std::memory_order_acquire), at));
    rank.set_exit_code(line.exit_code.load(std::memory_order_acquire));
    if (rank.exit_code() >= 0) rank.set_reason(as_utf8(reason_of(line)));
    rank.set_attempt(line.attempt.load());
    rank.set_local_rank(local_rank);
    rank.set_busy_seconds(std::max(0.0, static_cast<double>(line.busy_ns.load()) * 1e-9));
  }
}

void ServiceImpl::add_records(service::StatusReply& reply, std::uint64_t from) const {
  if (from == ~std::uint64_t{0}) return reply.set_records_next(from);
  const Time at = now();
  for (const StepRecord& record : arena_->read(from)) {
    service::Record& out = *reply.add_records();
    out.set_kind(record.kind);
    out.set_attempt(record.attempt);
    out.set_step(record.step);
    out.set_samples(record.samples);
    out.set_loss(record.loss);
    out.set_learning_rate(record.learning_rate);
    out.set_gradient_norm(record.gradient_norm);
    out.set_accuracy(record.accuracy);
    out.set_checkpoint(record.checkpoint != 0);
    out.set_age_seconds(seconds_since(record.finished_ns, at));
    for (const double phase : record.phase_seconds) out.add_phase_seconds(phase);
  }
  reply.set_records_next(from);
}

}  // namespace surefoot
