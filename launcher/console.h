// What a person sees of a run while it goes on: events as lines, and on a terminal the progress
// below them, redrawn in place.
//
// One thread. A closed terminal or pipe is not an error: the job goes on unseen.
#pragma once

#include <string>

#include "launcher/progress.h"

namespace surefoot {

class Console {
 public:
  struct Options {
    int fd = 1;
    bool quiet = false;  // only warnings
  };
  explicit Console(const Options& options);

  void event(const std::string& text);    // "16:21:05  attempt 2: ..."
  void warning(const std::string& text);  // is shown also when quiet
  void progress(const Progress& progress);
  // Removes the progress line. What follows (the summary) is written by print().
  void clear();
  void print(const std::string& text);
  [[nodiscard]] bool color() const { return terminal_; }

 private:
  void line(const std::string& text);
  Options options_;
  bool terminal_;
  std::string shown_;  // the progress line that stands on the terminal now
  ProgressClock clock_;
};

}  // namespace surefoot
