#include "launcher/machines.h"

#include <unistd.h>

#include <algorithm>

#include "common/log.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
namespace core = supervisor;

// Below the core's limits for the same effects (supervisor::Rules), so that an answer comes before
// the core gives up.
constexpr Duration kServiceStart = 25s;
constexpr Duration kEndHere = 3s;
constexpr Duration kServiceSilence = 5s;  // arbitrary; of the only machine, whose process is seen

}  // namespace

Machines::Machines(NodeContext context, const core::FleetRules& rules, MachineListener& listener)
    : context_(std::make_shared<const NodeContext>(std::move(context))),
      rules_(rules),
      listener_(listener) {
  if (context_->alone) machine(0, "localhost");
}

void Machines::handle() {
  for (const Inbox::Item& item : inbox_->take()) item();
}

Machines::Machine& Machines::machine(core::NodeId node, const std::string& name) {
  Machine& machine = machines_[node];
  if (!machine.commands) {
    machine.name = name;
    begin(machine, node);
  }
  return machine;
}

void Machines::begin_commands(Machine& machine) {
  machine.link = std::make_shared<NodeLink>(
      context_, machine.name,
      machine.prepared ? machine.prepared->answer.facts : core::NodeFacts{});
  machine.commands = std::make_unique<TaskThread>(inbox_);
}

void Machines::begin(Machine& machine, core::NodeId node) {
  begin_commands(machine);
  WatchReports reports;
  reports.status = [this, node](const service::StatusReply& status, Time at) {
    Machine& machine = machines_[node];
    machine.status = status;
    machine.answered = at;
    listener_.answered(node, status, at);
  };
  reports.gone = [this, node] {
    leave_behind(node, true);
    spdlog::warn("{}: the service is gone", machines_[node].name);
    tell(core::ServiceLost{node});
  };
  reports.silent = [this, node](const std::string& text) {
    leave_behind(node, false);
    spdlog::warn("{}: {}", machines_[node].name, text);
    context_->alone ? tell(core::ServiceLost{node}) : tell(core::NodeLost{node, text});
  };
  machine.watch = std::make_unique<ServiceWatch>(inbox_, context_->job_id, std::move(reports));
  machine.watch->set_pace(pace_);
}

void Machines::follow(const core::Fleet& fleet) {
  for (auto& [node, machine] : machines_) {
    const bool known = node < static_cast<core::NodeId>(fleet.size());
    const bool up = known && fleet[node].up();
    machine.listed = known && fleet[node].listed;
    if (up && !machine.watched && machine.prepared) {
      const bool here = context_->alone || machine.prepared->access.local;
      const Duration silence = context_->alone ? kServiceSilence : rules_.heartbeat_timeout;
      machine.watch->watch(machine.prepared->address, silence,
                           here ? machine.prepared->status.pid() : 0);
      machine.watched = true;
    } else if (!up && machine.watched) {
      leave_behind(node, false);
    }
  }
}

// Nobody waits any more for what is being asked of a machine whose service does not answer, or
// (`gone`) has ended: it may take as long as it likes.
void Machines::leave_behind(core::NodeId node, bool gone) {
  Machine& machine = machines_[node];
  machine.watch->rest();
  machine.watched = machine.taken = false;
  machine.status.reset();
  // A service that was to end has done so; what is left of it there is still being removed.
  const bool was_to_end = gone && freeing_.open.contains(node);
  if (context_->alone || machine.commands->idle() || was_to_end) return;
  begin_commands(machine);
  const Error lost{Code::kRetry, machine.name + (gone ? ": its service has ended" : " is lost")};
  if (!flushing_.nodes.empty() && flushing_.nodes.front() == node)
    flushed(flushing_.number, {.stored = lost});
  traced(tracing_.number, node, tracing_.attempt,
         fmt::format("\n==== {}\n{}\n", machine.name, lost.message));
  freed(freeing_.number, node, lost);
  told(telling_.number, node);
  // Of one that lives, who is left there is asked again once its service is back.
  if (!gone && ending_.open.contains(node)) ended(ending_.number, node, ending_.attempt, {});
}

