// A thread that looks through one source, over and over, and reports what is new to the desk.
//
// Nothing ends it but stop(). What goes wrong is logged once per kind, until that question is
// answered well again (a deadline in the past: until no answer has one); while all questions of a
// look fail the pauses double, up to kLongestPause. A proxy of the environment is not used,
// redirects are not followed, and no more than kMaxAnswerBytes are read.
#pragma once

#include <memory>
#include <string>

#include "launcher/notice/desk.h"
#include "launcher/notice/source.h"

namespace surefoot::notice {

// A machine has 30 s at worst: what the service says when it answers again must not come too late.
inline constexpr Duration kLongestPause = std::chrono::seconds(5);

// How often is asked, for who does not want to wait that long (tests).
struct Pace {
  Duration longest_interval = Duration::max();  // also of the pauses after trouble
  Duration longest_patience = Duration::max();
};

class Watcher {
 public:
  // `name`: of the source, as in the job file.
  Watcher(std::string name, std::unique_ptr<Source> source, std::shared_ptr<Desk> desk,
          Pace pace = {});
  ~Watcher();  // as stop() without patience
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // The next question is not asked, the one in hand is dropped. What hangs in the kernel beyond the
  // deadline (a file on a network disk) is left to the end of the process.
  void stop(Time deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace surefoot::notice
