// What goes wrong, when its moment has come.
#include "launcher/sim/fleet_world.h"

namespace surefoot::sim {

void FleetWorld::inject(FleetFault fault) {
  say("    fault: {}", name(fault));
  calm_since_ = now_;
  if (fault <= FleetFault::kNoticeForAll) return inject_into_machines(fault);
  if (fault <= FleetFault::kRelisted) return inject_into_service(fault);
  if (fault <= FleetFault::kHang) return inject_into_gang(fault);
  inject_into_job(fault);
}

void FleetWorld::inject_into_machines(FleetFault fault) {
  SimHost* h = some_member();
  const Duration lasts = rng_.chance(2) ? rng_.ms(500, 6000) : rng_.ms(5000, 40'000);
  switch (fault) {
    case FleetFault::kPowerOff:
      return power_off(*h);
    case FleetFault::kReboot:
      power_off(*h);
      return schedule(rng_.ms(200, 8000), kBackPeers, index_of(*h));
    case FleetFault::kBurst:
      return burst();
    case FleetFault::kOneByOne:
      for (std::int64_t i = 1 + rng_.below(3); i > 0; --i) {
        schedule(rng_.ms(0, 9000), kGone, index_of(*some_host()));
      }
      return power_off(*h);
    case FleetFault::kCut:
      return cut(*h, true, lasts);
    case FleetFault::kUnseen:
      return cut(*h, false, lasts);
    case FleetFault::kFreeze:
      h->frozen = h->powered;
      touch(*h);
      return schedule(lasts, kThaw, index_of(*h));
    case FleetFault::kIsolated:
      isolated_ = true;
      touch_all();
      return schedule(lasts, kReach);
    case FleetFault::kNotice:
      return notice(*h, true, true);
    case FleetFault::kNoticeNoTime:
      return notice(*h, true, false);
    case FleetFault::kFalseNotice:
      return notice(*h, false, rng_.chance(2));
    default:
      for (SimHost& each : hosts_) notice(each, true, true);
      return;
  }
}

// Machines of one rack, one price, one zone.
void FleetWorld::burst() {
  const auto count = static_cast<std::int64_t>(hosts_.size());
  const bool cuts = rng_.chance(2);
  const Duration lasts = rng_.ms(1000, 30'000);
  const std::int64_t first = rng_.below(count);
  for (std::int64_t i = 0; i < 1 + count / 3; ++i) {
    SimHost& h = host((first + i) % count);
    cuts ? cut(h, true, lasts) : power_off(h);
  }
}

void FleetWorld::notice(SimHost& host, bool goes, bool names_time) {
  if (!host.powered) return;
  ++sights_.notices;
  const Duration left = rng_.ms(1000, 60'000);
  const Duration off = rng_.chance(3) ? rng_.ms(-1000, 20'000) : Duration::zero();
  host.goes_boot = host.boot;
  host.leaves = names_time ? clock() + left : Time::max();
  if (alive_) schedule(rng_.ms(0, 500), kNoticeTold, index_of(host), true);
  if (goes) schedule(left + off, kGone, index_of(host));
}

void FleetWorld::inject_into_service(FleetFault fault) {
  SimHost* h = some_member();
  switch (fault) {
    case FleetFault::kStartsFail:
      h->starts_fail = static_cast<int>(1 + rng_.below(5));
      h->service = false;
      break;
    case FleetFault::kStartSlow:
      h->start_slow = true;
      h->service = false;
      break;
    case FleetFault::kServiceKilled:
      h->service = false;
      break;
    case FleetFault::kOtherNumerics:
    case FleetFault::kOtherData:
      power_off(*h);
      (fault == FleetFault::kOtherData ? h->training : h->numerics) = "other";
      return schedule(rng_.ms(1000, 8000), kBackPeers, index_of(*h));
    case FleetFault::kListed:
      add_host();
      h = nullptr;
      break;
    case FleetFault::kUnlisted:
      h->listed = false;
      h = nullptr;
      break;
    default:
      for (SimHost& each : hosts_) each.listed = true;
      h = nullptr;
      break;
  }
  if (!alive_) return;
  if (h == nullptr) return schedule(rng_.ms(0, 3000), kList, 0, true);
  schedule(rng_.ms(0, 300), kWatch, index_of(*h), true);
}

void FleetWorld::inject_into_gang(FleetFault fault) {
  if (fault == FleetFault::kRefuse) {
    refuse_code_ = static_cast<int>(64 + rng_.below(3));
    return;
  }
  FleetGang* g = newest_gang();
  if (g == nullptr || !all_there(*g)) return;
  const auto culprit = static_cast<int>(index_of(*some_member()));
  switch (fault) {
    case FleetFault::kCrashAgain:
      host(culprit).crashes = true;
      [[fallthrough]];
    case FleetFault::kCrash:
      return leave(*g, -1, 9, fmt::format("killed {}", rng_.below(1000)), culprit);
    case FleetFault::kExitCode:
      return leave(*g, rng_.chance(2) ? 1 : 76, 0, fmt::format("left {}", rng_.below(1000)),
                   culprit);
    case FleetFault::kLeaveUnasked:
      if (g->stage != supervisor::Stage::kStepping)
        return leave(*g, supervisor::kExitInterrupted, 0, "", -1);
      g->drain = true;
      return;
    case FleetFault::kMpirunKilled:
      if (!g->mpirun) return;
      g->mpirun = false;
      g->crashed = true;
      g->signal = 9;
      g->died = clock();
      g->reason = fmt::format("mpirun killed {}", rng_.below(1000));
      if (alive_) schedule(rng_.ms(0, 100), kExited, g->attempt.value, true);
      return;
    default:
      g->hung = true;
      return;
  }
}

void FleetWorld::inject_into_job(FleetFault fault) {
  switch (fault) {
    case FleetFault::kLaunchFails:
      ++launches_fail_;
      return;
    case FleetFault::kTracesHang:
      ++traces_hang_;
      return;
    case FleetFault::kFinishFails:
      ++finishes_fail_;
      return;
    case FleetFault::kFlushFails:
      ++flushes_fail_;
      return;
    case FleetFault::kSupervisorKilled:
      dies_after_effects_ = static_cast<int>(rng_.below(4)) - 1;
      return;
    case FleetFault::kClockJump:
      ahead_ += rng_.chance(4) ? Duration(std::chrono::hours(2)) : rng_.ms(100, 60'000);
      for (FleetGang& g : gangs_) g.jumped = true;
      store_failed_ = store_failed_ || state_.doing == supervisor::Doing::kSaving;
      timer_at_ = Time::max();
      return watch_the_clock();
    case FleetFault::kStaleEvents:
      return tell_stale();
    case FleetFault::kInterrupt:
      if (alive_) schedule(Duration::zero(), kInterrupt, 0, true);
      if (alive_ && rng_.chance(2)) schedule(rng_.ms(0, 500), kInterrupt, 0, true);
      return;
    case FleetFault::kCancel:
      if (!alive_) return;
      user_stops_ = cancel_asked_ = true;
      return feed({clock(), supervisor::CancelAsked{}});
    default:
      return;
  }
}

}  // namespace surefoot::sim