void Machines::set_pace(Duration pace) {
  if (pace == pace_) return;
  pace_ = pace;
  for (auto& [node, machine] : machines_) machine.watch->set_pace(pace);
}

void Machines::ask_at_once() {
  for (auto& [node, machine] : machines_) machine.watch->now_at_once();
}

// ---- Services ----

std::vector<std::string> Machines::peers_of(core::NodeId node) const {
  // Arbitrary: enough to see a network that is cut in two, and few enough for a thousand machines.
  constexpr std::size_t kMostPeers = 8;
  std::vector<std::string> peers;
  for (const auto& [other, machine] : machines_) {
    if (other == node || !machine.watched || peers.size() == kMostPeers) continue;
    const std::string& endpoint = machine.prepared->access.endpoint;
    // The supervisor's own machine listens for itself only.
    const bool reachable = endpoint.starts_with("tcp://") && !machine.prepared->access.local;
    if (reachable) peers.push_back(endpoint.substr(6));
  }
  return peers;
}

void Machines::start_service(core::NodeId node, const std::string& name, NodeLink::Wanted wanted,
                             std::int64_t action) {
  Machine& machine = this->machine(node, name);
  const Duration patience = context_->alone ? kServiceStart : rules_.check_timeout * 9 / 10;
  wanted.peers = peers_of(node);
  machine.commands->start([this, link = machine.link, node, patience, action,
                           start = ++machine.starts, wanted = std::move(wanted)]() -> Inbox::Item {
    auto result = link->prepare(wanted, now() + patience);
    return [this, node, start, action, result = std::move(result)] {
      prepared(node, start, result, action);
    };
  });
}

void Machines::prepared(core::NodeId node, std::uint64_t start,
                        const Result<NodeLink::Prepared>& result, std::int64_t action) {
  listener_.performed(action, result ? "done" : result.error().message);
  Machine& machine = machines_[node];
  if (start != machine.starts) return;
  if (!result) return tell(core::ServiceStartFailed{result.error().message, node});
  if (const std::string other = same_as(node, result->access); !other.empty())
    return tell(core::ServiceStartFailed{"it is " + other + " under another name", node});
  machine.prepared = *result;
  for (const std::string& warning : result->warnings) spdlog::warn("{}: {}", machine.name, warning);
  if (result->flops_per_sample > 0) flops_per_sample_ = result->flops_per_sample;
  machine.taken = true;
  machine.watched = false;
  core::ServiceAnswered answer = result->answer;
  answer.node = node;
  tell(std::move(answer));
}

// The name of another machine in use that has the same service; empty: there is none.
std::string Machines::same_as(core::NodeId node, const NodeAccess& access) const {
  for (const auto& [other, machine] : machines_) {
    if (other == node || !machine.taken || !machine.listed) continue;
    const NodeAccess& its = machine.prepared->access;
    if (access.local ? its.local : its.endpoint == access.endpoint) return machine.name;
  }
  return {};
}

// ---- The gang ----

void Machines::drain(const core::Fleet& fleet, Attempt attempt, std::int64_t action) {
  for (auto& [node, machine] : machines_) {
    const core::Node& known = fleet[node];
    if (!context_->alone && (!known.in_gang || !known.up())) continue;
    machine.commands->start([link = machine.link, attempt, name = machine.name]() -> Inbox::Item {
      const Status asked = link->drain(attempt);
      return [name, asked] {
        if (!asked) spdlog::warn("{}: {}", name, asked.error().message);
      };
    });
  }
  listener_.performed(action, "done");
}

void Machines::tell_everyone(const core::Fleet& fleet, std::int64_t action) {
  if (telling_.action != 0) listener_.performed(telling_.action, "asked again");
  telling_ = Round{++rounds_, action, {kHere}, {}, false, {}};
  for (auto& [node, machine] : machines_) {
    if (!fleet[node].up()) continue;
    telling_.open.insert(node);
    const Time leaves = fleet[node].leaves_at.value_or(now() + core::kUsualNotice);
    machine.commands->start([this, link = machine.link, leaves, node = node, name = machine.name,
                             round = telling_.number]() -> Inbox::Item {
      const Status asked = link->tell_everyone(leaves);
      return [this, round, node, name, asked] {
        if (!asked) spdlog::warn("{}: {}", name, asked.error().message);
        told(round, node);
      };
    });
  }
  told(telling_.number, kHere);
}

