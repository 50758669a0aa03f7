#include "launcher/narration.h"

#include <algorithm>
#include <utility>

#include "launcher/format.h"
#include "launcher/report.h"

namespace surefoot {
namespace {

namespace core = supervisor;
constexpr std::size_t kRecent = 20;  // steps that speed and time left are taken from

double step_seconds(const StepRecord& record) {
  const double speed = samples_per_second(record);
  return speed > 0 ? static_cast<double>(record.samples) / static_cast<double>(record.step) / speed
                   : 0;
}

std::string doing_text(const core::State& state) {
  switch (state.doing) {
    case core::Doing::kAssembling:
      return state.fleet.size() == 1 && state.fleet[0].host.here ? "starting the service"
                                                                 : "waiting for machines";
    case core::Doing::kDraining:
      return "draining";
    case core::Doing::kCollecting:
      return "hangs, taking stack traces";
    case core::Doing::kEnding:
      return "ending the attempt";
    case core::Doing::kBackingOff:
      return "waiting before the next attempt";
    case core::Doing::kSaving:
      return "storing the newest step, which other machines do not hold";
    case core::Doing::kFinishing:
      return "storing and exporting";
    case core::Doing::kClosing:
      return "closing";
    case core::Doing::kNothing:
    case core::Doing::kStopped:
      return {};
    case core::Doing::kRunning:
      break;
  }
  switch (state.stage) {
    case core::Stage::kLaunching:
      return "launching";
    case core::Stage::kLoading:
      return "loading";
    case core::Stage::kRestoring:
      return "restoring";
    case core::Stage::kEvaluating:
      return "evaluating";
    case core::Stage::kFinishing:
      return "finishing";
    case core::Stage::kStepping:
      break;
  }
  return {};
}

}  // namespace

// Of a job over several machines.
void Narration::of_machine(const core::Event& event, const core::State& state) {
  const auto named = [&](core::NodeId node) { return "machine " + state.fleet[node].host.name; };
  if (const auto* answered = std::get_if<core::ServiceAnswered>(&event.what)) {
    if (!state.fleet[answered->node].up()) return;
    left_out_.erase(answered->node);
    console_.event(fmt::format("{} is ready", named(answered->node)));
  } else if (const auto* lost = std::get_if<core::ServiceLost>(&event.what)) {
    console_.event(named(lost->node) + ": the checkpoint service is gone: starting one");
  } else if (const auto* failed = std::get_if<core::ServiceStartFailed>(&event.what)) {
    if (std::exchange(left_out_[failed->node], failed->message) != failed->message)
      console_.warning(
          fmt::format("{} is left out for now: {}", named(failed->node), failed->message));
  } else if (const auto* silent = std::get_if<core::NodeLost>(&event.what)) {
    left_out_[silent->node] = state.fleet[silent->node].why;
    console_.warning(fmt::format("{} is lost: {}", named(silent->node), silent->message));
  } else if (const auto* notice = std::get_if<core::NoticeReceived>(&event.what)) {
    const std::string when =
        notice->leaves ? fmt::format(" in {}", duration_text(seconds(*notice->leaves - state.now)))
                       : std::string();
    console_.warning(fmt::format("{} goes{}", named(notice->node), when));
  }
}

// Also for a reason that shows only when others have come.
void Narration::of_left_out(const core::State& state) {
  for (core::NodeId id = 0; id < static_cast<core::NodeId>(state.fleet.size()); ++id) {
    const core::Node& node = state.fleet[id];
    if (node.standing != core::Standing::kOut || node.why.empty()) continue;
    if (std::exchange(left_out_[id], node.why) != node.why)
      console_.warning(fmt::format("machine {} is left out: {}", node.host.name, node.why));
  }
}

// Once all that could come have been looked at.
void Narration::of_shortage(const core::State& state) {
  const bool waits = state.doing == core::Doing::kAssembling && !state.fleet.empty() &&
                     std::all_of(state.fleet.begin(), state.fleet.end(),
                                 [](const core::Node& node) { return node.tried; }) &&
                     core::choose(rules_.fleet, state.fleet, state.reference).empty();
  if (!waits) return shortage_.clear();
  std::string text = core::shortage(rules_.fleet, state.fleet);
  if (text == shortage_) return;
  if (shortage_.empty()) console_.warning("waiting for machines: " + text);
  shortage_ = std::move(text);
}

void Narration::decided(const core::Event& event, std::string_view reason,
                        const core::State& state) {
  if (!rules_.fleet.alone) {
    of_machine(event, state);
    of_left_out(state);
    of_shortage(state);
  }
  if (const auto* answered = std::get_if<core::ServiceAnswered>(&event.what)) {
    const Step newest = std::max(answered->ready, answered->durable);
    if (!opened_ && newest.value > 0) {
      const bool memory = answered->ready >= answered->durable;
      console_.event(fmt::format("going on from step {} ({})", newest,
                                 memory ? "snapshot in memory" : "checkpoint"));
    }
    opened_ = true;
  } else if (rules_.fleet.alone && std::holds_alternative<core::ServiceLost>(event.what)) {
    console_.event("the checkpoint service is gone or does not answer: starting one");
  } else if (const auto* failed = std::get_if<core::ServiceStartFailed>(&event.what);
             failed != nullptr && rules_.fleet.alone) {
    console_.warning("the checkpoint service does not start: " + failed->message);
  } else if (const auto* left = std::get_if<core::GangNotEnded>(&event.what)) {
    console_.warning("the attempt cannot be ended yet: " + left->message);
  } else if (const auto* unfinished = std::get_if<core::FinishFailed>(&event.what)) {
    console_.warning("the last step cannot be stored or exported: " + unfinished->message);
  } else if (const auto* launch = std::get_if<core::LaunchFailed>(&event.what)) {
    console_.warning("the launch failed: " + launch->message);
  } else if (std::holds_alternative<core::Interrupted>(event.what)) {
    console_.warning(fmt::format("interrupted: {}", reason));
  } else if (std::holds_alternative<core::CancelAsked>(event.what)) {
    console_.warning(fmt::format("cancelled: {}", reason));
  }
}

void Narration::effect(const core::Effect& effect) {
  if (const auto* launch = std::get_if<core::LaunchGang>(&effect)) {
    progress_.restarts = std::max<std::int64_t>(launch->attempt.value - 1, 0);
    const auto machines = static_cast<std::int64_t>(launch->members.size());
    console_.event(fmt::format(
        "attempt {}: starting {}{}", launch->attempt,
        count_text(core::workers_of(launch->members), "worker", "workers"),
        rules_.fleet.alone ? "" : " on " + count_text(machines, "machine", "machines")));
  } else if (const auto* end = std::get_if<core::RecordAttemptEnd>(&effect)) {
    const bool well = end->end.outcome == core::Outcome::kDone;
    const std::string text =
        fmt::format("attempt {}: {}", end->end.attempt, attempt_text(end->end));
    well ? console_.event(text) : console_.warning(text);
  } else if (const auto* recovery = std::get_if<core::RecordRecovery>(&effect)) {
    console_.event(
        fmt::format("back at work after {}; {}", recovery_text(recovery->recovery),
                    count_text(recovery->recovery.steps_lost, "step", "steps") + " lost"));
  } else if (std::holds_alternative<core::CollectTraces>(effect)) {
    console_.warning("no step was finished in time: taking stack traces of all workers");
  } else if (std::holds_alternative<core::FinishJob>(effect)) {
    console_.event("all steps are done: storing the last one and exporting the model");
  } else if (std::holds_alternative<core::FlushAndKeepArena>(effect)) {
    console_.event("storing the newest step");
  }
}

void Narration::learn(const std::vector<MetricRecord>& metrics) {
  for (const MetricRecord& metric : metrics) learn(metric);
}

void Narration::learn(const MetricRecord& metric) {
  if (metric.record.kind == StepRecord::kEvaluation) {
    std::string text = fmt::format("step {}: held out loss {}", metric.record.step,
                                   number_text(metric.record.loss));
    if (metric.record.accuracy >= 0)
      text += fmt::format(", accuracy {:.2f} %", 100 * metric.record.accuracy);
    console_.event(text);
    return;
  }
  if (metric.record.step < 1 || metric.record.step < progress_.step.value) return;
  progress_.step = Step{metric.record.step};
  progress_.loss = metric.record.loss;
  recent_.push_back(metric);
  if (recent_.size() > kRecent) recent_.pop_front();
  double spent = 0;
  double samples = 0;
  double share = 0, timed = 0;  // MFU, of the steps of which it is known
  for (const MetricRecord& recent : recent_) {
    const double step = step_seconds(recent.record);
    spent += step;
    samples += step * samples_per_second(recent.record);
    share += step * recent.mfu;
    timed += recent.mfu > 0 ? step : 0;
  }
  progress_.samples_per_second = spent > 0 ? samples / spent : 0;
  progress_.mfu = timed > 0 ? share / timed : 0;
  progress_.seconds_per_step = spent / static_cast<double>(recent_.size());
}

void Narration::answered(const service::StatusReply& status) {
  progress_.snapshot = Step{status.ready_step()};
  if (status.durable_step() > progress_.checkpoint.value && progress_.checkpoint.value >= 0) {
    console_.event(fmt::format("checkpoint of step {} is stored", status.durable_step()));
  }
  progress_.checkpoint = Step{status.durable_step()};
  progress_.checkpoint_age_seconds = status.durable_age_seconds();
  progress_.storing = Step{status.storing_step()};
}

void Narration::show(const core::State& state, Time at) {
  progress_.step = std::max(progress_.step, state.history.finished_step);
  const std::string doing = doing_text(state);
  if (doing != progress_.doing) doing_since_ = at;
  progress_.doing = doing;
  progress_.doing_seconds = seconds(at - doing_since_);
  if (state.doing != core::Doing::kNothing && state.doing != core::Doing::kStopped)
    console_.progress(progress_);
}

}  // namespace surefoot
