#include "tests/replay/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace surefoot::replay {
namespace {

constexpr std::array<double, 3> kNotices = {0, 30, 120};  // seconds

int hosts_for(int alive, int peak, int hosts) {
  if (alive <= 0) return 0;
  const double share = static_cast<double>(hosts) * alive / peak;
  return std::max(1, static_cast<int>(std::floor(share + 0.5)));
}

// The hosts of a replay, of which some are up.
class Hosts {
 public:
  Hosts(int count, const PlanOptions& options, Plan& plan)
      : up_since_(static_cast<std::size_t>(count), -1), random_(options.seed), plan_(plan) {}

  [[nodiscard]] int up() const {
    return static_cast<int>(
        std::count_if(up_since_.begin(), up_since_.end(), [](double since) { return since >= 0; }));
  }
  int bring(double at) {
    const int host = one_of(false);
    up_since_[static_cast<std::size_t>(host)] = at;
    return host;
  }
  void lose(double at) {
    const int host = one_of(true);
    double& since = up_since_[static_cast<std::size_t>(host)];
    const double drawn = kNotices[random_() % kNotices.size()] / plan_.compression;
    const double notice = std::min(drawn, at - since);
    since = -1;
    ++plan_.hosts_lost;
    if (notice > 0) {
      ++plan_.noticed;
      plan_.actions.push_back({at - notice, Action::Kind::kNotice, host, notice});
    }
    plan_.actions.push_back({at, Action::Kind::kLoss, host, notice});
    plan_.interruptions.push_back(at - notice);
  }

 private:
  int one_of(bool up) {
    std::vector<int> choice;
    for (std::size_t i = 0; i < up_since_.size(); ++i) {
      if ((up_since_[i] >= 0) == up) choice.push_back(static_cast<int>(i));
    }
    return choice[random_() % choice.size()];
  }
  std::vector<double> up_since_;  // -1: it is down
  std::mt19937_64 random_;
  Plan& plan_;
};

void describe(const Trace& trace, Plan& plan) {
  int alive = 0;
  for (const Change& change : trace.changes) {
    alive += change.joined - change.lost;
    plan.peak = std::max(plan.peak, alive);
    plan.machines_lost += change.lost;
    plan.bursts += change.lost > 0;
  }
}

}  // namespace

Result<Plan> make_plan(const Trace& trace, const PlanOptions& options) {
  Plan plan;
  plan.seconds = options.seconds;
  describe(trace, plan);
  if (plan.peak == 0) return error(Code::kInvalid, "no machine is ever there in this trace");
  int alive = 0;
  auto change = trace.changes.begin();
  while (alive == 0) alive += change->joined - change->lost, ++change;
  const double begin = std::prev(change)->at;
  plan.compression = std::max((trace.seconds - begin) / options.seconds, 1.0);
  Hosts hosts(options.hosts, options, plan);
  while (hosts.up() < hosts_for(alive, plan.peak, options.hosts))
    plan.at_start.push_back(hosts.bring(0));
  std::sort(plan.at_start.begin(), plan.at_start.end());
  double empty_since = 0;
  for (; change != trace.changes.end(); ++change) {
    const double at = (change->at - begin) / plan.compression;
    alive += change->joined - change->lost;
    const int wanted = hosts_for(alive, plan.peak, options.hosts);
    const int before = hosts.up();
    if (before == 0 && wanted > 0) plan.without_hosts += at - empty_since;
    if (before > 0 && wanted == 0) empty_since = at;
    while (hosts.up() > wanted) hosts.lose(at);
    if (hosts.up() < wanted) plan.interruptions.push_back(at);
    while (hosts.up() < wanted) {
      plan.actions.push_back({at, Action::Kind::kReturn, hosts.bring(at), 0});
      ++plan.hosts_returned;
    }
  }
  if (hosts.up() == 0) plan.without_hosts += options.seconds - empty_since;
  std::stable_sort(plan.actions.begin(), plan.actions.end(),
                   [](const Action& a, const Action& b) { return a.at < b.at; });
  std::sort(plan.interruptions.begin(), plan.interruptions.end());
  plan.interruptions.erase(std::unique(plan.interruptions.begin(), plan.interruptions.end()),
                           plan.interruptions.end());
  return plan;
}

Cost predict(const Plan& plan, const Measured& measured) {
  if (measured.elapsed <= 0) return {};
  const auto count = static_cast<double>(plan.interruptions.size());
  double cut = 0;
  for (std::size_t i = 0; i < plan.interruptions.size(); ++i) {
    const bool last = i + 1 == plan.interruptions.size();
    cut += last ? measured.recovery
                : std::min(measured.recovery, plan.interruptions[i + 1] - plan.interruptions[i]);
  }
  const double fixed = plan.without_hosts + measured.start_and_end;
  const double real = plan.seconds * plan.compression;
  return {(count * measured.recovery + fixed) / measured.elapsed, (cut + fixed) / measured.elapsed,
          (count * measured.recovery + plan.without_hosts * plan.compression) / real};
}

std::string to_text(const Action& action) {
  const std::string host = fmt::format("{:6.2f}  host{} ", action.at, action.host);
  if (action.kind == Action::Kind::kReturn) return host + "comes";
  if (action.kind == Action::Kind::kNotice)
    return host + fmt::format("is told that it goes in {:.2f} s", action.notice);
  return host + (action.notice > 0 ? "goes as announced" : "is gone, without a word");
}

}  // namespace surefoot::replay
