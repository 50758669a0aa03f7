// What machines, the list of machines and verbs say to the driver.
#include <algorithm>
#include <chrono>

#include "common/log.h"
#include "launcher/driver_internal.h"
#include "launcher/fleet_report.h"
#include "launcher/metrics/peak_flops.h"
#include "launcher/requests.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;

constexpr Duration kNoticeChange = 1s;    // arbitrary: deadlines that differ by less are the same
constexpr Duration kSnapshotAge = 100ms;  // arbitrary: however often verbs ask

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

MetricRecord metric_of(const service::Record& record) {
  MetricRecord metric;
  metric.record.kind = record.kind() == 0 ? StepRecord::kTrain : StepRecord::kEvaluation;
  metric.record.attempt = record.attempt();
  metric.record.step = record.step();
  metric.record.samples = record.samples();
  metric.record.loss = record.loss();
  metric.record.learning_rate = record.learning_rate();
  metric.record.gradient_norm = record.gradient_norm();
  metric.record.accuracy = record.accuracy();
  metric.record.checkpoint = record.checkpoint() ? 1 : 0;
  for (int i = 0; i < record.phase_seconds_size() && i < static_cast<int>(kPhaseCount); ++i) {
    metric.record.phase_seconds[i] = record.phase_seconds(i);
  }
  metric.wall_seconds = wall_clock() - record.age_seconds();
  return metric;
}

}  // namespace

void Driver::take_hosts() {
  if (!discovery_) return;
  if (const auto complaint = discovery_->complaint()) narration_.warning(*complaint);
  const auto hosts = discovery_->take();
  if (!hosts) return;
  core::HostsListed listed;
  for (const HostSpec& host : *hosts)
    listed.hosts.push_back({host.name, host.slots, is_this_machine(host.name)});
  post(std::move(listed));
}

bool Driver::is_of_gang(core::NodeId node) const {
  return rules_.fleet.alone || state_.fleet[node].in_gang;
}

// What the services of the gang's machines know of it together; nothing: none has answered yet.
std::optional<service::StatusReply> Driver::gang_status() const {
  std::optional<service::StatusReply> together;
  for (core::NodeId node = 0; node < static_cast<core::NodeId>(state_.fleet.size()); ++node) {
    const service::StatusReply* status = machines_.status(node);
    if (status == nullptr || !is_of_gang(node)) continue;
    if (!together) {
      together = *status;
      together->clear_records();
      continue;
    }
    together->mutable_ranks()->MergeFrom(status->ranks());
    together->mutable_fired_faults()->MergeFrom(status->fired_faults());
    together->set_ready_step(std::max(together->ready_step(), status->ready_step()));
    if (status->durable_step() > together->durable_step()) {
      together->set_durable_step(status->durable_step());
      together->set_durable_age_seconds(status->durable_age_seconds());
    }
  }
  return together;
}

void Driver::answered(core::NodeId node, const service::StatusReply& status, Time at) {
  if (status.has_notice()) take_notice(node, status.notice(), at);
  if (!is_of_gang(node)) return;
  std::vector<MetricRecord> metrics;
  for (const service::Record& record : status.records()) metrics.push_back(metric_of(record));
  take_gpus(node, status);
  take_metrics(node, metrics);
  answers_.mutable_records()->MergeFrom(status.records());
  answered_ = at;
}

// Once for all that have answered since the last look, however many machines there are.
void Driver::observe_answers() {
  if (!answered_) return;
  const Time at = *std::exchange(answered_, std::nullopt);
  const service::StatusReply records = std::exchange(answers_, {});
  auto together = gang_status();
  if (!together) return;
  *together->mutable_records() = records.records();
  busy_.learn(*together, state_.history.attempt);
  for (core::Event& event : observer_.observe(*together, worker_seen(), at))
    events_.push_back(std::move(event));
  narration_.answered(*together);
}

// Each machine of the gang tells of the same steps.
void Driver::take_metrics(core::NodeId node, const std::vector<MetricRecord>& metrics) {
  std::vector<MetricRecord> fresh;
  for (const MetricRecord& metric : metrics) {
    const auto at = std::tuple(metric.record.attempt, metric.record.step, metric.record.kind);
    if (node != metrics_from_ && at <= metrics_newest_) continue;
    fresh.push_back(metric);
    fresh.back().mfu = model_utilization(samples_per_second(metric.record));
    metrics_from_ = node;
    metrics_newest_ = at;
  }
  if (fresh.empty()) return;
  narration_.learn(fresh);
  if (!metrics_) return;
  if (Status written = metrics_->append(fresh); !written)
    narration_.warning("metrics of some steps are lost: " + written.error().message);
}

