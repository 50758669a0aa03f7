// The parts of a running supervisor. Internal to launcher/driver*.cpp: driver.cpp has the loop and
// performs what the core decides, driver_gang.cpp launches gangs and sees their end,
// driver_news.cpp takes what machines and verbs say.
#pragma once

#include <deque>
#include <map>
#include <nlohmann/json.hpp>

#include "launcher/control.h"
#include "launcher/driver.h"
#include "launcher/machines.h"
#include "launcher/metrics/metrics.h"
#include "launcher/mpirun/gang.h"
#include "launcher/narration.h"
#include "launcher/nodes/discovery.h"
#include "launcher/observer.h"
#include "launcher/slow_ranks.h"

namespace surefoot {

namespace core = supervisor;

class Driver final : MachineListener {
 public:
  Driver(const DriverSettings& settings, Journal& journal, Console& console);
  Result<int> run();

 private:
  // What happened -> the core -> what is to be done.
  void post(auto what) { events_.push_back({now(), std::move(what)}); }
  Status decide_all();
  Status decide_one(const core::Event& event);
  void perform(const core::Effect& effect, std::int64_t action);
  void launch(const core::LaunchGang& launch, std::int64_t action);

  // What the machines tell.
  void happened(core::Event event) override {
    observe_answers();
    events_.push_back(std::move(event));
  }
  void answered(core::NodeId node, const service::StatusReply& status, Time at) override;
  void performed(std::int64_t action, const std::string& outcome) override;
  void has_result(const JournalResult& result) override;

  // Edges that bring news.
  void open();
  void wait();
  void take_signals();
  void take_hosts();
  void observe_answers();
  void take_metrics(core::NodeId node, const std::vector<MetricRecord>& metrics);
  void take_gpus(core::NodeId node, const service::StatusReply& status);
  [[nodiscard]] double model_utilization(double samples_per_second);
  void take_notice(core::NodeId node, const service::NoticeStatus& notice, Time at);
  void look_at_gang();
  bool has_last_words();
  Status save_now_and_then();

  // What verbs ask for.
  void open_control();
  Result<nlohmann::json> answer(const nlohmann::json& request);
  [[nodiscard]] const nlohmann::json& snapshot();
  std::string_view decide_now();

  [[nodiscard]] GangSpec gang_spec(Attempt attempt) const;
  [[nodiscard]] std::vector<core::Member> rank_order(std::vector<core::Member> members) const;
  [[nodiscard]] core::NodeId node_of_rank(int rank) const;
  [[nodiscard]] std::optional<service::StatusReply> gang_status() const;
  [[nodiscard]] bool is_of_gang(core::NodeId node) const;
  [[nodiscard]] bool early() const;
  [[nodiscard]] bool worker_seen();

  const DriverSettings& settings_;
  Journal& journal_;
  core::Rules rules_;
  core::State state_;
  Narration narration_;
  std::deque<core::Event> events_;
  std::optional<core::Stop> stop_;
  Status journal_status_;  // of what was noted between decisions

  std::filesystem::path arena_folder_;
  Machines machines_;
  std::optional<Discovery> discovery_;
  Fd signals_;
  Observer observer_;
  std::optional<Gang> gang_;
  std::vector<core::Member> members_;  // of the gang, in the order of the ranks
  bool gang_exit_told_ = false;
  std::optional<Time> gang_exit_seen_;
  bool worker_seen_ = false;

  std::map<core::NodeId, Time> notices_;  // when each leaves, as told last
  service::StatusReply answers_;          // records of answers that are not looked at yet
  std::optional<Time> answered_;          // when the last of those came; none: there are none
  Time saved_{};
  Time next_logs_{};
  core::NodeId metrics_from_ = -1;  // who told the newest record
  // Attempt, step and kind of it: an evaluation follows the step that it belongs to.
  std::tuple<std::int64_t, std::int64_t, std::int64_t> metrics_newest_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::map<core::NodeId, std::pair<std::int32_t, std::uint64_t>> gpus_seen_;  // service, last look
  std::optional<double> peak_;  // FLOP/s of the GPUs of the newest gang, where all are known

  BusyTimes busy_;
  std::string_view last_reason_;
  nlohmann::json snapshot_;
  Time snapshot_at_{};
  std::unique_ptr<ControlServer> control_;  // last: its items name all of this
};

}  // namespace surefoot
