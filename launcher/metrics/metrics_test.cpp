#include "launcher/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "launcher/metrics/peak_flops.h"

namespace surefoot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Metrics : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/surefoot-metrics-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string lines() { return *read_file(folder_ / "metrics.jsonl"); }
  void write_more(const std::string& text) {
    std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << text;
  }
  std::vector<std::filesystem::path> event_files() {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().filename().string().find("tfevents") != std::string::npos)
        files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  std::filesystem::path folder_;
};

MetricRecord train(std::int64_t attempt, std::int64_t step, double loss) {
  MetricRecord metric;
  metric.record.attempt = attempt;
  metric.record.step = step;
  metric.record.samples = 32 * step;
  metric.record.loss = loss;
  metric.record.learning_rate = 1.0 / 3.0;
  metric.record.gradient_norm = std::sqrt(2.0);
  metric.record.phase_seconds[static_cast<std::size_t>(Phase::kForwardBackward)] = 0.25;
  metric.record.phase_seconds[static_cast<std::size_t>(Phase::kEvaluation)] = 5;
  metric.wall_seconds = 1.7e9 + static_cast<double>(step);
  return metric;
}

MetricRecord evaluation(std::int64_t attempt, std::int64_t step, double loss, double accuracy) {
  MetricRecord metric = train(attempt, step, loss);
  metric.record.kind = StepRecord::kEvaluation;
  metric.record.accuracy = accuracy;
  return metric;
}

std::vector<std::string> keys(const std::vector<MetricRecord>& metrics) {
  std::vector<std::string> texts;
  for (const auto& metric : metrics) {
    texts.push_back(fmt::format("{}/{}{}", metric.record.attempt, metric.record.step,
                                metric.record.kind == StepRecord::kEvaluation ? "e" : ""));
  }
  return texts;
}

// The framing once more, written from its description: one bit at a time, no table.
std::uint32_t slow_crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const std::uint32_t mix = (crc ^ (static_cast<std::uint8_t>(byte) >> bit)) & 1u;
      crc = (crc >> 1) ^ (mix != 0 ? 0x82f63b78u : 0u);
    }
  }
  return ~crc;
}

std::vector<tensorboard::Event> read_events(const std::filesystem::path& path) {
  const std::string bytes = *read_file(path);
  std::vector<tensorboard::Event> events;
  const auto masked = [](std::string_view text) {
    const std::uint32_t crc = slow_crc32c(text);
    return static_cast<std::uint32_t>(((static_cast<std::uint64_t>(crc) << 32 | crc) >> 15) +
                                      0xa282ead8u);
  };
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t length = 0;
    std::uint32_t length_crc = 0;
    std::uint32_t payload_crc = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&length_crc, bytes.data() + at + 8, 4);
    EXPECT_EQ(length_crc, masked(std::string_view(bytes).substr(at, 8)));
    const std::string_view payload = std::string_view(bytes).substr(at + 12, length);
    std::memcpy(&payload_crc, bytes.data() + at + 12 + length, 4);
    EXPECT_EQ(payload_crc, masked(payload));
    EXPECT_TRUE(
        events.emplace_back().ParseFromArray(payload.data(), static_cast<int>(payload.size())));
    at += 16 + length;
  }
  return events;
}

TEST(Crc32c, GivesTheStandardsCheckValue) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);  // RFC 3720, B.4 lists the same polynomial
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
}

TEST_F(Metrics, ReadsBackTheSameDoubles) {
  const double values[] = {0.1,  1.0 / 3.0,         5e-324, 1.7976931348623157e308,
                           -0.0, 4.6051701859880918};
  for (const double value : values) {
    auto read = parse_metric_line(to_json_line(train(1, 1, value)));
    ASSERT_TRUE(read);
    EXPECT_EQ(std::memcmp(&read->record.loss, &value, sizeof value), 0);
    EXPECT_EQ(read->record.learning_rate, 1.0 / 3.0);
    EXPECT_EQ(read->record.gradient_norm, std::sqrt(2.0));
  }
}

