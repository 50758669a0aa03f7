// What people see: progress line, summary, status, quantities.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "launcher/fault_list.h"
#include "launcher/format.h"
#include "launcher/needs.h"
#include "launcher/progress.h"
#include "launcher/report.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Progress progress() {
  Progress progress;
  progress.step = Step{150};
  progress.max_steps = Step{300};
  progress.loss = 2.43117;
  progress.samples_per_second = 94.23;
  progress.seconds_per_step = 0.34;
  progress.snapshot = Step{150};
  progress.checkpoint = Step{120};
  progress.checkpoint_age_seconds = 35;
  progress.restarts = 1;
  return progress;
}

TEST(ProgressLine, HasEverythingWhereThereIsRoom) {
  EXPECT_EQ(progress_line(progress(), 200),
            "[##########..........]  step 150/300  loss 2.431  94.2 samples/s  0:51 left  "
            "snapshot 150  checkpoint 120 0:35 ago  1 restart");
}

TEST(ProgressLine, HasTheShareOfTheGpusPeakWhereItIsKnown) {
  Progress on_gpus = progress();
  on_gpus.mfu = 0.4117;
  EXPECT_THAT(progress_line(on_gpus, 200), HasSubstr("94.2 samples/s  MFU 41.2 %  0:51 left"));
  EXPECT_THAT(progress_line(progress(), 200), Not(HasSubstr("MFU")));
}

TEST(ProgressLine, FitsIntoAnyWidthAndKeepsTheStep) {
  for (int width = 12; width < 160; ++width) {
    const std::string line = progress_line(progress(), width);
    EXPECT_LE(static_cast<int>(line.size()), width);
    EXPECT_THAT(line, HasSubstr("step 150/300"));
  }
  EXPECT_EQ(progress_line(progress(), 60), "step 150/300  loss 2.431  0:51 left  1 restart");
  EXPECT_EQ(progress_line(progress(), 3), "step 150/300");
}

TEST(ProgressLine, SaysWhatIsDoneBetweenSteps) {
  Progress waiting;
  waiting.max_steps = Step{300};
  waiting.doing = "restoring";
  waiting.doing_seconds = 0.4;
  EXPECT_EQ(progress_line(waiting, 80), "[....................]  step 0/300  restoring 0.40 s");
  Progress storing = progress();
  storing.storing = Step{149};
  EXPECT_THAT(progress_line(storing, 200), HasSubstr("storing 149"));
  Progress last = progress();
  last.step = last.max_steps;
  EXPECT_THAT(progress_line(last, 200), Not(HasSubstr("left")));
}

TEST(ProgressClock, IsDueAtTheFirstTheLastAndAtIntervals) {
  ProgressClock clock(5s);
  const Time start = Time{} + 100s;
  EXPECT_FALSE(clock.due(Step{0}, Step{9}, start)) << "nothing to tell yet";
  EXPECT_TRUE(clock.due(Step{1}, Step{9}, start));
  EXPECT_FALSE(clock.due(Step{2}, Step{9}, start + 4s));
  EXPECT_TRUE(clock.due(Step{3}, Step{9}, start + 5s));
  EXPECT_FALSE(clock.due(Step{3}, Step{9}, start + 50s)) << "the same step again";
  EXPECT_TRUE(clock.due(Step{9}, Step{9}, start + 51s));
}

TEST(Quantities, AreReadable) {
  EXPECT_EQ(duration_text(0.354), "0.35 s");
  EXPECT_EQ(duration_text(12.44), "12.4 s");
  EXPECT_EQ(duration_text(99.97), "1 min 40 s");
  EXPECT_EQ(duration_text(3599.6), "1 h 0 min");
  EXPECT_EQ(duration_text(90000), "1 d 1 h");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(count_text(0, "restart", "restarts"), "no restarts");
  EXPECT_EQ(number_text(0.00237149), "0.002371");
}

