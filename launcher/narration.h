// Tells a person what the supervisor does: one line an event, and the progress.
//
// Pure but for the console it writes to and its memory of what was told. One thread.
#pragma once

#include <deque>
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
  Narration(Console& console, int workers, Step max_steps) : console_(console), workers_(workers) {
    progress_.max_steps = max_steps;
  }

  void decided(const supervisor::Event& event, std::string_view reason);
  void effect(const supervisor::Effect& effect);
  // An answer of the service and the metrics in it.
  void answered(const service::StatusReply& status, const std::vector<MetricRecord>& metrics);
  // The progress line, once the core has heard of all that was told here.
  void show(const supervisor::State& state, Time at);
  void warning(const std::string& text) { console_.warning(text); }

 private:
  void learn(const MetricRecord& metric);

  Console& console_;
  int workers_;
  Progress progress_;
  std::deque<MetricRecord> recent_;  // of training: for speed and time left
  Time doing_since_{};
  bool opened_ = false;
};

}  // namespace surefoot
