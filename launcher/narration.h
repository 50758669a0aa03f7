// Tells a person what the supervisor does: one line an event, and the progress.
//
// Pure but for the console it writes to and its memory of what was told. One thread.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/service.pb.h"
#include "launcher/console.h"
#include "launcher/metrics/metrics.h"
#include "launcher/supervisor.h"

namespace surefoot {

class Narration {
 public:
  Narration(Console& console, const supervisor::Rules& rules) : console_(console), rules_(rules) {
    progress_.max_steps = rules.max_steps;
  }

  // `state`: after it.
  void decided(const supervisor::Event& event, std::string_view reason,
               const supervisor::State& state);
  void effect(const supervisor::Effect& effect);
  // What the gang's services say.
  void answered(const service::StatusReply& status);
  void learn(const std::vector<MetricRecord>& metrics);
  // The progress line, once the core has heard of all that was told here.
  void show(const supervisor::State& state, Time at);
  void warning(const std::string& text) { console_.warning(text); }

 private:
  void learn(const MetricRecord& metric);

  void of_machine(const supervisor::Event& event, const supervisor::State& state);
  void of_left_out(const supervisor::State& state);
  void of_shortage(const supervisor::State& state);

  Console& console_;
  const supervisor::Rules& rules_;
  std::map<supervisor::NodeId, std::string> left_out_;  // why, as told last
  std::string shortage_;                                // as told last
  Progress progress_;
  std::deque<MetricRecord> recent_;  // of training: for speed and time left
  Time doing_since_{};
  bool opened_ = false;
};

}  // namespace surefoot