JournalView journal() {
  JournalView view;
  view.job = {"0123456789abcdef", "dictionary-gpt", 0};
  view.history.attempt = Attempt{2};
  view.history.finished_step = Step{300};
  view.history.failures_forgiven = 1;
  view.history.state = supervisor::JobState::kDone;
  view.history.accounting.spent[static_cast<std::size_t>(Cause::kSteps)] = 100s;
  view.history.accounting.spent[static_cast<std::size_t>(Cause::kLoad)] = 1500ms;
  view.history.accounting.spent[static_cast<std::size_t>(Cause::kDetect)] = 50ms;
  JournalAttempt first;
  first.end = {Attempt{1}, supervisor::Outcome::kFailed,
               true,       -1,
               9,          Step{0},
               Step{149},  {1, "vm", Step{150}, Phase::kForwardBackward, "ended by SIGKILL"}};
  first.ended_unix_ms = 1;
  JournalAttempt second;
  second.end = {Attempt{2}, supervisor::Outcome::kDone, false, 0, 0, Step{149}, Step{300}, {}};
  second.ended_unix_ms = 2;
  second.recovery = Recovery{Attempt{2}, 50ms, 0ms, 110ms, 980ms, 200ms, 290ms};
  view.attempts = {first, second};
  view.result = JournalResult{std::string(64, 'a'), std::string(64, 'b'), "/jobs/a/final", 300};
  view.stop = supervisor::Stop{0, supervisor::JobState::kDone, "done"};
  return view;
}

std::vector<MetricRecord> metrics() {
  std::vector<MetricRecord> all(3);
  all[0].record = {StepRecord::kTrain, 1, 1, 32, 5.5413};
  all[1].record = {StepRecord::kTrain, 2, 300, 9600, 2.0312};
  all[1].record.phase_seconds[static_cast<std::size_t>(Phase::kForwardBackward)] = 0.32;
  all[2].record = {StepRecord::kEvaluation, 2, 300, 9600, 2.101};
  all[2].record.accuracy = 0.875;
  return all;
}

TEST(Summary, HasTheShareOfTheGpusPeakWhereItIsKnown) {
  std::vector<MetricRecord> on_gpus = metrics();
  on_gpus[1].mfu = 0.4117;
  const JobReport report = make_report(journal(), on_gpus, "/jobs/a", Step{300});
  EXPECT_THAT(summary_screen(report, false),
              HasSubstr("speed         100 samples/s, 41.2 % of the GPUs' peak (MFU)\n"));
  EXPECT_EQ(to_json(report)["mfu"], 0.4117);
  EXPECT_TRUE(to_json(make_report(journal(), metrics(), "/jobs/a", Step{300}))["mfu"].is_null());
}

TEST(Summary, SaysWhatHappenedOnOneScreen) {
  const JobReport report = make_report(journal(), metrics(), "/jobs/a", Step{300});
  EXPECT_EQ(summary_screen(report, false),
            "dictionary-gpt: done, step 300 of 300\n"
            "  attempts      2: 1 failure (1 injected), no preemptions\n"
            "                  1  failed, steps 1-149: rank 1 on vm in step 150, forward_backward: "
            "ended by SIGKILL (injected)\n"
            "                  2  done, steps 150-300\n"
            "  steps lost    0\n"
            "  recovery      1.63 s: detect 0.05, wait 0.00, launch 0.11, load 0.98, restore 0.20, "
            "first step 0.29\n"
            "  time          1 min 42 s, 98.5 % of it in steps that were kept\n"
            "                the rest: load 1.50 s, detect 0.05 s\n"
            "  loss          5.541 (step 1) -> 2.031 (step 300)\n"
            "  held out      2.101, accuracy 87.50 % (step 300)\n"
            "  speed         100 samples/s\n"
            "  weights       /jobs/a/final/model.safetensors\n"
            "                sha256 " +
                std::string(64, 'a') +
                "\n"
                "  state         sha256 " +
                std::string(64, 'b') +
                "\n"
                "  directory     /jobs/a\n");
}

TEST(Summary, TellsOfAPreemptionWhatTheNoticeWasGoodFor) {
  JournalView view = journal();
  supervisor::AttemptEnd& end = view.attempts[0].end;
  end.outcome = supervisor::Outcome::kPreempted;
  end.injected = false;
  end.culprit = {};
  end.culprit.reason = "left since its machine goes";
  end.drained_after = 350ms;
  end.time_left = 27600ms;
  view.attempts[0].ended_unix_ms = 1000;
  view.history.accounting.spent[static_cast<std::size_t>(Cause::kCapacity)] = 3s;
  const JobReport report = make_report(view, {}, "/jobs/a", Step{300});
  const std::string screen = summary_screen(report, false);
  EXPECT_THAT(screen, HasSubstr("  1  preempted, steps 1-149: left since its machine goes; drained "
                                "0.35 s after the notice, 27.6 s left\n"));
  EXPECT_THAT(screen, HasSubstr("no steps lost, back at work after 1.63 s\n"));
  EXPECT_THAT(screen, HasSubstr("the rest: capacity 3.00 s"));
  const nlohmann::json notice = to_json(report)["attempt_list"][0]["notice"];
  EXPECT_EQ(notice["at_unix_ms"], 650);
  EXPECT_EQ(notice["drained_at_unix_ms"], 1000);
  EXPECT_DOUBLE_EQ(notice["time_left_seconds"], 27.6);
  EXPECT_EQ(notice["steps_lost"], 0);
  EXPECT_DOUBLE_EQ(notice["back_at_work_seconds"], 1.63);
  end.time_left = -2s;
  EXPECT_THAT(attempt_text(end), HasSubstr("2.00 s too late"));
}

