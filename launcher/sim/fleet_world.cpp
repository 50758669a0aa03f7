#include "launcher/sim/fleet_world.h"

#include <cstdlib>

namespace surefoot::sim {

using supervisor::Stage;

FleetWorld::FleetWorld(std::uint64_t seed, Plant plant, bool narrate, int machines)
    : Life(seed, plant, narrate, machines > 0 ? 20'000'000 : 100'000),
      plan_(make_fleet_schedule(rng_, machines)) {
  rules_ = plan_.rules;
  for (int i = 0; i < plan_.machines; ++i) add_host();
  hosts_.front().here = plan_.has_own_machine;
  Duration last{};
  for (std::size_t i = 0; i < plan_.faults.size(); ++i) {
    say("planned: {} at {:.3f}", name(plan_.faults[i].kind), seconds(plan_.faults[i].at));
    last = plan_.faults[i].at;
    schedule(last, kFault, static_cast<std::int64_t>(i));
  }
  schedule(last + std::chrono::seconds(70) + rng_.ms(0, 60'000), kHeal);
  schedule(Duration::zero(), kStart);
}

void FleetWorld::handle(const Item& item) {
  switch (item.kind) {
    case kGang:
      if (FleetGang* g = gang(item.number); g != nullptr && !g->hung) advance(*g);
      return;
    case kFault:
      return inject(plan_.faults[static_cast<std::size_t>(item.number)].kind);
    case kHeal:
      return heal();
    case kGone:
      if (!healed_) power_off(host(item.number));
      return;
    case kBack:
      host(item.number).linked = host(item.number).among = true;
      return touch(host(item.number));
    case kBackPeers:
      return power_on(host(item.number));
    case kThaw:
      host(item.number).frozen = false;
      return touch(host(item.number));
    case kReach:
      isolated_ = false;
      return touch_all();
    case kLease:
      return leases_end(host(item.number));
    case kMpirunSees:
      if (FleetGang* g = gang(item.number); g != nullptr && g->mpirun && !all_there(*g))
        leave(*g, -1, 9, "a machine is gone", -1);
      return;
    case kStart:
      if (!alive_ && !over_) start_supervisor();
      return;
    default:
      return deliver(item);
  }
}

// ---- Machines ----

void FleetWorld::add_host() {
  SimHost host;
  host.name = fmt::format("m{}", hosts_.size());
  host.slots = plan_.same_slots ? 0 : static_cast<int>(1 + rng_.below(4));
  hosts_.push_back(std::move(host));
}

SimHost& FleetWorld::host_of(supervisor::NodeId id) {
  const std::string& name = state_.fleet[static_cast<std::size_t>(id)].host.name;
  return host(std::atoll(name.c_str() + 1));  // "m3"
}

void FleetWorld::touch(SimHost& host) {
  const bool reachable = host.powered && !host.frozen && host.linked && !isolated_;
  calm_since_ = now_;
  if (reachable == host.reachable) return;
  host.reachable = reachable;
  host.changed = now_;
  if (!alive_) return;
  const auto after =
      reachable ? rng_.ms(0, 1000) : rules_.fleet.heartbeat_timeout + rng_.ms(0, 500);
  schedule(after, kWatch, index_of(host), true);
}

void FleetWorld::touch_all() {
  for (SimHost& host : hosts_) touch(host);
}

void FleetWorld::power_off(SimHost& host) {
  if (!host.powered) return;
  say("    {} is gone", host.name);
  for (const std::int64_t attempt : host.workers) {
    if (FleetGang* g = gang(attempt); g != nullptr) g->lost = true;
    if (rng_.chance(2)) schedule(rng_.ms(20, 1000), kMpirunSees, attempt);
  }
  host.powered = host.frozen = host.service = false;
  host.ready = -1;
  host.workers.clear();
  touch(host);
}

void FleetWorld::power_on(SimHost& host) {
  if (host.powered) return;
  say("    {} is there again", host.name);
  ++sights_.reboots;
  host.powered = true;
  ++host.boot;
  touch(host);
}

void FleetWorld::cut(SimHost& host, bool among, Duration lasts) {
  if (!host.powered) return;
  say("    {} is cut off{} for {:.1f} s", host.name, among ? "" : " from the supervisor",
      seconds(lasts));
  host.linked = false;
  host.among = host.among && !among;
  touch(host);
  schedule(lasts, kBack, index_of(host));
  schedule(std::chrono::seconds(8), kLease, index_of(host));
}

// A service that hears no supervisor and sees no step ends its workers.
void FleetWorld::leases_end(SimHost& host) {
  if (host.reachable || !host.powered || host.frozen || !host.service) return;
  std::erase_if(host.workers, [&](std::int64_t attempt) {
    const FleetGang* g = gang(attempt);
    return g == nullptr || g->hung || !all_there(*g);
  });
}

void FleetWorld::heal() {
  if (healed_) return;
  healed_ = true;
  isolated_ = false;
  say("    the world heals");
  int listed = 0;
  for (SimHost& host : hosts_) listed += host.listed;
  for (SimHost& host : hosts_) {
    if (plan_.heals) {
      const bool other = host.numerics != "x" || host.training != "t";
      if (other) power_off(host);
      host.numerics = "x", host.training = "t";
      power_on(host);
      if (!host.listed && listed < rules_.fleet.min_nodes) host.listed = ++listed > 0;
    }
    host.frozen = false;
    host.linked = host.among = true;
    host.starts_fail = 0;
    host.crashes = false;
    touch(host);
  }
  if (alive_) schedule(rng_.ms(0, 3000), kList, 0, true);
}

SimHost* FleetWorld::some_host() {
  return &host(rng_.below(static_cast<std::int64_t>(hosts_.size())));
}

SimHost* FleetWorld::some_member() {
  FleetGang* g = newest_gang();
  if (g == nullptr || rng_.chance(4)) return some_host();
  const auto& members = g->members;
  return &host(
      members[static_cast<std::size_t>(rng_.below(static_cast<std::int64_t>(members.size())))]
          .node);
}

// ---- Gangs ----

FleetGang* FleetWorld::gang(std::int64_t attempt) {
  for (auto it = gangs_.rbegin(); it != gangs_.rend(); ++it) {
    if (it->attempt.value == attempt) return &*it;
  }
  return nullptr;
}

FleetGang* FleetWorld::newest_gang() {
  return gangs_.empty() || !any_there(gangs_.back()) ? nullptr : &gangs_.back();
}

bool FleetWorld::works_on(const SimHost& host, std::int64_t attempt) const {
  return std::find(host.workers.begin(), host.workers.end(), attempt) != host.workers.end();
}

void FleetWorld::end_workers(SimHost& host, std::int64_t below) {
  const auto gone =
      std::erase_if(host.workers, [&](std::int64_t attempt) { return attempt < below; });
  sights_.orphans_ended += static_cast<std::int64_t>(gone);
}

bool FleetWorld::all_there(const FleetGang& g) {
  return std::all_of(g.members.begin(), g.members.end(), [&](const supervisor::Member& member) {
    const SimHost& h = host(member.node);
    return h.powered && !h.frozen && (h.among || g.members.size() == 1) &&
           works_on(h, g.attempt.value);
  });
}

bool FleetWorld::any_there(const FleetGang& g) {
  return std::any_of(g.members.begin(), g.members.end(), [&](const supervisor::Member& member) {
    return works_on(host(member.node), g.attempt.value);
  });
}

void FleetWorld::advance(FleetGang& g) {
  if (!all_there(g)) {
    g.jumped = true;
    if (any_there(g) && ++g.stalls < 400) schedule(std::chrono::seconds(1), kGang, g.attempt.value);
    return;
  }
  switch (g.stage) {
    case Stage::kLaunching:
      g.stage = Stage::kLoading;
      schedule(rng_.ms(100, 800), kGang, g.attempt.value);
      break;
    case Stage::kLoading:
      if (refuse_code_ != 0)
        return leave(g, std::exchange(refuse_code_, 0), 0, "data.path: no such file", -1);
      g.stage = Stage::kRestoring;
      schedule(rng_.ms(10, 400), kGang, g.attempt.value);
      break;
    case Stage::kRestoring:
      restore(g);
      break;
    case Stage::kStepping:
      make_step(g);
      break;
    case Stage::kEvaluating:
      g.stage = Stage::kStepping;
      schedule(plan_.step_time, kGang, g.attempt.value);
      break;
    case Stage::kFinishing:
      return leave(g, supervisor::kExitDone, 0, "", -1);
  }
  if (alive_) schedule(rng_.ms(0, 100), kPoll, 0, true);
}

void FleetWorld::restore(FleetGang& g) {
  std::int64_t from = durable_;
  for (const supervisor::Member& member : g.members) from = std::max(from, host(member.node).ready);
  if (from < 0 && known_step_ > 0)
    return leave(g, kExitNoGoodCopy, 0, "no good copy of the state is left", -1);
  g.step = std::max<std::int64_t>(from, 0);
  for (const supervisor::Member& member : g.members) host(member.node).ready = g.step;
  g.stage = g.step >= rules_.max_steps.value ? Stage::kFinishing : Stage::kStepping;
  schedule(plan_.step_time, kGang, g.attempt.value);
}

void FleetWorld::make_step(FleetGang& g) {
  for (const supervisor::Member& member : g.members) {
    SimHost& h = host(member.node);
    if (h.crashes) {
      h.crashes = rng_.chance(2);
      return leave(g, -1, 11, fmt::format("bad memory {}", rng_.below(1000)), member.node);
    }
  }
  ++g.step;
  ++sights_.steps;
  if (g.step <= finished_) ++sights_.steps_redone;
  finished_ = std::max(finished_, g.step);
  for (const supervisor::Member& member : g.members) host(member.node).ready = g.step;
  records_.push_back({g.attempt.value, g.step, clock()});
  say("    step {} of attempt {} is finished", g.step, g.attempt);
  if (rng_.chance(8)) durable_ = std::max(durable_, g.step);
  if (g.drain) return leave(g, supervisor::kExitInterrupted, 0, "", -1);
  const bool last = g.step >= rules_.max_steps.value;
  g.stage = last ? Stage::kFinishing : rng_.chance(8) ? Stage::kEvaluating : Stage::kStepping;
  schedule(plan_.step_time, kGang, g.attempt.value);
}

void FleetWorld::leave(FleetGang& g, int code, int signal, std::string reason, int culprit) {
  say("    attempt {} leaves: code {}, signal {} {}", g.attempt, code, signal, reason);
  const bool together = all_there(g);
  for (const supervisor::Member& member : g.members) {
    SimHost& h = host(member.node);
    // Who hears of it goes; mpirun forgets some.
    if (together ? true : h.powered && !h.frozen && h.among && rng_.chance(2))
      std::erase(h.workers, g.attempt.value);
  }
  g.crashed = g.crashed || together;
  g.died = clock();
  g.reason = std::move(reason);
  g.culprit = culprit;
  if (!g.mpirun) return;  // nobody is left to tell of it
  g.mpirun = false;
  g.code = code;
  g.signal = signal;
  if (alive_) schedule(rng_.ms(0, rng_.chance(8) ? 2000 : 100), kExited, g.attempt.value, true);
}

}  // namespace surefoot::sim