TEST_F(Metrics, WritesLossesThatAreNotFiniteAsWords) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(parse_metric_line(to_json_line(train(1, 1, nan)))->record.loss));
  EXPECT_EQ(parse_metric_line(to_json_line(train(1, 1, -HUGE_VAL)))->record.loss, -HUGE_VAL);
}

TEST_F(Metrics, CountsOnlyTheStepsOwnPhasesInItsSpeed) {
  EXPECT_DOUBLE_EQ(samples_per_second(train(1, 7, 0).record), 32 / 0.25);
}

TEST_F(Metrics, DoesNotWriteWhatTheRingOffersAgain) {
  auto writer = *MetricsWriter::open(folder_);
  ASSERT_TRUE(writer->append({train(1, 1, 3), train(1, 2, 2), evaluation(1, 2, 2.5, -1)}));
  ASSERT_TRUE(
      writer->append({train(1, 1, 3), train(1, 2, 2), evaluation(1, 2, 2.5, -1), train(1, 3, 1)}));
  writer = *MetricsWriter::open(folder_);  // a new supervisor reads the ring from its start
  ASSERT_TRUE(writer->append(
      {train(1, 2, 2), evaluation(1, 2, 2.5, -1), train(1, 3, 1), train(1, 4, 0.5)}));
  const std::string text = lines();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_THAT(keys(latest_metrics(text)), ElementsAre("1/1", "1/2", "1/2e", "1/3", "1/4"));
}

TEST_F(Metrics, LeaveOutTheInitialWeights) {
  auto writer = *MetricsWriter::open(folder_);
  ASSERT_TRUE(writer->append({train(1, 0, 0), train(1, 1, 3)}));
  EXPECT_THAT(keys(latest_metrics(lines())), ElementsAre("1/1"));
}

TEST_F(Metrics, LetsALaterAttemptSupersedeWhatItRepeats) {
  auto writer = *MetricsWriter::open(folder_);
  ASSERT_TRUE(writer->append(
      {train(1, 1, 3), train(1, 2, 2), train(1, 3, 1), train(2, 2, 20), train(2, 3, 10)}));
  const auto latest = latest_metrics(lines());
  EXPECT_THAT(keys(latest), ElementsAre("1/1", "2/2", "2/3"));
  EXPECT_EQ(latest[1].record.loss, 20);
}

TEST_F(Metrics, GoesOnAfterALineThatACrashCutShort) {
  auto writer = *MetricsWriter::open(folder_);
  ASSERT_TRUE(writer->append({train(1, 1, 3)}));
  write_more(to_json_line(train(1, 2, 2)).substr(0, 40));
  EXPECT_THAT(keys(latest_metrics(lines())), ElementsAre("1/1"));
  writer = *MetricsWriter::open(folder_);
  ASSERT_TRUE(writer->append({train(1, 1, 3), train(1, 2, 2)}));
  EXPECT_THAT(keys(latest_metrics(lines())), ElementsAre("1/1", "1/2"));
}

TEST_F(Metrics, ReadBothEndsOfALongFile) {
  auto writer = *MetricsWriter::open(folder_);
  std::vector<MetricRecord> all;
  for (int step = 1; step <= 4000; ++step) all.push_back(train(1, step, 1.0 / step));
  ASSERT_TRUE(writer->append(all));
  ASSERT_GT(std::filesystem::file_size(folder_ / "metrics.jsonl"), 600 * 1024u);
  const auto ends = read_metrics(folder_);
  EXPECT_LT(ends.size(), 4000u);
  EXPECT_GT(ends.size(), 1000u);
  EXPECT_EQ(ends.front().record.step, 1);
  EXPECT_EQ(ends.back().record.step, 4000);
  for (const auto& metric : ends)
    EXPECT_EQ(metric.record.loss, 1.0 / static_cast<double>(metric.record.step));
  EXPECT_TRUE(read_metrics(folder_ / "none").empty());
}

