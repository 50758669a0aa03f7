#include "launcher/metrics/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "launcher/nvidia/gpu_facts.h"

namespace surefoot {
namespace {

using nlohmann::json;

// 17 significant digits give every double back.
std::string number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  const std::string text = fmt::format("{:.17g}", value);
  // Readers take digits alone for an integer, which has no -0.
  return text == "-0" ? "-0.0" : text;
}

double read_number(const json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.get<std::string>();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

// Of a step's own work: start-up, restore and evaluation belong to no step.
constexpr Phase kStepPhases[] = {Phase::kData, Phase::kForwardBackward, Phase::kReduction,
                                 Phase::kUpdate, Phase::kSnapshot};

double phase_seconds(const StepRecord& record, Phase phase) {
  return record.phase_seconds[static_cast<std::size_t>(phase)];
}

std::string framed(const tensorboard::Event& event) {
  return frame_record(event.SerializeAsString());
}

void add(tensorboard::Event& event, const std::string& tag, double value) {
  auto* entry = event.mutable_summary()->add_value();
  entry->set_tag(tag);
  entry->set_simple_value(static_cast<float>(value));
}

std::string event_of(const MetricRecord& metric) {
  const StepRecord& record = metric.record;
  tensorboard::Event event;
  event.set_wall_time(metric.wall_seconds);
  event.set_step(record.step);
  if (record.kind == StepRecord::kEvaluation) {
    add(event, "eval/loss", record.loss);
    if (record.accuracy >= 0) add(event, "eval/accuracy", record.accuracy);
    return framed(event);
  }
  add(event, "train/loss", record.loss);
  add(event, "train/lr", record.learning_rate);
  add(event, "train/grad_norm", record.gradient_norm);
  add(event, "train/samples_per_second", samples_per_second(record));
  if (metric.mfu > 0) add(event, "train/mfu", metric.mfu);
  for (const Phase phase : kStepPhases)
    add(event, fmt::format("seconds/{}", name(phase)), phase_seconds(record, phase));
  return framed(event);
}

std::string event_of(const GpuMetric& metric) {
  const service::GpuStatus& gpu = metric.gpu;
  tensorboard::Event event;
  event.set_wall_time(metric.wall_seconds);
  event.set_step(metric.step);
  const std::string tag = fmt::format("gpu/{}/{}/", metric.node, gpu.device());
  add(event, tag + "memory_used_bytes", static_cast<double>(gpu.memory_used_bytes()));
  if (gpu.has_busy()) add(event, tag + "busy", gpu.busy());
  if (gpu.has_celsius()) add(event, tag + "celsius", gpu.celsius());
  if (gpu.has_watts()) add(event, tag + "watts", gpu.watts());
  if (gpu.has_clock_mhz()) add(event, tag + "clock_mhz", gpu.clock_mhz());
  return framed(event);
}

std::string start_event(const MetricRecord& metric) {
  tensorboard::Event event;
  event.set_wall_time(metric.wall_seconds);
  event.set_step(metric.record.step);
  event.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  return framed(event);
}

Result<MetricRecord> parse(std::string_view line) {
  const json object = json::parse(line, nullptr, false);
  if (!object.is_object())
    return error(Code::kInvalid, "not a JSON object: {}", line.substr(0, 80));
  MetricRecord metric;
  StepRecord& record = metric.record;
  const std::string kind = object.at("kind").get<std::string>();
  if (kind != "train" && kind != "eval")
    return error(Code::kInvalid, "unknown kind of metric: {}", kind);
  record.kind = kind == "eval" ? StepRecord::kEvaluation : StepRecord::kTrain;
  record.attempt = object.at("attempt").get<std::int64_t>();
  record.step = object.at("step").get<std::int64_t>();
  record.samples = object.at("samples").get<std::int64_t>();
  record.loss = read_number(object.at("loss"));
  metric.wall_seconds = read_number(object.at("time"));
  if (object.contains("accuracy")) record.accuracy = read_number(object["accuracy"]);
  if (record.kind == StepRecord::kEvaluation) return metric;
  if (object.contains("mfu")) metric.mfu = read_number(object["mfu"]);
  record.learning_rate = read_number(object.at("lr"));
  record.gradient_norm = read_number(object.at("grad_norm"));
  record.checkpoint = object.at("checkpoint").get<bool>() ? 1 : 0;
  for (const auto& [phase, spent] : object.at("phases").items()) {
    if (const auto known = phase_named(phase))
      record.phase_seconds[static_cast<std::size_t>(*known)] = read_number(spent);
  }
  return metric;
}

Status write_all(int fd, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      return error(errno == ENOSPC || errno == EDQUOT ? Code::kNoSpace : Code::kRetry,
                   "cannot write {}: {}", path.string(), errno_text(errno));
    }
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return {};
}

// The last `bytes` of a file, and where they start.
std::string tail_of(int fd, off_t size, off_t bytes) {
  const off_t start = std::max<off_t>(0, size - bytes);
  std::string tail(static_cast<std::size_t>(size - start), '\0');
  const ssize_t got = ::pread(fd, tail.data(), tail.size(), start);
  tail.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return tail;
}

}  // namespace

