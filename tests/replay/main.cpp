// surefoot-replay: a job over a test cluster whose hosts come and go as a recorded spot fleet did.
//
//   surefoot-replay --trace p3-trace.csv --hosts 4 --seconds 60 --seed 1
//   surefoot-replay --trace p3-trace.csv --from-hour 5.5 --hours 1       a part of it, less hurried
//
// Prints what the trace holds and what of it is replayed (plan.h), each thing done to a host, where
// the job's time went beside a prediction, and whether the weights are those of one worker that ran
// alone and undisturbed. Exit code 0: they are. 1: they are not, or a job failed. 64: no such
// trace. 77: this machine cannot make hosts. Which traces can be read: trace.h.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "tests/replay/runner.h"

namespace surefoot::replay {
namespace {

using nlohmann::json;

constexpr double kHour = 3600;
// Google takes such a machine after a day at the latest; that is to be in it.
constexpr double kFleetOfLifetimes = 48 * kHour;
constexpr double kReplacement = 60;     // arbitrary: a record of lifetimes does not tell
constexpr int kStepsToLearnSpeed = 30;  // arbitrary: some seconds
constexpr int kUnavailable = 77;
constexpr int kUsersError = 64;

struct Options {
  std::string trace;
  std::string unit;
  double from_hours = 0;
  double hours = 0;  // 0: to the end
  int steps = 0;     // 0: about as many as undisturbed steps fit into `seconds`
  std::string jobs;
  bool plan_only = false;
  PlanOptions plan;
};

int fail(const std::string& why, int code) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", why.c_str());
  return code;
}

void say(const char* label, const std::string& text) {
  std::printf("%-11s %s\n", label, text.c_str());
  std::fflush(stdout);
}

Result<Plan> plan_of(const Options& options) {
  SUREFOOT_ASSIGN(const std::string text, read_file(options.trace));
  static const std::map<std::string, double> units = {{"ms", 1e-3}, {"s", 1}, {"h", kHour}};
  const auto unit = units.find(options.unit);
  SUREFOOT_ASSIGN(
      Trace trace,
      parse_trace(text, unit == units.end() ? std::nullopt : std::optional(unit->second)));
  std::string form = trace.form;
  if (!trace.lifetimes.empty()) {
    const auto lost = std::count_if(trace.lifetimes.begin(), trace.lifetimes.end(),
                                    [](const Lifetime& lifetime) { return lifetime.lost; });
    form += fmt::format(
        " ({} machines, {} of them taken away; from these a fleet of {} over two days is drawn, "
        "each "
        "replaced after {} s)",
        trace.lifetimes.size(), lost, options.plan.hosts, kReplacement);
    trace = fleet_of_lifetimes(trace, options.plan.hosts, kFleetOfLifetimes, kReplacement,
                               options.plan.seed);
  }
  const double length = options.hours > 0 ? options.hours * kHour : trace.seconds;
  if (options.hours > 0 || options.from_hours > 0)
    trace = part_of(trace, options.from_hours * kHour, length);
  SUREFOOT_ASSIGN(Plan plan, make_plan(trace, options.plan));
  say("trace", fmt::format("{}: {}, {:.2f} h, at most {} machines, {} lost at {} moments",
                           std::filesystem::path(options.trace).filename().string(), form,
                           trace.seconds / kHour, plan.peak, plan.machines_lost, plan.bursts));
  say("replayed",
      fmt::format("on {} hosts in {:.0f} s, {:.0f} times as fast: {} at the start, {} "
                  "lost, {} returned, {:.1f} s without any",
                  options.plan.hosts, plan.seconds, plan.compression, plan.at_start.size(),
                  plan.hosts_lost, plan.hosts_returned, plan.without_hosts));
  say("notices",
      fmt::format("the trace has none: drawn by seed {} from 0, 30 and 120 s, here 0, {:.2f} and "
                  "{:.2f} s; {} of {} losses have one",
                  options.plan.seed, 30 / plan.compression, 120 / plan.compression, plan.noticed,
                  plan.hosts_lost));
  return plan;
}

Result<int> steps_for(const Options& options, Runner& runner) {
  if (options.steps > 0) return options.steps;
  SUREFOOT_ASSIGN(const json report, runner.run_alone(kStepsToLearnSpeed, "speed"));
  const double per_second = report.value("samples_per_second", 0.0) / kGlobalBatch;
  return std::max(static_cast<int>(per_second * options.plan.seconds), kStepsToLearnSpeed);
}

Measured measured_in(const Outcome& outcome) {
  Measured measured;
  measured.elapsed = outcome.report.value("seconds", 0.0);
  measured.start_and_end = outcome.to_first_step + outcome.report["badput"].value("finish", 0.0);
  const json& recoveries = outcome.report["recoveries"];
  for (const json& recovery : recoveries) measured.recovery += recovery.value("seconds", 0.0);
  if (!recoveries.empty()) measured.recovery /= static_cast<double>(recoveries.size());
  return measured;
}

void print_time(const Plan& plan, const Outcome& outcome) {
  const json& report = outcome.report;
  const Measured measured = measured_in(outcome);
  say("job", fmt::format("{} steps in {} attempts; {} preemptions, {} failures, {} steps lost",
                         report.value("steps", 0), report.value("attempts", 0),
                         report.value("preemptions", 0), report.value("failures", 0),
                         report.value("steps_lost", 0)));
  if (outcome.played < plan.actions.size())
    say("", fmt::format("it was done before the last {} of {} events: give it more --steps",
                        plan.actions.size() - outcome.played, plan.actions.size()));
  say("events", fmt::format("done to hosts {:.2f} s late at most", outcome.latest));
  say("goodput", fmt::format("{:.1f} % of {:.1f} s in steps that were kept",
                             100 * report.value("goodput", 0.0), measured.elapsed));
  std::vector<std::pair<double, std::string>> causes;
  for (const auto& [cause, spent] : report["badput"].items()) {
    if (spent.get<double>() >= 0.05) causes.emplace_back(spent.get<double>(), cause);
  }
  std::sort(causes.rbegin(), causes.rend());
  for (std::size_t i = 0; i < causes.size(); ++i)
    say(i == 0 ? "badput" : "",
        fmt::format("{:5.1f} %  {:6.2f} s  {}", 100 * causes[i].first / measured.elapsed,
                    causes[i].first, causes[i].second));
  const Cost cost = predict(plan, measured);
  say("predicted",
      fmt::format("{:.1f} % badput, measured {:.1f} %: {} interruptions of {:.2f} s (mean of {}), "
                  "cut short by one another, {:.1f} s without hosts, {:.1f} s start and end",
                  100 * cost.overlapping, 100 * (1 - report.value("goodput", 0.0)),
                  plan.interruptions.size(), measured.recovery, report["recoveries"].size(),
                  plan.without_hosts, measured.start_and_end));
  say("", fmt::format("{:.1f} % to first order, as if none were cut short; {:.2f} % at the trace's "
                      "own speed",
                      100 * cost.first_order, 100 * cost.uncompressed));
}

Result<bool> replay(const Options& options, const Plan& plan) {
  SUREFOOT_ASSIGN(const std::unique_ptr<Runner> runner,
                  Runner::start(options.plan.hosts, options.jobs));
  SUREFOOT_ASSIGN(const int steps, steps_for(options, *runner));
  SUREFOOT_ASSIGN(const json alone, runner->run_alone(steps, "alone"));
  say("alone", fmt::format("one worker: {} steps in {:.1f} s", steps, alone.value("seconds", 0.0)));
  SUREFOOT_ASSIGN(const Outcome outcome, runner->run_through(plan, steps));
  print_time(plan, outcome);
  const bool same =
      outcome.report.value("weights_sha256", "replayed") ==
          alone.value("weights_sha256", "alone") &&
      outcome.report.value("state_sha256", "replayed") == alone.value("state_sha256", "alone");
  say("weights", outcome.report.value("weights_sha256", "") +
                     (same ? ", as of one worker alone" : ", OTHERS than of one worker alone"));
  return same;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Replays a recorded spot fleet on a test cluster");
  app.add_option("--trace", options.trace, "file with the fleet's history")->required();
  app.add_option("--hosts", options.plan.hosts)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--seconds", options.plan.seconds, "length of the replay")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str();
  app.add_option("--seed", options.plan.seed)->capture_default_str();
  app.add_option("--from-hour", options.from_hours, "of the trace")->check(CLI::NonNegativeNumber);
  app.add_option("--hours", options.hours, "of the trace; not given: to its end")
      ->check(CLI::PositiveNumber);
  app.add_option("--unit", options.unit, "of the times in a trace of counts: ms, s or h")
      ->check(CLI::IsMember({"ms", "s", "h"}));
  app.add_option("--steps", options.steps, "of the job; not given: as many as fit, undisturbed")
      ->check(CLI::PositiveNumber);
  app.add_option("--jobs", options.jobs, "new folder in which the jobs' directories stay");
  app.add_flag("--plan", options.plan_only, "only print what would be done to the hosts");
  CLI11_PARSE(app, argc, argv);
  const auto plan = plan_of(options);
  if (!plan) return fail(options.trace + ": " + plan.error().message, kUsersError);
  if (options.plan_only) {
    for (const Action& action : plan->actions) std::printf("  %s\n", to_text(action).c_str());
    return 0;
  }
  if (const std::string why = cluster::cluster_unavailable(); !why.empty())
    return fail("skipped: " + why, kUnavailable);
  const auto same = replay(options, *plan);
  if (!same) return fail(same.error().message, 1);
  return *same ? 0 : 1;
}

}  // namespace
}  // namespace surefoot::replay

int main(int argc, char** argv) {
  return surefoot::replay::run(argc, argv);
}
