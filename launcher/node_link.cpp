#include "launcher/node_link.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/arena.h"
#include "checkpoint/node_check.h"
#include "common/file.h"
#include "common/process.h"
#include "launcher/needs.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;

// Each is below the core's limit for the same effect (supervisor::Rules), so that its answer comes
// before the core gives up.
constexpr Duration kEndGang = 3s;
constexpr Duration kFlush = 4min;
constexpr Duration kFree = 10s;
constexpr Duration kAsk = 1s;
constexpr Duration kReach = 1s;  // of a machine after its gang's end
constexpr Duration kLastWords = 2s;

// What machines have to have in common, from `surefoot-worker --describe`. An error: what this one
// lacks.
Result<supervisor::NodeFacts> facts_of(const service::CheckReply& check,
                                       const service::StatusReply& status,
                                       const std::string& name) {
  if (check.unreachable_size() > 0) {
    return error(Code::kRetry, "{}: has no way to other machines of the job: {}", name,
                 check.unreachable(0));
  }
  // First: without its GPUs the worker has something to say too.
  if (check.gpu_faults_size() > 0)
    return error(Code::kInvalid, "{}: {}", name, check.gpu_faults(0));
  if (!check.describe_error().empty())
    return error(Code::kInvalid, "{}: {}", name, check.describe_error());
  if (check.build() != build_text()) {
    return error(Code::kInvalid, "{}: its service is of another build: {} there, {} here", name,
                 check.build(), build_text());
  }
  const auto json = nlohmann::json::parse(check.description(), nullptr, false);
  const auto text = [&json](const char* key) -> std::string {
    const bool there = json.is_object() && json.contains(key) && json[key].is_string();
    return there ? json[key].get<std::string>() : std::string();
  };
  supervisor::NodeFacts facts;
  facts.numerics_id = text("numerics_id");
  facts.training_hash = text("training_hash");
  // Two that say nothing would pass for equal.
  if (facts.numerics_id.empty() || facts.training_hash.empty())
    return error(Code::kInvalid, "{}: surefoot-worker --describe says nothing readable", name);
  const bool has_arena = status.arena_bytes() > 0;
  const auto needed =
      json.contains("arena_bytes") && json["arena_bytes"].is_number_integer() && !has_arena
          ? json["arena_bytes"].get<std::int64_t>()
          : 0;
  if (check.arena_free_bytes() < needed) {
    return error(Code::kInvalid,
                 "{}: the state of the job needs {:.1f} GiB of shared memory, {:.1f} are free "
                 "(checkpoint.arena names another place)",
                 name, static_cast<double>(needed) / (1 << 30),
                 static_cast<double>(check.arena_free_bytes()) / (1 << 30));
  }
  return facts;
}

double flops_per_sample_in(const std::string& description) {
  const auto json = nlohmann::json::parse(description, nullptr, false);
  return json.is_object() ? flops_per_sample_of(json) : 0;
}

}  // namespace

NodeLink::NodeLink(std::shared_ptr<const NodeContext> context, std::string name,
                   supervisor::NodeFacts known)
    : context_(std::move(context)),
      name_(std::move(name)),
      checked_boot_(known.boot_id),
      facts_(std::move(known)) {
  // The folder's socket needs no answer from the machine: it can be asked before it is prepared.
  if (context_->alone)
    client_.emplace(ServiceAddress(context_->arena_folder, context_->keys), context_->job_id);
}

Result<service::Reply> NodeLink::call(service::Request request, Time deadline) {
  if (!client_) return error(Code::kRetry, "{}: its service was not found yet", name_);
  return client_->call(std::move(request), deadline);
}

Result<service::StatusReply> NodeLink::status(std::uint64_t records_from, Time deadline) {
  service::Request request;
  request.mutable_status()->set_records_from(records_from);
  SUREFOOT_ASSIGN(const service::Reply reply, call(std::move(request), deadline));
  return reply.status();
}