double samples_per_second(const StepRecord& record) {
  double spent = 0;
  for (const Phase phase : kStepPhases) spent += phase_seconds(record, phase);
  if (spent <= 0 || record.step <= 0) return 0;
  return static_cast<double>(record.samples) / static_cast<double>(record.step) / spent;
}

std::string to_json_line(const MetricRecord& metric) {
  const StepRecord& record = metric.record;
  const bool evaluation = record.kind == StepRecord::kEvaluation;
  std::string line = fmt::format(R"({{"kind":"{}","attempt":{},"step":{},"samples":{},"loss":{})",
                                 evaluation ? "eval" : "train", record.attempt, record.step,
                                 record.samples, number(record.loss));
  if (record.accuracy >= 0) line += fmt::format(R"(,"accuracy":{})", number(record.accuracy));
  if (!evaluation) {
    line += fmt::format(R"(,"lr":{},"grad_norm":{},"samples_per_second":{:.6g})",
                        number(record.learning_rate), number(record.gradient_norm),
                        samples_per_second(record));
    if (metric.mfu > 0) line += fmt::format(R"(,"mfu":{:.4g})", metric.mfu);
    line += R"(,"phases":{)";
    for (const Phase phase : kStepPhases) {
      line += fmt::format(R"({}"{}":{:.6g})", phase == kStepPhases[0] ? "" : ",", name(phase),
                          phase_seconds(record, phase));
    }
    line += fmt::format(R"(}},"checkpoint":{})", record.checkpoint != 0);
  }
  return line + fmt::format(R"(,"time":{:.3f}}})", metric.wall_seconds);
}

std::vector<std::string> slowed_by(std::uint64_t clock_reasons) {
  const std::pair<ClockReason, const char*> names[] = {{kApplicationClocks, "application_clocks"},
                                                       {kSoftwarePowerCap, "power_limit"},
                                                       {kSoftwareThermal, "too_hot"},
                                                       {kHardwareThermal, "too_hot_hardware"},
                                                       {kHardwareSlowdown, "hardware_slowdown"},
                                                       {kPowerBrake, "power_brake"}};
  std::vector<std::string> out;
  for (const auto& [bit, name] : names) {
    if ((clock_reasons & bit) != 0) out.emplace_back(name);
  }
  return out;
}