TEST_F(Metrics, SkipsAForeignLineWhenReading) {
  EXPECT_TRUE(latest_metrics("{\"kind\":\"train\"}\nhello\n[]\n{\"kind\":3}\n").empty());
}

TEST_F(Metrics, GivesTensorBoardFramedEventsAndARestartMarkForEachAttempt) {
  auto writer = *MetricsWriter::open(folder_);
  ASSERT_TRUE(writer->append(
      {train(1, 1, 3), train(1, 2, 2), train(2, 2, 1.5), evaluation(2, 2, 0.5, 0.75)}));
  const auto files = event_files();
  ASSERT_EQ(files.size(), 1u);
  std::vector<std::string> story;
  for (const auto& event : read_events(files[0])) {
    if (event.has_session_log()) story.push_back(fmt::format("start {}", event.step()));
    if (!event.file_version().empty()) story.push_back(event.file_version());
    if (!event.has_summary()) continue;
    const auto& first = event.summary().value(0);
    story.push_back(fmt::format("{} {} {}", event.step(), first.tag(), first.simple_value()));
  }
  EXPECT_THAT(story, ElementsAre("brain.Event:2", "start 1", "1 train/loss 3", "2 train/loss 2",
                                 "start 2", "2 train/loss 1.5", "2 eval/loss 0.5"));
}

TEST_F(Metrics, PutsEachWritersEventsIntoAFileOfItsOwn) {
  ASSERT_TRUE((*MetricsWriter::open(folder_))->append({train(1, 1, 3)}));
  ASSERT_TRUE((*MetricsWriter::open(folder_))->append({train(1, 2, 2)}));
  EXPECT_EQ(event_files().size(), 2u);
}

TEST_F(Metrics, SaysWhichFolderItCannotWrite) {
  std::ofstream(folder_ / "file") << "in the way";
  auto writer = MetricsWriter::open(folder_ / "file" / "metrics");
  ASSERT_FALSE(writer);
  EXPECT_THAT(writer.error().message, ::testing::HasSubstr("file/metrics"));
}

// ---- GPUs ----

service::GpuStatus gpu(const std::string& name, int index = 0) {
  service::GpuStatus status;
  status.set_device(std::to_string(index));
  status.set_index(index);
  status.set_uuid("GPU-" + std::to_string(index));
  status.set_name(name);
  status.set_memory_bytes(100);
  status.set_memory_used_bytes(40);
  status.set_busy(0.97);
  status.set_celsius(41);
  status.set_watts(80.5);
  status.set_clock_mhz(1980);
  status.set_clock_reasons(0x48);
  return status;
}

TEST_F(Metrics, OfAStepHaveTheShareOfTheGpusPeakWhereItIsKnown) {
  MetricRecord known = train(1, 1, 5);
  known.mfu = 0.375;
  EXPECT_THAT(to_json_line(known), HasSubstr(R"("mfu":0.375,)"));
  EXPECT_EQ(parse_metric_line(to_json_line(known))->mfu, 0.375);
  EXPECT_THAT(to_json_line(train(1, 1, 5)), Not(HasSubstr("mfu")));
  EXPECT_EQ(parse_metric_line(to_json_line(train(1, 1, 5)))->mfu, 0);
}

TEST_F(Metrics, OfGpusAreALineForEachDeviceAndLeaveTheStepsLinesAlone) {
  auto writer = *MetricsWriter::open(folder_);
  ASSERT_TRUE(writer->append({train(1, 1, 5)}));
  ASSERT_TRUE(writer->append_gpus(
      {{"host1", 1, 1, 1.7e9, gpu("NVIDIA H200")}, {"host1", 1, 1, 1.7e9, gpu("NVIDIA H200", 1)}}));
  const std::string text = *read_file(folder_ / "gpus.jsonl");
  EXPECT_EQ(text.substr(0, text.find('\n')),
            R"({"kind":"gpu","attempt":1,"step":1,"node":"host1","device":"0","uuid":"GPU-0",)"
            R"("name":"NVIDIA H200","busy":0.97,"memory_used_bytes":40,"memory_bytes":100,)"
            R"("celsius":41,"watts":80.5,"clock_mhz":1980,)"
            R"("slowed_by":["too_hot_hardware","hardware_slowdown"],"time":1700000000.0})");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_EQ(lines(), to_json_line(train(1, 1, 5)) + "\n");
  ASSERT_EQ(event_files().size(), 1u);
  EXPECT_THAT(*read_file(event_files()[0]), HasSubstr("gpu/host1/1/watts"));
}

