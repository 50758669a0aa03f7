// The judge of many machines. It looks at the doubles; the core's opinion is what it doubts.
#include <unordered_set>

#include "launcher/sim/fleet_world.h"

namespace surefoot::sim {

using namespace supervisor;  // NOLINT: the whole file speaks of its types

void FleetWorld::check_launch(const LaunchGang& launch) {
  const Attempt attempt = launch.attempt;
  check_any_launch(attempt);
  for (const FleetGang& g : gangs_) {
    if (g.mpirun) violated(fmt::format("launched while mpirun of attempt {} lives", g.attempt));
  }
  const FleetRules& fleet = rules_.fleet;
  const auto count = static_cast<std::int64_t>(launch.members.size());
  if (count < fleet.min_nodes || count > fleet.max_nodes)
    violated(fmt::format("launched on {} machines, {} to {} are allowed", count, fleet.min_nodes,
                         fleet.max_nodes));
  std::unordered_set<NodeId> members;
  std::int64_t workers = 0;
  std::int64_t safe = durable_;
  for (const Member& member : launch.members) {
    SimHost& h = host_of(member.node);
    if (!members.insert(member.node).second) violated(h.name + " is twice in an attempt");
    check_member(h, attempt, member.workers);
    workers += member.workers;
    safe = std::max(safe, h.ready);
    // It cannot be known yet that this launch will fail.
    if (!h.reachable || !h.service) safe = finished_;
  }
  sights_.most_workers = std::max(sights_.most_workers, workers);
  if (workers > fleet.micro_batches) violated("more workers than micro-batches");
  if (journal_.gang.size() != launch.members.size())
    violated("the journal does not know the machines of the attempt");
  for (SimHost& h : hosts_) {
    if (h.told != SimHost::Told::kUp) continue;
    const bool given_up = h.in_hand && clock() - h.asked >= fleet.check_timeout;
    // What is not like the machines of the job cannot take part; without it some steps are redone.
    const bool alike = h.numerics == numerics_ && h.training == training_;
    if (alike && !given_up && h.ready > std::max<std::int64_t>(safe, 0) && h.reachable &&
        h.service && !store_failed_)
      violated(fmt::format("step {} is lost: {} holds it, and attempt {} begins after {}", h.ready,
                           h.name, attempt, safe));
    if (!h.workers.empty() && h.reachable && !h.in_hand)
      violated(fmt::format("attempt {} is launched while workers of attempt {} live on {}", attempt,
                           h.workers.front(), h.name));
  }
}

void FleetWorld::check_member(SimHost& h, Attempt attempt, int workers) {
  const int slots = h.slots > 0 ? h.slots : rules_.fleet.workers_per_node;
  if (workers < 1 || workers > slots)
    violated(fmt::format("{} workers on the {} slots of {}", workers, slots, h.name));
  if (h.told != SimHost::Told::kUp)
    violated(
        fmt::format("attempt {} is launched on {}, which is known to be away", attempt, h.name));
  if (!h.told_listed)
    violated(fmt::format("attempt {} is launched on {}, which is not listed", attempt, h.name));
  if (h.announced && clock() < h.until)
    violated(fmt::format("attempt {} is launched on {}, which goes", attempt, h.name));
  if (!h.workers.empty())
    violated(fmt::format("attempt {} is launched on {} while attempt {} lives there", attempt,
                         h.name, h.workers.front()));
  const NodeFacts& facts = h.answer.facts;
  if (numerics_.empty()) numerics_ = facts.numerics_id;
  if (facts.numerics_id != numerics_) violated(h.name + " gives other bits");
  if (training_.empty()) training_ = facts.training_hash;
  if (facts.training_hash != training_) violated(h.name + " has other data");
}

// One of its machines was told to be away, or was restarted.
bool FleetWorld::missed(const FleetGang& g) {
  for (std::size_t i = 0; i < g.members.size(); ++i) {
    const SimHost& h = host(g.members[i].node);
    if (h.told != SimHost::Told::kUp || h.boot != g.boots[i]) return true;
  }
  return false;
}

// How a recorded end must read, by what the doubles did.
void FleetWorld::check_end(const AttemptEnd& end) {
  FleetGang* g = gang(end.attempt.value);
  count_end(end);
  switch (end.outcome) {
    case Outcome::kDone:
      if (finished_ < rules_.max_steps.value) violated("recorded as done before the last step");
      break;
    case Outcome::kDrained:
      ++sights_.drained;
      if (!user_stops_) violated("recorded as drained, but was not asked to");
      break;
    case Outcome::kPreempted:
      ++sights_.preempted;
      if (g != nullptr && !g->lost && !missed(*g) && g->code != kExitInterrupted)
        violated("recorded as preempted, and no machine went");
      break;
    case Outcome::kRegrouped:
      ++sights_.regrouped;
      break;
    case Outcome::kFailed:
      ++sights_.failed;
      if (g != nullptr && g->launched && g->lost && !g->crashed)
        violated("the loss of a machine is a failure");
      if (g != nullptr && g->launched && !g->crashed && !g->jumped)
        violated("recorded as failed, and nobody of it failed");
      break;
    case Outcome::kHung:
      ++sights_.hung;
      if (g != nullptr && !g->hung && !g->jumped) violated("recorded as hung, but it made steps");
      break;
    case Outcome::kRefused:
      ++sights_.refused;
      final_ = true;
      break;
    case Outcome::kEnded:
      ++sights_.ended;
      if (!user_stops_) violated("ended for a user who did not ask for it");
      break;
    case Outcome::kAbandoned:
      ++sights_.abandoned;
      if (g != nullptr && g->own_child) violated("its own gang is recorded as abandoned");
      break;
  }
  if (g == nullptr) return;
  if (g->mpirun)
    violated(fmt::format("attempt {} is recorded as ended, mpirun lives", end.attempt));
  for (const Member& member : g->members) {
    const SimHost& h = host(member.node);
    if (h.told != SimHost::Told::kLost && h.told != SimHost::Told::kNothing && h.reachable &&
        works_on(h, end.attempt.value))
      violated(
          fmt::format("attempt {} is recorded as ended while it lives on {}", end.attempt, h.name));
  }
}

// Of the machines that can be asked, one that holds the newest step is.
void FleetWorld::check_flush(const FlushAndKeepArena& effect) {
  std::int64_t asked = -1;
  std::int64_t held = -1;
  for (const SimHost& h : hosts_) {
    if (believed_up(h)) held = std::max(held, h.ready);
  }
  for (const NodeId id : effect.nodes) asked = std::max(asked, host_of(id).ready);
  if (asked < held) violated("nobody who holds the newest step is asked to store it");
}

void FleetWorld::check_free() {
  std::int64_t held = -1;
  for (const SimHost& h : hosts_) {
    if (!h.reachable || h.id < 0) continue;
    // A cancelled job does not wait for what it cannot see.
    if (!cancel_asked_ || believed_up(h)) held = std::max(held, h.ready);
    if (believed_up(h) && !h.workers.empty())
      violated(fmt::format("the arena of {} is freed under a living gang", h.name));
  }
  if (!stored_ && held > 0 && (!cancel_asked_ || held > durable_))
    violated("the arena of an unfinished job is freed");
}

// It was told so last, and the core has taken it.
bool FleetWorld::believed_up(const SimHost& h) const {
  return h.told == SimHost::Told::kUp && h.id >= 0 &&
         state_.fleet[static_cast<std::size_t>(h.id)].up();
}

bool FleetWorld::fits(const SimHost& h) const {
  const bool struck = h.id >= 0 && state_.fleet[static_cast<std::size_t>(h.id)].strikes.size() > 1;
  return h.reachable && h.service && h.told == SimHost::Told::kUp && h.told_listed &&
         clock() >= h.until + rules_.fleet.check_timeout && !struck &&
         (numerics_.empty() || h.numerics == numerics_) &&
         (training_.empty() || h.training == training_);
}

// While nothing happens to machines, the job is to run on as many as make its steps faster.
void FleetWorld::check_growth() {
  constexpr Duration kSlack = std::chrono::seconds(30);
  if (!alive_ || state_.doing != Doing::kRunning || state_.stage != Stage::kStepping) return;
  if (now_ - calm_since_ < rules_.fleet.grow_after + kSlack) return;
  Fleet fleet;
  for (const SimHost& h : hosts_) {
    if (!fits(h)) continue;
    Node node;
    node.host.slots = h.slots;
    node.standing = Standing::kReady;
    node.in_gang = works_on(h, state_.history.attempt.value);
    fleet.push_back(std::move(node));
  }
  // Which of too many it takes is its own affair.
  const auto up = std::count_if(state_.fleet.begin(), state_.fleet.end(), usable);
  if (!plan_.same_slots && up > rules_.fleet.max_nodes) return;
  const std::vector<Member> best = choose(rules_.fleet, fleet, {});
  if (!best.empty() &&
      longest_share(rules_.fleet, best) < longest_share(rules_.fleet, state_.members))
    violated(fmt::format("{} workers, and {} are to be had since long", workers_of(state_.members),
                         workers_of(best)));
}

void FleetWorld::check_shortage(const std::string& line) {
  ++sights_.too_few;
  std::map<std::string, int> alike;  // until the job has run, it is open what it runs on
  int away = 0;
  int named = 0;
  for (const SimHost& h : hosts_) {
    if (fits(h)) ++alike[h.numerics + h.training];
    const bool missing = h.told_listed && h.told != SimHost::Told::kUp;
    away += missing;
    named += missing && line.find(h.name + ":") != std::string::npos;
  }
  int enough = 0;
  for (const auto& [kind, count] : alike) enough = std::max(enough, count);
  if (enough >= rules_.fleet.min_nodes && calm_since_ + rules_.fleet.check_timeout < now_)
    violated("stopped for want of machines, and there are enough");
  const bool calm = now_ - calm_since_ > std::chrono::seconds(10);
  const bool all_named = line.find(" more") == std::string::npos;
  if (away > 0 && named == 0 && calm && all_named)
    violated("it does not say for whom it waited: " + line);
}

void FleetWorld::check_stop(const Stop& stop) {
  const bool gave_up = state_.history.attempt_open;
  if (!asked_to_store_ && interrupts_ < 3) violated("stopped, and nothing is stored or freed");
  for (const SimHost& h : hosts_) {
    if (believed_up(h) && h.reachable && !h.workers.empty() && !gave_up)
      violated(fmt::format("the job stopped and attempt {} goes on on {}", h.workers[0], h.name));
  }
  const bool too_few = stop.line.starts_with("not enough machines");
  const bool called_for = user_stops_ || too_few;
  if (stop.state == JobState::kInterrupted && gave_up && !called_for && ahead_ == Duration::zero())
    violated("a gang was given up that could be ended");
  check_any_stop(stop, called_for);
  if (too_few) check_shortage(stop.line);
}

}  // namespace surefoot::sim
