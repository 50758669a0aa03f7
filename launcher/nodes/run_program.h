// Runs a program to its end: ssh, a discovery command.
//
// In a session of its own. `input` is written to its standard input, which is then closed; what it
// says is kept up to `kMaxOutputBytes` of either kind, the rest is read and dropped. It is over
// when the program itself has ended: what it leaves in its process group is ended too, what it has
// put into another session is not, and nobody waits for that to close the pipes.
//
// Blocks until the end, at the longest until `deadline` or until something can be read from `stop`;
// then the process group gets SIGKILL. Any thread; SIGPIPE is kept off it meanwhile.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/process.h"
#include "common/status.h"

namespace surefoot {

inline constexpr std::size_t kMaxOutputBytes = 1 << 20;  // more than 10,000 machines take

struct ProgramRun {
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // beside the caller's
  std::string directory;                 // empty: the caller's
  std::string_view input;
  int input_file = -1;  // not -1: sent after `input`, from its place to its end
  Time deadline;
  int stop = -1;
};

struct ProgramEnd {
  enum class Why { kExited, kDeadline, kStopped } why = Why::kExited;
  ExitStatus status;  // kExited
  std::string output;
  std::string errors;
  bool cut = false;  // it said more than was kept
  [[nodiscard]] bool succeeded() const { return why == Why::kExited && status.code == 0; }
};

// kInvalid: it cannot be started.
[[nodiscard]] Result<ProgramEnd> run_program(const ProgramRun& run);

// The last line that is not empty, without what ends it; bytes that a terminal would act on are
// replaced. At most 300 characters.
[[nodiscard]] std::string last_line(std::string_view text);

}  // namespace surefoot