Result<NodeLink::Prepared> NodeLink::prepare(const Wanted& wanted, Time deadline) {
  Prepared prepared{{}, ServiceAddress(context_->arena_folder, context_->keys), {}, {}};
  if (context_->alone) {
    SUREFOOT_TRY(ensure_service(*client_, context_->service, deadline));
  } else {
    SUREFOOT_ASSIGN(prepared.access,
                    bootstrap(name_, context_->others, deadline, context_->stop.get()));
    here_ = prepared.access.local;
    if (!here_)
      prepared.address = ServiceAddress::elsewhere(prepared.access.endpoint, context_->keys);
    client_.emplace(prepared.address, context_->job_id);
    service::Request request;
    request.mutable_end_gang()->set_below(wanted.spare.value);
    SUREFOOT_TRY(call(std::move(request), deadline));
  }
  SUREFOOT_ASSIGN(prepared.status, status(~std::uint64_t{0}, deadline));
  shares_directory_ = prepared.status.shares_directory();
  const std::string boot = prepared.status.boot_id();
  // A GPU may go in the middle of a life.
  const bool again = context_->has_gpus && !wanted.at_work;
  if (!context_->alone && (again || checked_boot_.empty() || checked_boot_ != boot)) {
    SUREFOOT_ASSIGN(const service::Reply reply, look_over(wanted.peers, wanted.workers, deadline));
    SUREFOOT_ASSIGN(facts_, facts_of(reply.check(), prepared.status, name_));
    checked_boot_ = boot;
    prepared.warnings.assign(reply.check().gpu_warnings().begin(),
                             reply.check().gpu_warnings().end());
    prepared.flops_per_sample = flops_per_sample_in(reply.check().description());
  }
  facts_.boot_id = boot;
  prepared.answer = {Step{prepared.status.ready_step()}, Step{prepared.status.durable_step()}, 0,
                     facts_, prepared.access.local};
  return prepared;
}

// The first one's object is there before anybody looks for it. A machine whose store hangs leaves
// the others the time to put it themselves.
Status NodeLink::probe_store(Time deadline) {
  StoreProbe& probe = *context_->probe;
  const Duration third = (deadline - now()) / 3;
  SUREFOOT_ASSIGN(const StoreProbe::Part part, probe.part(now() + 2 * third));
  const bool puts = part == StoreProbe::Part::kPut;
  const Time until = puts ? now() + third : deadline;
  service::Request request;
  service::Check& check = *request.mutable_check();
  check.set_seconds(std::max(seconds(until - now()) - 0.5, 0.5));
  puts ? check.set_put_probe(probe.name()) : check.set_get_probe(probe.name());
  if (puts) check.set_remove_probe(probe.old_name());
  const auto reply = call(std::move(request), until);
  if (puts) probe.put_by(reply && reply->check().put_error().empty() ? name_ : "");
  if (!reply) return reply.error();
  if (!reply->check().put_error().empty()) {
    return error(Code::kRetry, "{}: cannot write to checkpoint.to: {}", name_,
                 reply->check().put_error());
  }
  if (!reply->check().get_error().empty()) {
    return error(Code::kInvalid, "checkpoint.to is not shared between {} and {}: {}",
                 probe.putter(), name_, reply->check().get_error());
  }
  return {};
}

Result<service::Reply> NodeLink::look_over(const std::vector<std::string>& peers, int workers,
                                           Time deadline) {
  SUREFOOT_TRY(probe_store(deadline));
  service::Request request;
  service::Check& check = *request.mutable_check();
  check.set_seconds(std::max(seconds(deadline - now()) - 0.5, 0.5));
  for (const std::string& peer : peers) check.add_connect_to(peer);
  check.set_describe(true);
  check.set_workers(workers);
  return call(std::move(request), deadline);
}

Status NodeLink::drain(Attempt attempt) {
  service::Request request;
  request.mutable_ask()->set_drain(true);
  if (!context_->alone) request.mutable_ask()->set_attempt(attempt.value);
  auto reply = call(std::move(request), now() + kAsk);
  return reply ? Status() : Status(reply.error());
}

Status NodeLink::tell_everyone(Time leaves) {
  const Duration left = std::max<Duration>(leaves - now(), 0s);
  service::Request request;
  request.mutable_notice()->set_deadline_seconds(seconds(left));
  request.mutable_notice()->set_everyone(true);
  auto reply = call(std::move(request), now() + std::clamp<Duration>(left / 2, kAsk, 10s));
  return reply ? Status() : Status(reply.error());
}

