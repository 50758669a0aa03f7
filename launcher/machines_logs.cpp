// What machines have to show: the logs of their ranks, and where these are.
#include <algorithm>

#include "checkpoint/rank_traces.h"
#include "common/file.h"
#include "common/log.h"
#include "launcher/machines.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
namespace core = supervisor;

// Below the core's limit for the same effect (supervisor::Rules), so that an answer comes before
// the core gives up.
constexpr Duration kTraces = 4500ms;
constexpr Duration kLogs = 2s;       // of one look at a machine's logs
constexpr Duration kLastLogs = 20s;  // of the last one, for all that is there

}  // namespace

void Machines::follow_logs(core::NodeId node, Attempt attempt, const std::vector<int>& ranks) {
  Machine& machine = machines_[node];
  bring_last_logs(machine);
  if (context_->alone || !machine.prepared || machine.prepared->access.local ||
      machine.prepared->status.shares_directory())
    return;
  machine.mirror = std::make_shared<LogMirror>(context_->directory.attempt_logs(attempt),
                                               machine.name, attempt, ranks);
  machine.logs = std::make_unique<TaskThread>(inbox_);
}

Inbox::Item Machines::pull(LogMirror& mirror, const ServiceAddress& address,
                           const std::string& job_id, Time deadline) {
  ServiceClient client(address, job_id);
  const auto call = [&](service::Request request, Time until) {
    return client.call(std::move(request), until);
  };
  Result<bool> all = false;
  do {
    all = mirror.pull(call, std::min(deadline, now() + kLogs));
  } while (all && !*all && now() < deadline);
  if (all || all.error().code == Code::kRetry) return {};
  return [what = all.error().message] { spdlog::warn("logs of a machine: {}", what); };
}

bool Machines::bringing_logs() const {
  return std::any_of(machines_.begin(), machines_.end(), [](const auto& entry) {
    return entry.second.mirror && !entry.second.logs->idle();
  });
}

// Of an attempt that is over: what has come since the last look.
void Machines::bring_last_logs(Machine& machine) {
  if (!machine.mirror) return;
  machine.logs->start(
      [mirror = std::exchange(machine.mirror, nullptr), address = machine.prepared->address,
       id = context_->job_id]() { return pull(*mirror, address, id, now() + kLastLogs); });
  last_logs_.push_back(std::move(machine.logs));
}

void Machines::mirror_logs() {
  for (auto& [node, machine] : machines_) {
    if (!machine.mirror || !machine.watched || !machine.logs->idle()) continue;
    machine.logs->start(
        [mirror = machine.mirror, address = machine.prepared->address, id = context_->job_id]() {
          return pull(*mirror, address, id, now() + kLogs);
        });
  }
  std::erase_if(last_logs_, [](const auto& thread) { return thread->idle(); });
}

std::vector<RankPlace> Machines::places(const std::set<core::NodeId>& nodes,
                                        Attempt attempt) const {
  std::vector<RankPlace> places;
  for (const core::NodeId node : nodes) {
    const service::StatusReply* status = this->status(node);
    if (status == nullptr) continue;
    const std::string host = context_->alone ? host_name() : machines_.at(node).name;
    for (const service::RankStatus& rank : status->ranks()) {
      if (rank.attempt() != attempt.value || !rank.alive()) continue;
      places.push_back({node, host, rank.rank(), Step{rank.step()},
                        phase_named(rank.phase()).value_or(Phase::kStarting)});
    }
  }
  return places;
}

void Machines::collect_traces(const core::Fleet& fleet, Attempt attempt,
                              const std::optional<Gang>& gang, std::int64_t action) {
  tracing_ = Round{++rounds_, action, {}, {}, false, attempt};
  traces_ = "Taken since no step was finished in time.\n";
  std::set<std::int32_t> told;  // by the service of this machine
  for (auto& [node, machine] : machines_) {
    if (!context_->alone && (!fleet[node].in_gang || !fleet[node].up())) continue;
    tracing_.open.insert(node);
    if (machine.status && local(node)) {
      for (const auto& rank : machine.status->ranks()) told.insert(rank.pid());
    }
    machine.commands->start([this, link = machine.link, node = node, attempt, name = machine.name,
                             round = tracing_.number]() -> Inbox::Item {
      const auto text = link->trace(attempt, kTraces);
      return [this, node, attempt, round,
              text = fmt::format("\n==== {}\n{}\n", name, text ? *text : text.error().message)] {
        traced(round, node, attempt, text);
      };
    });
  }
  awaited_ = awaited_rank(places(tracing_.open, attempt)).value_or(core::Culprit{});
  tracing_.open.insert(kHere);
  here_.start([this, gang, told, attempt, round = tracing_.number]() -> Inbox::Item {
    std::vector<TracedProcess> others;
    for (const ProcessId& process : gang ? gang->processes() : std::vector<ProcessId>{}) {
      if (!told.contains(process.pid)) others.push_back({process, "not a registered worker", {}});
    }
    return [this, attempt, round,
            text = "\n==== mpirun's session\n" + trace_processes(others, now() + kTraces)] {
      traced(round, kHere, attempt, text);
    };
  });
}

void Machines::traced(std::uint64_t round, core::NodeId node, Attempt attempt,
                      const std::string& text) {
  if (round != tracing_.number || tracing_.open.erase(node) == 0) return;
  traces_ += text;
  if (!tracing_.open.empty()) return;
  const auto file = context_->directory.attempt_logs(attempt) / "traces.txt";
  here_.start([this, file, attempt, action = tracing_.action, traces = std::exchange(traces_, {}),
               awaited = awaited_]() -> Inbox::Item {
    const Status written = write_file_atomically(file, traces);
    return [this, attempt, action, awaited, written] {
      listener_.performed(action, written ? "done" : written.error().message);
      tell(core::TracesCollected{attempt, awaited});
    };
  });
}

}  // namespace surefoot
