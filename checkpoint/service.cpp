// The loop of a service and its messages. Gangs: service_gang.cpp; store: service_upload.cpp.
#include "checkpoint/service.h"

#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "checkpoint/service_client.h"
#include "checkpoint/service_internal.h"
#include "checkpoint/service_message.h"
#include "common/log.h"
#include "configs/fault.h"

namespace surefoot {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr Duration kHeartbeat = std::chrono::milliseconds(100);
constexpr Duration kLook = std::chrono::milliseconds(100);
constexpr Duration kFolderLook = std::chrono::seconds(1);
constexpr int kMessagesATurn = 64;  // arbitrary: a flood must not keep the loop from its other work
constexpr int kMaxFrames = 8;       // of one message; more are read and dropped

// Protobuf refuses strings that are not UTF-8, and what stands in shared memory may be anything.
std::string as_utf8(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : 0;
    const bool pair = length == 2 && i + 1 < text.size() &&
                      (static_cast<unsigned char>(text[i + 1]) & 0xC0) == 0x80;
    const bool whole = length == 1 || pair;
    out += whole ? text.substr(i, length) : std::string_view("?");
    i += whole ? length : 1;
  }
  return out;
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
                  settings_.job.checkpoint().keep(), settings_.keys),
      upload_store_(settings_.open_store, settings_.job_id, settings_.job.name(),
                    settings_.job.checkpoint().keep(), settings_.keys),
      supervised_(settings_.supervised),
      last_visit_(now()),
      last_supervisor_(now()) {}

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
  open_arena();
  SUREFOOT_TRY(bind());
  look_at_store();
  return {};
}

Status ServiceImpl::bind() {
  const std::string path = (settings_.arena_folder / "service.sock").string();
  try {
    router_ = zmq::socket_t(context_, zmq::socket_type::router);
    // The last answer before the end goes out, or its asker would wait for nothing.
    router_.set(zmq::sockopt::linger, 500);
    router_.set(zmq::sockopt::maxmsgsize, 2 * kMaxMessageBytes);
    // libzmq removes what a dead service has left there; the lock says that none lives. The folder
    // is closed to others, so nobody can come in before the chmod.
    router_.bind("ipc://" + path);
    ::chmod(path.c_str(), 0600);
  } catch (const zmq::error_t& failed) {
    return error(Code::kInvalid,
                 "cannot listen on {}: {}; a path may have 107 bytes, set checkpoint.arena to a "
                 "shorter one",
                 path, failed.what());
  }
  return {};
}

std::string ServiceImpl::run() {
  while (ended_.empty()) {
    zmq::pollitem_t items[] = {{router_.handle(), 0, ZMQ_POLLIN, 0},
                               {nullptr, gang_thread_.event_fd(), ZMQ_POLLIN, 0},
                               {nullptr, store_thread_.event_fd(), ZMQ_POLLIN, 0},
                               {nullptr, settings_.signals, ZMQ_POLLIN, 0}};
    try {
      zmq::poll(items, settings_.signals >= 0 ? 4 : 3, kPoll);
      if ((items[3].revents & ZMQ_POLLIN) != 0) read_signals();
      receive();
    } catch (const zmq::error_t& failed) {
      if (failed.num() != EINTR) return fmt::format("libzmq: {}", failed.what());
    }
    for (const auto& outcome : gang_thread_.take()) outcome();
    for (const auto& outcome : store_thread_.take()) outcome();
    tick();
  }
  write_metrics();
  router_.close();
  if (removing_) remove_folder();
  return ended_;
}

void ServiceImpl::read_signals() {
  signalfd_siginfo info{};
  while (::read(settings_.signals, &info, sizeof info) == sizeof info) {
    if (++signals_seen_ > 1) {
      ended_ = fmt::format("signal {} twice: the snapshots stay in {}", info.ssi_signo,
                           settings_.arena_folder.string());
      return;
    }
    spdlog::warn("signal {}: draining, then writing the newest step to the store", info.ssi_signo);
    flush_wanted_ = true;
    drain_asked_ = true;
    if (arena_) arena_->requests().fetch_or(kRequestDrain);
  }
}

// ---- messages ----

void ServiceImpl::receive() {
  for (int i = 0; i < kMessagesATurn && ended_.empty(); ++i) {
    std::vector<zmq::message_t> frames;
    zmq::message_t frame;
    if (!router_.recv(frame, zmq::recv_flags::dontwait)) return;
    bool more = true;
    while (more) {
      more = frame.more();
      if (static_cast<int>(frames.size()) < kMaxFrames) frames.push_back(std::move(frame));
      frame = zmq::message_t();
      if (more && !router_.recv(frame, zmq::recv_flags::dontwait)) return;
    }
    take(frames);
  }
}

