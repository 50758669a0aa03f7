// Tells what is new in what one source says, answer after answer.
//
// No source gives ids that can be relied upon, and some services say "now + 2 minutes" whenever
// they are asked. So an event is what has the same kind, words and id (where there is one) under
// the same question, for as long as answers name it; its deadline is the earliest that was seen. It
// is over when an answer without trouble does not name it. If it comes back before its deadline
// (without one: within ten minutes) it is the same event, with the same id; later it is another
// one. A deadline that has passed when the event is first seen is ignored, and so is the event.
//
// A reclaim of a source that does not `cancel` is never over: machines have been taken after the
// notice was gone again.
//
// Pure: no clock, I/O, threads or logging. At most kMaxEvents are known; further ones are left out.
#pragma once

#include <string>
#include <vector>

#include "launcher/notice/notice.h"

namespace surefoot::notice {

struct News {
  std::vector<Change> changes;
  std::vector<std::string> ignored;  // sentences: deadlines in the past
};

class Book {
 public:
  static constexpr std::size_t kMaxEvents = 64;  // arbitrary; a machine has one or two

  Book(std::string source, bool cancels) : source_(std::move(source)), cancels_(cancels) {}
  // `now` and `wall` are the same moment.
  [[nodiscard]] News take(const Finding& finding, Time now, WallTime wall);

 private:
  struct Event {
    std::string about;
    Sighting sighting;
    Notice notice;
    Time over_at;              // when it may come anew
    bool present = false;      // in the last answer
    bool was_present = false;  // ... and in the one before
    bool told_over = false;
  };
  Event* find(const std::string& about, const Sighting& sighting);
  void see(const std::string& about, const Sighting& sighting, Time now, WallTime wall, News& news);
  static void see_again(Event& event, const std::optional<Time>& deadline, News& news);
  bool forget_one();

  std::string source_;
  bool cancels_;
  std::vector<Event> events_;
};

}  // namespace surefoot::notice