std::string to_json_line(const GpuMetric& metric) {
  const service::GpuStatus& gpu = metric.gpu;
  nlohmann::ordered_json line = {{"kind", "gpu"},
                                 {"attempt", metric.attempt},
                                 {"step", metric.step},
                                 {"node", metric.node},
                                 {"device", gpu.device()}};
  if (!gpu.fault().empty()) {
    line["fault"] = gpu.fault();
  } else {
    line["uuid"] = gpu.uuid();
    line["name"] = gpu.name();
    if (gpu.has_busy()) line["busy"] = gpu.busy();
    line["memory_used_bytes"] = gpu.memory_used_bytes();
    line["memory_bytes"] = gpu.memory_bytes();
    if (gpu.has_celsius()) line["celsius"] = gpu.celsius();
    if (gpu.has_watts()) line["watts"] = gpu.watts();
    if (gpu.has_clock_mhz()) line["clock_mhz"] = gpu.clock_mhz();
    if (gpu.has_clock_reasons()) line["slowed_by"] = slowed_by(gpu.clock_reasons());
  }
  line["time"] = std::round(metric.wall_seconds * 1000) / 1000;
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<MetricRecord> parse_metric_line(std::string_view line) {
  try {
    return parse(line);
  } catch (const json::exception& failed) {
    return error(Code::kInvalid, "not a line of metrics: {}", failed.what());
  }
}

std::vector<MetricRecord> latest_metrics(std::string_view jsonl) {
  std::map<std::pair<std::int64_t, std::int64_t>, MetricRecord> latest;
  for (std::size_t end; (end = jsonl.find('\n')) != std::string_view::npos;
       jsonl.remove_prefix(end + 1)) {
    auto metric = parse_metric_line(jsonl.substr(0, end));
    if (!metric) continue;
    const auto [at, added] =
        latest.try_emplace({metric->record.step, metric->record.kind}, *metric);
    if (!added && metric->record.attempt >= at->second.record.attempt) at->second = *metric;
  }
  std::vector<MetricRecord> metrics;
  metrics.reserve(latest.size());
  for (auto& [key, metric] : latest) metrics.push_back(metric);
  return metrics;
}

std::vector<MetricRecord> read_metrics(const std::filesystem::path& folder) {
  constexpr off_t kEnd = 256 * 1024;
  const Fd fd(::open((folder / "metrics.jsonl").c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return {};
  if (info.st_size <= 2 * kEnd)
    return latest_metrics(tail_of(fd.get(), info.st_size, info.st_size));
  std::string text(static_cast<std::size_t>(kEnd), '\0');
  text.resize(static_cast<std::size_t>(
      std::max<ssize_t>(::pread(fd.get(), text.data(), text.size(), 0), 0)));
  // The two lines that are cut are no lines of the format any more, once they do not join.
  text += "\n" + tail_of(fd.get(), info.st_size, kEnd);
  return latest_metrics(text);
}

Result<std::unique_ptr<MetricsWriter>> MetricsWriter::open(const std::filesystem::path& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return error(Code::kRetry, "cannot make {}: {}", folder.string(), failed.message());
  auto writer = std::make_unique<MetricsWriter>();
  writer->folder_ = folder;
  const std::filesystem::path path = folder / "metrics.jsonl";
  writer->lines_ = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!writer->lines_)
    return error(Code::kRetry, "cannot open {}: {}", path.string(), errno_text(errno));
  struct stat info {};
  if (::fstat(writer->lines_.get(), &info) != 0)
    return error(Code::kRetry, "cannot look at {}: {}", path.string(), errno_text(errno));

  // A line is well under 1 KiB, so a whole one stands in the last 64.
  std::string tail = tail_of(writer->lines_.get(), info.st_size, 64 * 1024);
  const std::size_t end = tail.rfind('\n');
  const std::size_t cut = end == std::string::npos ? tail.size() : tail.size() - end - 1;
  if (cut > 0 && ::ftruncate(writer->lines_.get(), info.st_size - static_cast<off_t>(cut)) != 0) {
    return error(Code::kRetry, "cannot shorten {}: {}", path.string(), errno_text(errno));
  }
  if (end == std::string::npos) return writer;
  const std::size_t before = end == 0 ? std::string::npos : tail.rfind('\n', end - 1);
  const std::size_t start = before == std::string::npos ? 0 : before + 1;
  if (auto last = parse_metric_line(std::string_view(tail).substr(start, end - start)))
    writer->last_ = position(last->record);
  return writer;
}

Status MetricsWriter::append(const std::vector<MetricRecord>& metrics) {
  std::string lines;
  std::string events;
  Position last = last_;
  for (const MetricRecord& metric : metrics) {
    const Position at = position(metric.record);
    if (at <= last || metric.record.step < 1) continue;  // the initial weights have no loss
    if (metric.record.attempt != std::get<0>(last)) events += start_event(metric);
    lines += to_json_line(metric) + '\n';
    events += event_of(metric);
    last = at;
  }
  if (lines.empty()) return {};
  const off_t before = ::lseek(lines_.get(), 0, SEEK_END);
  if (Status written = write_all(lines_.get(), lines, folder_ / "metrics.jsonl"); !written) {
    // Half a line must not stand before the next one. Where even this fails, readers skip the line
    // that is glued together.
    [[maybe_unused]] const int ignored = ::ftruncate(lines_.get(), before);
    return written;
  }
  last_ = last;
  return append_events(events, metrics.front().wall_seconds);
}

Status MetricsWriter::append_gpus(const std::vector<GpuMetric>& metrics) {
  if (metrics.empty()) return {};
  const std::filesystem::path path = folder_ / "gpus.jsonl";
  std::string lines;
  std::string events;
  if (!gpu_lines_) {
    gpu_lines_ = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!gpu_lines_)
      return error(Code::kRetry, "cannot open {}: {}", path.string(), errno_text(errno));
    // A crash may have cut the last line short; readers skip it.
    const off_t size = ::lseek(gpu_lines_.get(), 0, SEEK_END);
    if (size > 0 && tail_of(gpu_lines_.get(), size, 1) != "\n") lines = "\n";
  }
  for (const GpuMetric& metric : metrics) {
    lines += to_json_line(metric) + '\n';
    if (metric.gpu.fault().empty()) events += event_of(metric);
  }
  SUREFOOT_TRY(write_all(gpu_lines_.get(), lines, path));
  return append_events(events, metrics.front().wall_seconds);
}

Status MetricsWriter::append_events(const std::string& framed, double wall_seconds) {
  if (framed.empty()) return {};
  if (!events_) {
    SUREFOOT_ASSIGN(EventFile file, EventFile::create(folder_, wall_seconds));
    events_ = std::move(file);
  }
  return events_->append(framed);
}

}  // namespace surefoot