void ServiceImpl::take(const std::vector<zmq::message_t>& frames) {
  const Peer peer{frames.front().to_string()};
  if (frames.size() != 3 || frames[1].size() != 0)
    return refuse(peer, "malformed", "not a request: three frames, the second empty, are expected");
  const zmq::message_t& payload = frames[2];
  if (payload.size() > kMaxMessageBytes)
    return refuse(peer, "oversized", fmt::format("a request may have {} bytes", kMaxMessageBytes));
  const auto parsed = parse_request(payload.to_string_view(), settings_.job_id);
  if (const auto* refusal = std::get_if<Refusal>(&parsed))
    return refuse(peer, refusal->kind, refusal->message);
  dispatch(peer, std::get<service::Request>(parsed));
}

void ServiceImpl::dispatch(const Peer& peer, const service::Request& request) {
  last_question_ = now();
  if (!request.has_status() || supervised_) last_visit_ = last_question_;
  switch (request.what_case()) {
    case service::Request::kHello:
      return hello(peer, request.hello());
    case service::Request::kRestore:
      return restore(peer, request.restore());
    case service::Request::kFinish:
      return finish(peer, request.finish());
    case service::Request::kStatus: {
      last_supervisor_ = now();
      service::Reply message;
      *message.mutable_status() = status(request.status());
      return reply(peer, message);
    }
    case service::Request::kAsk:
      if (request.ask().drain()) drain_asked_ = true;
      if (arena_ && request.ask().drain()) arena_->requests().fetch_or(kRequestDrain);
      if (arena_ && request.ask().checkpoint()) arena_->requests().fetch_or(kRequestCheckpoint);
      return done(peer);
    case service::Request::kEndGang:
      return end_gang(peer);
    case service::Request::kShutdown:
      return shutdown(peer, request.shutdown());
    case service::Request::WHAT_NOT_SET:
      return;
  }
}

void ServiceImpl::reply(const Peer& peer, const service::Reply& message) {
  // Nobody there any more, or its queue is full: the message is dropped, and the request repeated.
  try {
    router_.send(zmq::buffer(peer.identity), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    router_.send(zmq::message_t(), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    router_.send(zmq::buffer(message.SerializeAsString()), zmq::send_flags::dontwait);
  } catch (const zmq::error_t& failed) {
    spdlog::debug("a reply was not sent: {}", failed.what());
  }
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
  ++refused_;
  if (refused_kinds_.insert(std::string(kind)).second)
    spdlog::warn("refused a message ({}; more of this kind are only counted): {}", kind, message);
  reply(peer, error(kind == "stale" ? Code::kStale : Code::kInvalid, "{}", message));
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
    decide_about_life();
  }
}

// logind removes shared memory of ordinary users at log-out (RemoveIPC). A removed file cannot get
// its name back, but it lives as long as somebody has it mapped: the next gang gets a new one with
// the newest step in it.
void ServiceImpl::look_after_folder() {
  std::error_code ignored;
  if (!std::filesystem::exists(settings_.arena_folder / "service.sock", ignored)) {
    spdlog::warn("the folder {} was removed by somebody (logind's RemoveIPC?): making it anew",
                 settings_.arena_folder.string());
    router_.close();
    lock_.reset();
    ::mkdir(settings_.arena_folder.c_str(), 0700);
    auto lock = FolderLock::take(settings_.arena_folder, "service.lock");
    if (!lock) {
      ended_ = lock.error().message;
      return;
    }
    lock_ = std::move(*lock);
    if (auto bound = bind(); !bound) ended_ = bound.error().message;
  }
  if (!arena_ || !arena_->unlinked() || arena_unlinked_) return;
  arena_unlinked_ = true;
  newest_checkpoint_.reset();
  spdlog::warn(
      "the snapshot memory was removed by somebody (logind's RemoveIPC? `loginctl enable-linger`): "
      "training goes on, a checkpoint is asked for, the next start gets new memory");
}

void ServiceImpl::write_metrics() {
  // With several nodes the first one writes for all.
  if (!arena_ || supervised_ || !settings_.metrics || arena_->gang().node_index != 0) return;
  const auto records = arena_->read(records_from_);
  if (!records.empty()) settings_.metrics(records);
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
  reply.set_storing_step(in_hand_ ? in_hand_->value : -1);
  for (const auto& [slot, upload] : uploads_) {
    if (!in_hand_) reply.set_storing_step(std::max(reply.storing_step(), upload.step.value));
  }
  reply.set_upload_bytes_per_second(upload_rate_);
  reply.set_waiting_for(as_utf8(waiting_for_));
  reply.set_pid(::getpid());
  reply.set_refused_messages(refused_);
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
  add_ranks(reply);
  add_records(reply, request.records_from());
  return reply;
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
