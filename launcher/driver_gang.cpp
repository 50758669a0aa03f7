// A gang's launch and its end, as the driver sees them.
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "common/log.h"
#include "launcher/driver_internal.h"
#include "launcher/nodes/network.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;

// How long the last words of a gang that has ended are waited for. Of the only machine: its service
// may have died with it, and a new one answers in a quarter of a second. Of several, one that says
// nothing within a second is lost.
constexpr Duration kServiceReturns = 5s;
constexpr Duration kLastWords = 1s;
constexpr std::streamoff kLogTail =
    64 * 1024;  // of mpirun's log: its message on who ended stands last

std::string tail_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) return {};
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - kLogTail));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace

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
      if (auto own = address_towards(addresses.back())) {
        spec.own_address = *own;
        addresses.push_back(*own);
      }
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
  peak_.reset();
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
  return !machines_.bringing_logs();
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
  facts.status = gang_status();
  facts.at = now();
  core::GangExited exited = gang_exited(facts);
  core::Culprit& culprit = exited.culprit;
  culprit.node = node_of_rank(culprit.rank);
  if (culprit.node >= 0)
    culprit.host = rules_.fleet.alone ? host_name() : state_.fleet[culprit.node].host.name;
  post(std::move(exited));
}

}  // namespace surefoot