TEST_F(Metrics, OfAGpuThatDoesNotAnswerSayThatAndWhatIsNotToldIsLeftOut) {
  service::GpuStatus lost;
  lost.set_device("0");
  lost.set_fault("NVML says 15: GPU is lost");
  EXPECT_EQ(to_json_line(GpuMetric{"host1", 1, 1, 1.5, lost}),
            R"({"kind":"gpu","attempt":1,"step":1,"node":"host1","device":"0",)"
            R"("fault":"NVML says 15: GPU is lost","time":1.5})");
  service::GpuStatus instance = gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb");
  instance.clear_busy();
  EXPECT_THAT(to_json_line(GpuMetric{"host1", 1, 1, 1.5, instance}), Not(HasSubstr("busy")));
}

TEST_F(Metrics, OfGpusBeginAtALineOfTheirOwnAfterACrash) {
  std::ofstream(folder_ / "gpus.jsonl") << R"({"kind":"gp)";
  auto writer = *MetricsWriter::open(folder_);
  ASSERT_TRUE(writer->append_gpus({{"host1", 1, 1, 1.7e9, gpu("NVIDIA H200")}}));
  EXPECT_THAT(*read_file(folder_ / "gpus.jsonl"), HasSubstr("{\"kind\":\"gp\n{\"kind\":\"gpu\""));
}

TEST(PeakFlops, AreOfTheNameThatNvmlGivesWithAndWithoutItsMaker) {
  EXPECT_EQ(peak_flops("NVIDIA H200", config::Train::bf16), 989.5e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3", config::Train::tf32), 494.5e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-80GB", config::Train::bf16), 312e12);
  EXPECT_EQ(peak_flops("A100-SXM4-40GB", config::Train::fp32), 19.5e12);
  EXPECT_EQ(peak_flops("Tesla T4", config::Train::fp32), 8.1e12);
}

TEST(PeakFlops, AreNeverGuessed) {
  for (const char* name : {"", "NVIDIA", "NVIDIA H200 SUPER", "NVIDIA GeForce RTX 4090 D",
                           "NVIDIA A100-SXM4-64GB", "Fake H200", "nvidia h200"})
    EXPECT_FALSE(peak_flops(name, config::Train::fp32)) << name;
  for (const auto precision : {config::Train::tf32, config::Train::bf16})
    EXPECT_FALSE(peak_flops("Tesla V100-SXM2-16GB", precision)) << "it has no such arithmetic";
}

TEST(PeakFlops, OfSeveralDevicesAddUpAndCountASharedOneOnce) {
  const auto sum = [](const std::vector<service::GpuStatus>& devices) {
    return peak_flops(devices, config::Train::bf16);
  };
  EXPECT_EQ(sum({gpu("NVIDIA L4", 0), gpu("NVIDIA L4", 1)}), 242e12);
  EXPECT_EQ(sum({gpu("NVIDIA L4", 0), gpu("NVIDIA L4", 0)}), 121e12);
  EXPECT_EQ(sum({gpu("NVIDIA L4", 0), gpu("NVIDIA H200", 1)}), 1110.5e12);
  EXPECT_FALSE(sum({gpu("NVIDIA L4", 0), gpu("another", 1)}));
  EXPECT_FALSE(sum({}));
  service::GpuStatus split = gpu("NVIDIA H200");
  split.set_mig(true);
  EXPECT_FALSE(sum({split}));
}

}  // namespace
}  // namespace surefoot