void Machines::told(std::uint64_t round, core::NodeId node) {
  if (round != telling_.number || telling_.open.erase(node) == 0 || !telling_.open.empty()) return;
  listener_.performed(std::exchange(telling_, Round{}).action, "done");
}

void Machines::end_gang(const core::Fleet& fleet, Attempt attempt, const std::optional<Gang>& gang,
                        std::int64_t action) {
  if (ending_.action != 0) listener_.performed(ending_.action, "asked again");
  ending_ = Round{++rounds_, action, {kHere}, {}, false, attempt};
  for (auto& [node, machine] : machines_) {
    if (!context_->alone && (!fleet[node].in_gang || !fleet[node].up())) continue;
    ending_.open.insert(node);
    machine.commands->start([this, link = machine.link, node = node, attempt,
                             round = ending_.number,
                             from = machine.watch->records_from()]() -> Inbox::Item {
      auto end = link->end_gang(attempt, from);
      return
          [this, node, attempt, round, end = std::move(end)] { ended(round, node, attempt, end); };
    });
  }
  here_.start([this, gang, attempt, round = ending_.number]() -> Inbox::Item {
    NodeLink::Ended end;
    end.reached = true;
    if (auto mine = gang) end.ended = mine->end(now() + kEndHere);
    return [this, attempt, round, end] { ended(round, kHere, attempt, end); };
  });
}

void Machines::ended(std::uint64_t round, core::NodeId node, Attempt attempt,
                     const NodeLink::Ended& end) {
  // The last words come before the end, or it would be judged by less than is known.
  if (node != kHere && end.last && machines_[node].watched) {
    machines_[node].status = end.last;
    machines_[node].answered = now();
    listener_.answered(node, *end.last, now());
  }
  if (round != ending_.number || ending_.open.erase(node) == 0) return;
  if (!end.reached) {
    ending_.lost = true;
    tell(core::NodeLost{node, "it has not answered for 1 s after the end of its gang"});
  }
  if (end.reached && !end.ended && ending_.failed.empty())
    ending_.failed = end.ended.error().message;
  check_ending(attempt);
}

void Machines::check_ending(Attempt attempt) {
  if (!ending_.open.empty()) return;
  const Round round = std::exchange(ending_, Round{});
  listener_.performed(round.action, round.failed.empty() ? "done" : round.failed);
  // The core asks again, without those that are lost.
  if (round.lost) return;
  if (!round.failed.empty()) return tell(core::GangNotEnded{attempt, round.failed});
  for (auto& [node, machine] : machines_) bring_last_logs(machine);
  tell(core::GangEnded{attempt});
}

// ---- The end of the job ----

void Machines::finish(core::NodeId node, Step step, Duration patience, std::int64_t action) {
  Machine& machine = machines_[node];
  finishing_ = ++rounds_;
  machine.commands->start([this, link = machine.link, node, step, patience, action,
                           round = finishing_]() -> Inbox::Item {
    auto result = link->finish(step, now() + patience);
    return [this, node, step, action, round, result = std::move(result)] {
      listener_.performed(action, result ? "done" : result.error().message);
      // Another machine was asked since.
      if (round != finishing_) return;
      if (!result) {
        return tell(
            core::FinishFailed{result.error().message, result.error().code == Code::kRetry});
      }
      listener_.has_result(
          {result->weights_sha256(), result->state_sha256(), result->folder(), step.value});
      for (auto& [other, machine] : machines_) {
        if (other == node || !machine.watched) continue;
        machine.commands->start([link = machine.link, step]() -> Inbox::Item {
          (void)link->finished_elsewhere(step);
          return [] {};
        });
      }
      tell(core::JobFinished{});
    };
  });
}

