// Performs the effects of the supervisor's core that may take long, one after the other, on a
// thread of its own.
//
// The driver's thread starts effects and takes their outcomes; event_fd() becomes readable when
// there is one. Each effect has a deadline below the core's own, so the thread is never stuck for
// good. close() waits for the effect in hand until the deadline, then leaves the thread behind: the
// caller is about to end the process.
#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/service_client.h"
#include "common/file.h"
#include "configs/job_directory.h"
#include "launcher/journal.h"
#include "launcher/mpirun/gang.h"
#include "launcher/supervisor.h"

namespace surefoot {

struct EffectContext {
  std::filesystem::path arena_folder;
  std::string job_id;
  ServiceKeys keys;  // the client's half
  ServiceLaunch service;
  JobDirectory directory;  // traces go to logs/attempt-003/traces.txt
  std::int64_t max_steps = 0;
  Duration finish_timeout{};  // for storing the last step and exporting the model
};

struct EffectOutcome {
  std::int64_t action = 0;  // of the journal
  std::string outcome = "done";
  std::optional<supervisor::Event> event;  // none: the effect has no answer
  std::optional<JournalResult> result;     // of FinishJob
};

class EffectThread {
 public:
  explicit EffectThread(EffectContext context);
  ~EffectThread();
  EffectThread(const EffectThread&) = delete;

  // `gang`: the one in hand, for those effects that act on it.
  void start(const supervisor::Effect& effect, std::int64_t action,
             const std::optional<Gang>& gang);
  [[nodiscard]] std::vector<EffectOutcome> take();
  [[nodiscard]] int event_fd() const;
  void close(Time deadline);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace surefoot