TEST(Summary, StaysOnOneScreenAfterManyAttempts) {
  JournalView view = journal();
  while (view.attempts.size() < 200)
    view.attempts.insert(view.attempts.begin(), view.attempts.front());
  const std::string screen =
      summary_screen(make_report(view, metrics(), "/jobs/a", Step{300}), false);
  EXPECT_LE(std::count(screen.begin(), screen.end(), '\n'), 30);
  EXPECT_THAT(screen, HasSubstr("... 192 before these"));
}

TEST(Summary, StandsWithoutColoursUnlessAsked) {
  const JobReport report = make_report(journal(), metrics(), "/jobs/a", Step{300});
  EXPECT_THAT(summary_screen(report, false), Not(HasSubstr("\033")));
  EXPECT_THAT(summary_screen(report, true), HasSubstr("\033[1;32m"));
}

TEST(Summary, GivesTheReasonOfAJobThatStopped) {
  JournalView view = journal();
  view.result.reset();
  view.history.state = supervisor::JobState::kFailed;
  view.stop =
      supervisor::Stop{93, supervisor::JobState::kFailed, "the same failure twice at step 5"};
  const std::string screen = summary_screen(make_report(view, {}, "/jobs/a", Step{300}), false);
  EXPECT_THAT(
      screen,
      HasSubstr("dictionary-gpt: failed, step 300 of 300\nthe same failure twice at step 5\n"));
  EXPECT_THAT(screen, Not(HasSubstr("sha256")));
}

TEST(Report, IsStoppedWhenTheJournalSaysRunningAndNoSupervisorLives) {
  JournalView view = journal();
  view.history.state = supervisor::JobState::kRunning;
  view.stop.reset();
  EXPECT_EQ(make_report(view, {}, "/jobs/a", Step{300}).state, "stopped");
  view.supervisor = self_process();
  EXPECT_EQ(make_report(view, {}, "/jobs/a", Step{300}).state, "running");
}

TEST(Report, HasEveryPromisedKeyInItsJson) {
  const nlohmann::json object = to_json(make_report(journal(), metrics(), "/jobs/a", Step{300}));
  for (const char* key : {"job", "state", "steps", "attempts", "failures", "preemptions",
                          "steps_lost", "goodput", "seconds", "weights_sha256", "state_sha256",
                          "badput", "recoveries", "loss", "evaluation"}) {
    EXPECT_TRUE(object.contains(key)) << key;
  }
  EXPECT_EQ(object["attempts"], 2);
  EXPECT_EQ(object["failures"], 1);
  EXPECT_EQ(object["failures_injected"], 1);
  EXPECT_DOUBLE_EQ(object["badput"]["load"].get<double>(), 1.5);
  EXPECT_FALSE(object["badput"].contains("steps"));
  EXPECT_DOUBLE_EQ(object["recoveries"][0]["first_step"].get<double>(), 0.29);
  EXPECT_DOUBLE_EQ(object["loss"]["last"]["loss"].get<double>(), 2.0312);
  EXPECT_DOUBLE_EQ(object["evaluation"]["last"]["accuracy"].get<double>(), 0.875);
}

TEST(Status, ShowsWhereEachRankIs) {
  JournalView view = journal();
  view.history.state = supervisor::JobState::kRunning;
  view.supervisor = self_process();
  JobReport report = make_report(view, metrics(), "/jobs/a", Step{300});
  report.service.emplace();
  report.service->set_ready_step(151);
  report.service->set_durable_step(120);
  report.service->set_durable_age_seconds(40);
  report.service->set_storing_step(-1);
  report.service->set_stored_part_step(-1);
  auto* rank = report.service->add_ranks();
  rank->set_rank(1);
  rank->set_alive(true);
  rank->set_step(152);
  rank->set_phase("reduction");
  rank->set_seconds_in_phase(0.25);
  const std::string screen = status_screen(report, false);
  EXPECT_THAT(screen, HasSubstr("node 0        snapshot of step 151\n"));
  EXPECT_THAT(screen, HasSubstr("checkpoint    step 120, 40.0 s old\n"));
  EXPECT_THAT(screen, HasSubstr("rank 1        step 152, reduction for 0.25 s"));
}