void Machines::flush(const std::vector<core::NodeId>& nodes, std::int64_t action) {
  if (flushing_.action != 0) listener_.performed(flushing_.action, "asked again");
  flushing_ = FlushRound{++rounds_, action, {nodes.begin(), nodes.end()}, {}};
  if (nodes.empty()) flushing_.result.note({.stored = error(Code::kRetry, "no machine answers")});
  flush_next();
}

void Machines::flush_next() {
  if (!flushing_.nodes.empty()) {
    Machine& machine = machines_[flushing_.nodes.front()];
    machine.commands->start([this, link = machine.link, round = flushing_.number,
                             stored = flushing_.result.stored()]() -> Inbox::Item {
      auto result = link->flush(stored);
      return [this, round, result = std::move(result)] { flushed(round, result); };
    });
    return;
  }
  const FlushRound done = std::exchange(flushing_, FlushRound{});
  const std::string failure = done.result.failure();
  listener_.performed(done.action, failure.empty() ? "done" : failure);
  tell(core::ArenaFlushed{failure.empty(), failure});
}

void Machines::flushed(std::uint64_t round, const Flushed& result) {
  if (round != flushing_.number) return;
  flushing_.nodes.pop_front();
  flushing_.result.note(result);
  flush_next();
}

void Machines::free(std::int64_t action) {
  freeing_ = Round{++rounds_, action, {kHere}, {}, false, {}};
  start_nothing_more();
  for (auto& [node, machine] : machines_) {
    // One that is out now ends by itself after arena_ttl.
    if (!context_->alone && !machine.watched) continue;
    freeing_.open.insert(node);
    machine.commands->start(
        [this, link = machine.link, node = node, round = freeing_.number]() -> Inbox::Item {
          const Status result = link->free();
          return [this, node, round, result] { freed(round, node, result); };
        });
  }
  freed(freeing_.number, kHere, {});
}

void Machines::freed(std::uint64_t round, core::NodeId node, const Status& result) {
  if (round != freeing_.number || freeing_.open.erase(node) == 0) return;
  if (!result && freeing_.failed.empty()) freeing_.failed = result.error().message;
  if (!freeing_.open.empty()) return;
  const Round done = std::exchange(freeing_, Round{});
  // Of mpirun's files: this machine may have run no service.
  std::error_code not_empty;
  std::filesystem::remove(context_->arena_folder, not_empty);
  listener_.performed(done.action, done.failed.empty() ? "done" : done.failed);
  tell(core::ArenaFreed{done.failed.empty(), done.failed});
}

// ---- What is known ----

const service::StatusReply* Machines::status(core::NodeId node) const {
  const auto found = machines_.find(node);
  return found == machines_.end() || !found->second.status ? nullptr : &*found->second.status;
}

std::optional<Time> Machines::answered_at(core::NodeId node) const {
  const auto found = machines_.find(node);
  if (found == machines_.end() || !found->second.status) return std::nullopt;
  return found->second.answered;
}

std::string Machines::endpoint(core::NodeId node) const {
  const auto found = machines_.find(node);
  return found == machines_.end() || !found->second.prepared
             ? std::string()
             : found->second.prepared->access.endpoint;
}

bool Machines::local(core::NodeId node) const {
  if (context_->alone) return true;
  const auto found = machines_.find(node);
  return found != machines_.end() && found->second.prepared && found->second.prepared->access.local;
}

// A service that would come now nobody would end.
void Machines::start_nothing_more() {
  const std::uint64_t one = 1;
  if (context_->stop) (void)!::write(context_->stop.get(), &one, sizeof one);
}

void Machines::close(Time deadline) {
  start_nothing_more();
  for (auto& [node, machine] : machines_) {
    if (machine.watched && !context_->alone)
      machine.commands->start([link = machine.link]() -> Inbox::Item {
        link->remove_probe();
        return {};
      });
  }
  here_.finish(deadline);
  for (auto& [node, machine] : machines_) machine.commands->finish(deadline);
  for (auto& thread : last_logs_) thread->finish(deadline);
}

}  // namespace surefoot
