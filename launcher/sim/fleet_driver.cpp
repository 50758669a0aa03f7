// The driver's double for many machines: performs effects and tells events, by the contracts that
// stand with them in supervisor.h.
#include "launcher/sim/fleet_world.h"

namespace surefoot::sim {

using namespace supervisor;  // NOLINT: the whole file speaks of its types

namespace {

// Of one StartService: its machine and its number.
constexpr std::int64_t kHosts = 1'000'000;

}  // namespace

void FleetWorld::start_supervisor() {
  records_read_ = 0;
  named_ = 0;
  asked_to_store_ = false;
  flush_nodes_.clear();
  if (journal_.finished_step.value == 0) training_.clear();
  if (numerics_.empty()) numerics_ = journal_.numerics_id;
  for (SimHost& h : hosts_) {
    h.id = -1;
    h.ask = 0;
    h.told = SimHost::Told::kNothing;
    h.in_hand = false;
    h.told_listed = h.announced = false;
  }
  bool lives = false;
  for (FleetGang& g : gangs_) {
    g.own_child = false;
    lives = lives || g.mpirun;
  }
  open();
  schedule(rng_.ms(0, 500), kList, 0, true);
  feed({clock(), JobOpened{journal_, lives}});
  name_nodes();
}

void FleetWorld::name_nodes() {
  for (; named_ < state_.fleet.size(); ++named_) {
    const auto id = static_cast<NodeId>(named_);
    host_of(id).id = id;
  }
}

void FleetWorld::tell(SimHost& h, SimHost::Told told, Event event) {
  if (h.id < 0 || !alive_) return;
  say("    {}:", h.name);
  h.told = told;
  feed(std::move(event));
}

// What the thread that looks after a machine does once in a while.
void FleetWorld::watch(SimHost& h) {
  if (h.told != SimHost::Told::kUp) return;
  const Duration silent = now_ - h.changed;
  const Duration limit = rules_.fleet.heartbeat_timeout;
  if (!h.reachable) {
    schedule(silent >= limit ? limit : limit - silent, kWatch, index_of(h), true);
    if (silent < limit) return;
    ++sights_.losses;
    if (FleetGang* g = gang(state_.history.attempt.value);
        g != nullptr && state_.fleet[h.id].in_gang)
      g->lost = true;
    return tell(h, SimHost::Told::kLost, {clock(), NodeLost{h.id, "it has not answered for 5 s"}});
  }
  if (h.service) return;
  tell(h, SimHost::Told::kAway, {clock(), ServiceLost{h.id}});
}

bool FleetWorld::seen(std::int64_t attempt) {
  const FleetGang* g = gang(attempt);
  return g != nullptr && std::any_of(g->members.begin(), g->members.end(), [&](const Member& m) {
           const SimHost& h = host(m.node);
           return h.reachable && h.service && h.told == SimHost::Told::kUp;
         });
}

// What the services show of the gang: finished steps, the stage.
void FleetWorld::poll() {
  const int life = life_;
  const auto here = [&] { return alive_ && life_ == life && violation_.empty(); };
  while (here() && records_read_ < records_.size()) {
    const Record record = records_[records_read_];
    const bool told = seen(record.attempt);
    if (!told && record.attempt == state_.history.attempt.value) break;
    ++records_read_;
    if (told)
      feed({clock(),
            StepFinished{Attempt{record.attempt}, Step{record.step}, record.at, rng_.ms(0, 3)}});
  }
  check_growth();
  FleetGang* g = newest_gang();
  if (!here() || g == nullptr || g->stage == stage_told_ || !seen(g->attempt.value)) return;
  stage_told_ = g->stage;
  feed({clock(), StageReached{g->attempt, g->stage, clock()}});
}

void FleetWorld::deliver(const Item& item) {
  const Attempt attempt{item.number};
  switch (item.kind) {
    case kPoll:
      return poll();
    case kExited:
      return tell_exit(item.number);
    case kEndDone:
      return end_done(item.number);
    case kStartDone:
      return start_done(item.number);
    case kAnswered:
      return answered(item.number);
    case kStartFailed: {
      SimHost& h = host(item.number % kHosts);
      if (h.ask == item.number / kHosts)
        tell(h, SimHost::Told::kLost, {clock(), ServiceStartFailed{"no route to host", h.id}});
      return;
    }
    case kWatch:
      return watch(host(item.number));
    case kTraces:
      return feed({clock(), TracesCollected{attempt}});
    case kLaunched:
      return feed({clock(), GangLaunched{attempt}});
    case kLaunchFailed:
      return feed({clock(), LaunchFailed{attempt, fmt::format("no memory {}", rng_.below(1000))}});
    case kFinishDone:
      return finish_done(static_cast<NodeId>(item.number));
    case kFlushDone:
      return flush_done();
    case kFreed:
      return feed({clock(), ArenaFreed{}});
    case kTimer:
      return time_is_up(item.number);
    case kInterrupt:
      user_stops_ = true;
      ++interrupts_;
      return feed({clock(), Interrupted{}});
    case kList: {
      HostsListed list;
      for (SimHost& h : hosts_) {
        if (h.listed && !h.told_listed) h.announced = false;
        h.told_listed = h.listed;
        if (h.listed) list.hosts.push_back({h.name, h.slots, h.here});
      }
      feed({clock(), std::move(list)});
      return name_nodes();
    }
    case kNoticeTold:
      return tell_notice(host(item.number));
    default:
      return;
  }
}

void FleetWorld::tell_notice(SimHost& h) {
  if (h.id < 0 || !h.reachable || !h.service || h.boot != h.goes_boot) return;
  NoticeReceived notice{std::nullopt, h.id};
  if (h.leaves != Time::max()) notice.leaves = h.leaves;
  // Its time is long over.
  if (notice.leaves && clock() >= h.leaves + kOutlivedNotice) return feed({clock(), notice});
  if (h.here) user_stops_ = true;
  const bool known = h.announced && h.announced_boot == h.boot && clock() < h.until;
  h.announced = true;
  h.announced_boot = h.boot;
  FleetGang* g = gang(state_.history.attempt.value);
  if (g != nullptr && (h.here || state_.fleet[h.id].in_gang)) g->lost = true;
  // Of two that are told the sooner one counts, as long as its time has not come.
  const Time until = notice.leaves.value_or(clock() + kUsualNotice) + kOutlivedNotice;
  const bool anew =
      notice.leaves && *notice.leaves > clock() && clock() + kOutlivedNotice >= h.until;
  if (!known || anew) h.until = until;
  h.until = std::min(h.until, until);
  feed({clock(), notice});
}

void FleetWorld::tell_exit(std::int64_t attempt) {
  poll();
  FleetGang* g = gang(attempt);
  if (!alive_ || g == nullptr) return;
  Culprit culprit{1, "host", Step{g->step + 1}, Phase::kForwardBackward,
                  g->own_child ? g->reason : ""};
  if (g->culprit >= 0) culprit.node = host(g->culprit).id;
  feed({clock(), GangExited{Attempt{attempt}, g->own_child ? g->code : -1,
                            g->own_child ? g->signal : 0, culprit, g->died}});
}

// SIGKILL everywhere it can be asked for; who cannot be asked is lost.
void FleetWorld::end_done(std::int64_t attempt) {
  FleetGang* g = gang(attempt);
  const int life = life_;
  bool left = false;
  const std::vector<Member> members = g != nullptr ? g->members : std::vector<Member>{};
  for (const Member& member : members) {
    SimHost& h = host(member.node);
    if (h.reachable && h.service) {
      end_workers(h, attempt + 1);
      continue;
    }
    if (h.id < 0 || h.told == SimHost::Told::kLost) continue;
    if (h.reachable && gang(attempt)->tries++ < 4) {  // its service may be back in a moment
      left = true;
      continue;
    }
    ++sights_.losses;
    if (attempt == state_.history.attempt.value && state_.history.attempt_open)
      gang(attempt)->lost = true;
    tell(h, SimHost::Told::kLost, {clock(), NodeLost{h.id, "it has not answered for 1 s"}});
    if (!alive_ || life_ != life) return;
  }
  poll();
  if (!alive_ || life_ != life) return;
  if (left || rng_.chance(40))
    return feed({clock(), GangNotEnded{Attempt{attempt}, "its service does not answer"}});
  feed({clock(), GangEnded{Attempt{attempt}}});
}

void FleetWorld::perform(const Effect& effect) {
  say("  {}", name(effect));
  if (const auto* e = std::get_if<StartService>(&effect)) return perform_start(*e);
  if (const auto* e = std::get_if<LaunchGang>(&effect)) return perform_launch(*e);
  if (const auto* e = std::get_if<EndGang>(&effect)) return perform_end(e->attempt);
  if (const auto* e = std::get_if<Stop>(&effect)) return perform_stop(*e);
  if (const auto* e = std::get_if<RequestDrain>(&effect)) {
    if (FleetGang* g = gang(e->attempt.value); g != nullptr && seen(e->attempt.value))
      g->drain = true;
    return;
  }
  if (const auto* e = std::get_if<CollectTraces>(&effect)) {
    if (traces_hang_ > 0) return void(--traces_hang_);
    return schedule(rng_.ms(10, 3000), kTraces, e->attempt.value, true);
  }
  if (std::holds_alternative<TellEveryone>(effect)) {
    for (const SimHost& h : hosts_) {
      if (h.reachable && h.service && believed_up(h)) durable_ = std::max(durable_, h.ready);
    }
    return;
  }
  if (const auto* e = std::get_if<FinishJob>(&effect)) {
    name_nodes();
    return schedule(rng_.ms(10, 1000), kFinishDone, e->node, true);
  }
  if (const auto* e = std::get_if<FlushAndKeepArena>(&effect)) {
    check_flush(*e);
    asked_to_store_ = true;
    flush_nodes_ = e->nodes;
    return schedule(rng_.ms(10, 2000), kFlushDone, 0, true);
  }
  if (std::holds_alternative<FreeArena>(effect)) return perform_free();
}

void FleetWorld::perform_start(const StartService& effect) {
  name_nodes();
  SimHost& h = host_of(effect.node);
  h.ask = ++tokens_;
  h.asked = clock();
  h.in_hand = true;
  h.spare = effect.spare;
  const std::int64_t code = h.ask * kHosts + index_of(h);
  // It may take too long for the gang on it.
  const std::int64_t attempt = state_.history.attempt.value;
  if (FleetGang* g = gang(attempt); g != nullptr && state_.fleet[h.id].in_gang) g->lost = true;
  if (h.starts_fail > 0) {
    --h.starts_fail;
    return schedule(rng_.ms(10, 3000), kStartFailed, code, true);
  }
  const Duration takes =
      std::exchange(h.start_slow, false) ? rng_.ms(3000, 25'000) : rng_.ms(10, 400);
  schedule(takes, kStartDone, code, true);
}

void FleetWorld::start_done(std::int64_t code) {
  SimHost& h = host(code % kHosts);
  if (h.ask != code / kHosts) return;
  if (!h.reachable) {
    if (rng_.chance(2)) schedule(rng_.ms(500, 4000), kStartFailed, code, true);
    return;
  }
  end_workers(h, h.spare.value);
  if (!h.service) ++sights_.service_restarts;
  h.service = true;
  h.answer = ServiceAnswered{Step{h.ready},
                             Step{durable_},
                             h.id,
                             {fmt::format("{}/{}", h.name, h.boot), h.numerics, h.training}};
  schedule(rng_.ms(0, rng_.chance(16) ? 8000 : 200), kAnswered, code, true);
}

void FleetWorld::answered(std::int64_t code) {
  SimHost& h = host(code % kHosts);
  if (h.ask != code / kHosts) return;
  h.answer.node = h.id;
  h.answer.here = h.here;
  if (h.boot != h.announced_boot) h.announced = false;
  if (h.boot == h.goes_boot && !h.announced)
    schedule(rng_.ms(0, 500), kNoticeTold, index_of(h), true);
  h.in_hand = false;
  calm_since_ = now_;
  sights_.returns += h.told == SimHost::Told::kLost;
  tell(h, SimHost::Told::kUp, {clock(), h.answer});
  schedule(rng_.ms(0, 500), kWatch, index_of(h), true);
  schedule(rng_.ms(0, 100), kPoll, 0, true);
}

void FleetWorld::perform_launch(const LaunchGang& effect) {
  name_nodes();
  FleetGang g;
  g.attempt = effect.attempt;
  for (const Member& member : effect.members) {
    g.members.push_back({static_cast<int>(index_of(host_of(member.node))), member.workers});
  }
  check_launch(effect);
  stage_told_ = Stage::kLaunching;
  bool failed = launches_fail_ > 0;
  if (failed) --launches_fail_;
  for (const Member& member : g.members) {
    SimHost& h = host(member.node);
    const bool can = h.reachable && h.service;
    failed = failed || !can;
    g.lost = g.lost || !can;
    g.boots.push_back(h.boot);
    // A launch that fails may have reached some.
    if (can && (!failed || rng_.chance(2))) h.workers.push_back(effect.attempt.value);
  }
  const std::int64_t attempt = effect.attempt.value;
  g.launched = !failed;
  g.mpirun = !failed;
  gangs_.push_back(std::move(g));
  if (failed) return schedule(rng_.ms(1, 2000), kLaunchFailed, attempt, true);
  schedule(rng_.ms(1, 50), kLaunched, attempt, true);
  schedule(rng_.ms(50, 300), kGang, attempt);
}

void FleetWorld::perform_end(Attempt attempt) {
  FleetGang* g = gang(attempt.value);
  if (g != nullptr && g->mpirun) {
    g->mpirun = false;
    g->signal = 9;
    g->died = clock();
    if (rng_.chance(2)) schedule(rng_.ms(0, 50), kExited, attempt.value, true);
  }
  schedule(rng_.ms(5, 1500), kEndDone, attempt.value, true);
}

void FleetWorld::finish_done(NodeId node) {
  const SimHost& h = host_of(node);
  const bool can = h.reachable && h.service && h.ready == rules_.max_steps.value;
  if (can && finishes_fail_ == 0) {
    durable_ = h.ready;
    stored_ = true;
    return feed({clock(), JobFinished{}});
  }
  finishes_fail_ -= finishes_fail_ > 0;
  feed({clock(), FinishFailed{fmt::format("disk full {}", rng_.below(1000)), rng_.chance(2)}});
}

void FleetWorld::flush_done() {
  std::int64_t newest = -1;
  std::int64_t wanted = 0;
  for (const NodeId id : flush_nodes_) {
    const SimHost& h = host_of(id);
    if (h.reachable && h.service) newest = std::max(newest, h.ready);
    if (h.powered) wanted = std::max(wanted, h.ready);
  }
  const bool stored = newest >= wanted && flushes_fail_ == 0;
  if (flushes_fail_ > 0) --flushes_fail_;
  store_failed_ = store_failed_ || !stored;
  if (stored) durable_ = std::max(durable_, newest);
  if (state_.doing == Doing::kSaving) ++sights_.saved;
  feed({clock(), ArenaFlushed{stored, "no route"}});
}

void FleetWorld::perform_free() {
  check_free();
  asked_to_store_ = true;
  for (SimHost& h : hosts_) {
    if (!h.reachable || h.id < 0) continue;
    h.ready = -1;
    h.service = false;
    h.workers.clear();
  }
  schedule(rng_.ms(1, 100), kFreed, 0, true);
}

void FleetWorld::perform_stop(const Stop& stop) {
  say("stopped with {}: {}", stop.exit_code, stop.line);
  check_stop(stop);
  alive_ = false;
  dies_after_effects_ = -2;
  if (stop.exit_code == kExitInterrupted && ++restarts_ < 4)
    return schedule(rng_.ms(100, 20'000), kStart);
  over_ = true;
}

}  // namespace surefoot::sim