NodeLink::Ended NodeLink::end_gang(Attempt attempt, std::uint64_t records_from) {
  Ended ended;
  // Of the only machine what is left is found without its service too, and it is not lost.
  ended.reached = context_->alone || status(~std::uint64_t{0}, now() + kReach).has_value();
  if (!ended.reached) return ended;
  service::Request request;
  request.mutable_end_gang()->set_below(attempt.next().value);
  auto reply = call(std::move(request), now() + (context_->alone ? kAsk : kEndGang));
  // Of the only machine: what it runs is found as processes of mpirun's session all the same.
  const bool excused = context_->alone && !reply && reply.error().code == Code::kRetry;
  if (!reply && !excused) ended.ended = reply.error();
  if (auto last = status(records_from, now() + kLastWords)) ended.last = *std::move(last);
  return ended;
}

Result<std::string> NodeLink::trace(Attempt attempt, Duration patience) {
  constexpr Duration kWay = 500ms;
  service::Request request;
  request.mutable_trace()->set_attempt(attempt.value);
  request.mutable_trace()->set_seconds(seconds(patience - kWay));
  SUREFOOT_ASSIGN(const service::Reply reply, call(std::move(request), now() + patience));
  return reply.trace().text();
}

Result<service::FinishReply> NodeLink::finish(Step step, Time deadline) {
  service::Request request;
  request.mutable_finish()->set_step(step.value);
  SUREFOOT_ASSIGN(service::Reply reply, call(std::move(request), deadline));
  service::FinishReply& finish = *reply.mutable_finish();
  if (here_ || shares_directory_) return finish;
  SUREFOOT_ASSIGN(const Exported exported,
                  context_->bring_model(step, finish.weights_sha256(), deadline));
  finish.set_folder(exported.folder.string());
  return finish;
}

Status NodeLink::finished_elsewhere(Step step) {
  service::Request request;
  request.mutable_finish()->set_step(step.value);
  request.mutable_finish()->set_elsewhere(true);
  auto reply = call(std::move(request), now() + kAsk);
  return reply ? Status() : Status(reply.error());
}

Status NodeLink::shut_down(bool flush, bool remove, Duration patience) {
  service::Request request;
  request.mutable_shutdown()->set_flush(flush);
  request.mutable_shutdown()->set_remove(remove);
  auto reply = call(std::move(request), now() + patience);
  return reply ? Status() : Status(reply.error());
}

Flushed NodeLink::flush(Step stored) {
  Flushed flushed;
  // The only machine's service may be on its way back.
  const auto held = status(~std::uint64_t{0}, now() + (context_->alone ? kFlush : kReach));
  if (!held) {
    flushed.stored = held.error();
    return flushed;
  }
  flushed.ready = Step{held->ready_step()};
  if (flushed.ready > stored) flushed.stored = shut_down(true, false, kFlush);
  return flushed;
}

Status NodeLink::free() {
  remove_probe();
  if (here_) return free_folder();
  service::Request request;
  request.mutable_end_gang();
  SUREFOOT_TRY(call(std::move(request), now() + kEndGang));
  return shut_down(false, true, kFree / 2);
}

// Left where that fails: nobody takes it for anything.
void NodeLink::remove_probe() {
  if (context_->probe == nullptr || !context_->probe->take()) return;
  service::Request request;
  request.mutable_check()->set_seconds(seconds(kAsk));
  request.mutable_check()->set_remove_probe(context_->probe->name());
  (void)call(std::move(request), now() + kAsk);
}

// The folder goes when no service holds its lock any more, and the job ends when that process is
// gone: one that answers and refuses has a reason, one that hangs is ended.
Status NodeLink::free_folder() {
  const Time deadline = now() + kFree;
  const std::filesystem::path& folder = context_->arena_folder;
  if (!std::filesystem::exists(folder)) return {};
  const auto holder = read_file((folder / "service.lock").string());
  const auto service = process_of(holder ? std::atoi(holder->c_str()) : 0);
  const Status asked = shut_down(false, true, kFree / 2);
  if (!asked && status(~std::uint64_t{0}, now() + kAsk)) return asked.error();
  for (bool ended = false;;) {
    auto lock = FolderLock::take(folder, "service.lock");
    if (lock || lock.error().code != Code::kStale) break;
    if (now() > deadline) return lock.error();
    if (!asked && !ended) {
      ended = true;
      if (service) SUREFOOT_TRY(end_processes({*service}, deadline));
    }
    std::this_thread::sleep_for(5ms);
  }
  while (service && is_alive(*service) && now() < deadline) std::this_thread::sleep_for(5ms);
  std::error_code failed;
  std::filesystem::remove_all(folder, failed);
  if (failed) return error(Code::kRetry, "cannot remove {}: {}", folder.string(), failed.message());
  return {};
}

}  // namespace surefoot