// Each look of a service once.
void Driver::take_gpus(core::NodeId node, const service::StatusReply& status) {
  if (status.gpus_size() == 0) return;
  const std::pair look{status.pid(), status.gpus(0).sample()};
  if (std::exchange(gpus_seen_[node], look) == look || !metrics_) return;
  std::vector<GpuMetric> metrics;
  for (const service::GpuStatus& gpu : status.gpus()) {
    metrics.push_back({status.host(), status.attempt(), status.ready_step(),
                       wall_clock() - gpu.age_seconds(), gpu});
  }
  if (Status written = metrics_->append_gpus(metrics); !written)
    narration_.warning("metrics of GPUs are lost: " + written.error().message);
}

// 0: what the model takes is not known, or what some device of the gang can do.
double Driver::model_utilization(double samples_per_second) {
  const double flops =
      settings_.flops_per_sample > 0 ? settings_.flops_per_sample : machines_.flops_per_sample();
  if (flops <= 0 || settings_.job.resources().device() != config::Resources::cuda) return 0;
  std::vector<service::GpuStatus> devices;
  for (core::NodeId node = 0; node < static_cast<core::NodeId>(state_.fleet.size()); ++node) {
    if (!is_of_gang(node)) continue;
    const service::StatusReply* status = machines_.status(node);
    if (status == nullptr || status->gpus_size() == 0) {
      devices.clear();
      break;
    }
    devices.insert(devices.end(), status->gpus().begin(), status->gpus().end());
  }
  // Of the last steps one may hear when the gang is gone, and nobody looks at its GPUs any more.
  if (!devices.empty()) peak_ = peak_flops(devices, settings_.job.train().precision());
  return peak_ ? samples_per_second * flops / *peak_ : 0;
}

void Driver::take_notice(core::NodeId node, const service::NoticeStatus& notice, Time at) {
  const Time leaves = at + from_seconds(std::clamp(notice.seconds_left(), -1e6, 1e6));
  const auto told = notices_.find(node);
  if (told != notices_.end() && std::chrono::abs(told->second - leaves) < kNoticeChange) return;
  notices_[node] = leaves;
  post(core::NoticeReceived{leaves, node});
}

// ---- What verbs ask for ----

void Driver::open_control() {
  auto opened =
      ControlServer::open(settings_.directory.root, machines_.inbox(),
                          [this](const nlohmann::json& request) { return answer(request); });
  if (opened) control_ = std::move(*opened);
  if (!control_)
    narration_.warning("`surefoot nodes` and `drain` will not reach this: " +
                       opened.error().message);
}

// An item of the inbox: between decisions.
Result<nlohmann::json> Driver::answer(const nlohmann::json& request) {
  const auto ask = request.find("ask");
  if (ask != request.end() && *ask == "status") return snapshot();
  if (ask != request.end() && *ask == "drain") {
    SUREFOOT_ASSIGN(const auto notice,
                    notice_asked_for(request, rules_, state_.fleet, host_name(), now()));
    post(notice);
    return nlohmann::json{{"node", request["node"]}, {"what", decide_now()}};
  }
  if (ask != request.end() && *ask == "cancel") {
    post(core::CancelAsked{});
    return nlohmann::json{{"what", decide_now()}, {"pid", ::getpid()}};
  }
  return error(Code::kInvalid, "status, drain and cancel can be asked for");
}

const nlohmann::json& Driver::snapshot() {
  if (snapshot_.is_null() || now() - snapshot_at_ >= kSnapshotAge) {
    snapshot_at_ = now();
    snapshot_ = to_json(fleet_report({rules_, state_, members_,
                                      [this](core::NodeId node) { return machines_.status(node); },
                                      busy_, host_name(), snapshot_at_}));
  }
  return snapshot_;
}

// What came of the event that was posted last.
std::string_view Driver::decide_now() {
  snapshot_ = nullptr;
  if (const Status decided = decide_all(); !decided && journal_status_) journal_status_ = decided;
  return last_reason_;
}

}  // namespace surefoot