TEST(Status, ShowsHowOldTheLastCheckpointIsAndWhatKeepsTheNextOneWaiting) {
  JobReport report = make_report(journal(), metrics(), "/jobs/a", Step{300});
  service::StatusReply& status = report.service.emplace();
  status.set_node_index(1);
  status.set_node_count(2);
  status.set_host("b");
  status.set_ready_step(217);
  status.set_stored_part_step(200);
  status.set_arena_bytes(3 << 20);
  status.set_durable_step(200);
  status.set_durable_age_seconds(420);
  status.set_storing_step(217);
  status.set_uploading_bytes(1 << 20);
  status.set_upload_bytes_per_second(2 << 20);
  status.set_waiting_for("file:///x: No space left on device");
  status.set_interval_seconds(300);
  status.set_interval_rule("ceiling");
  status.set_interval_reason("every 5 min, as checkpoint.interval says");
  (*status.mutable_refused())["stranger"] = 3;
  (*status.mutable_refused())["key"] = 1;
  service::NoticeStatus& notice = *status.mutable_notice();
  notice.set_seconds_left(12);
  notice.set_decision("step 217 goes to the store now");
  notice.set_safe_step(200);
  notice.set_safe_before_seconds(3);
  status.add_warnings("aws: this machine may be taken soon (r)");
  const std::string screen = status_screen(report, false);
  EXPECT_THAT(screen,
              HasSubstr("  node 1        snapshot of step 217, part of step 200 stored, 3.0 "
                        "MiB of memory on b\n"));
  EXPECT_THAT(
      screen,
      HasSubstr("  checkpoint    step 200, 7 min 0 s old; step 217 is being stored, 1.0 MiB "
                "so far; 2.0 MiB/s\n"
                "                waits: file:///x: No space left on device\n"
                "                every 5 min, as checkpoint.interval says\n"));
  EXPECT_THAT(screen, HasSubstr("  notice        goes in 12.0 s: step 217 goes to the store now\n"
                                "                step 200 was safe 3.00 s before\n"));
  EXPECT_THAT(screen, HasSubstr("  warning       aws: this machine may be taken soon (r)\n"));
  EXPECT_THAT(screen, HasSubstr("  refused       1 key, 3 stranger\n"));
  const nlohmann::json node = to_json(report)["service"];
  EXPECT_EQ(node["checkpoint_age_seconds"], 420);
  EXPECT_EQ(node["interval_rule"], "ceiling");
  EXPECT_EQ(node["refused"]["stranger"], 3);
  EXPECT_EQ(node["notice"]["safe_step"], 200);
  EXPECT_THAT(node["warnings"], ElementsAre("aws: this machine may be taken soon (r)"));
  status.set_durable_step(-1);
  EXPECT_TRUE(to_json(report)["service"]["checkpoint_age_seconds"].is_null());
}

TEST(Needs, ListMemoryByKind) {
  const auto needs = nlohmann::json::parse(
      R"({"parameters": 842880, "state_bytes": 10114560, "arena_bytes": 30343680, "gradient_buffer_bytes": 3371520,
    "receive_bytes": 0, "steps": 300, "micro_batches": 8, "epochs": 0.0312, "samples": 1000, "eval_samples": 50})");
  EXPECT_EQ(
      needs_screen(needs, 2),
      "  parameters    842880\n"
      "  state            9.6 MiB  parameters, moments and buffers; one checkpoint takes as much\n"
      "  memory          28.9 MiB  shared memory of the node: three snapshots of the state\n"
      "                   3.2 MiB  gradients, in each of 2 workers\n"
      "                       0 B  parts received from other workers, in each\n"
      "  steps         300, 8 micro-batches each, 0.0312 epochs\n"
      "  samples       1000, 50 held out\n");
  EXPECT_EQ(needs_screen(nlohmann::json::object(), 2), "");
}

TEST(FaultList, KeepsThePlacesOfFaultsThatWereNamedBefore) {
  EXPECT_THAT(merge_faults({}, {"a", "a", "b"}), ElementsAre("a", "a", "b"));
  EXPECT_THAT(merge_faults({"a", "a", "b"}, {"a", "a", "b"}), ElementsAre("a", "a", "b"))
      << "the same command again";
  EXPECT_THAT(merge_faults({"a", "b"}, {"c"}), ElementsAre("a", "b", "c"));
  EXPECT_THAT(merge_faults({"a", "b"}, {"b", "b"}), ElementsAre("a", "b", "b"));
  EXPECT_THAT(merge_faults({"a", "b"}, {}), ElementsAre("a", "b")) << "resume";
}

}  // namespace
}  // namespace surefoot
