// Where the ranks on this node are, for a supervisor that sees them finish no step.
#include <algorithm>

#include "checkpoint/rank_traces.h"
#include "checkpoint/service_internal.h"
#include "checkpoint/service_message.h"
#include "common/log.h"
#include "configs/job_directory.h"

namespace surefoot {
namespace {

constexpr double kLongest = 4;  // seconds; below what the supervisor waits before it ends the gang

}  // namespace

// Registered, or in the session that was launched. On the thread of logs, as theirs are read.
void ServiceImpl::trace(const Peer& peer, const service::Trace& request) {
  const Attempt attempt{request.attempt()};
  if (attempt.value < 1 || attempt.value > kMaxAttempt)
    return reply(peer, error(Code::kInvalid, "there is no attempt {}", attempt));
  const std::filesystem::path folder = launches_.log_folder(attempt).value_or(
      JobDirectory{settings_.job_directory}.attempt_logs(attempt));
  std::vector<TracedProcess> traced;
  for (int local_rank = 0; arena_ && local_rank < kMaxLocalRanks; ++local_rank) {
    const RankLine& line = arena_->line(local_rank);
    const ProcessId process = registered_process(line);
    if (process.pid <= 1 || line.attempt.load() != attempt.value || !is_alive(process)) continue;
    const double since = static_cast<double>(now().time_since_epoch().count() -
                                             line.changed_ns.load(std::memory_order_acquire)) *
                         1e-9;
    traced.push_back({process,
                      fmt::format("rank {}, step {}, {} for {:.1f} s", line.rank.load(),
                                  line.step.load(), name(line.phase.load()), since),
                      folder / fmt::format("rank-{}.log", line.rank.load())});
  }
  const SessionProcesses launched = launches_.processes_below(attempt.next());
  for (const ProcessId& process : launched.members) {
    const bool known = std::any_of(traced.begin(), traced.end(), [&](const TracedProcess& other) {
      return other.process == process;
    });
    if (!known) traced.push_back({process, "not a registered worker", {}});
  }
  const double patience = std::clamp(request.seconds(), 0.0, kLongest);
  log_thread_.start([this, peer, traced, patience]() -> WorkThread::Outcome {
    const Time deadline = now() + from_seconds(patience);
    service::Reply message;
    message.mutable_trace()->set_text(as_utf8(trace_processes(traced, deadline)));
    return [this, peer, message = std::move(message)] { reply(peer, message); };
  });
}

}  // namespace surefoot
