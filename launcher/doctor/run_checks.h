// Runs checks so that none can hang, crash or slow the others.
//
// Each check is a child of its own (fork without exec): what drivers, file servers and vendors'
// libraries do to it stays in it, and a process that sits in the kernel for ever, as after a GPU
// has gone, would keep a thread's whole process from leaving. All begin at once. A child says its
// findings one by one; what it has not said when it has ended, or when its patience is over and it
// gets SIGKILL, is `not checked`. A child that cannot be killed is left behind for the kernel.
//
// The caller must have one thread only. Blocks for the longest patience at most, and kGrace.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "launcher/doctor/finding.h"

namespace surefoot::doctor {

// Long enough for a disk that has gone to sleep, short enough to be waited for; arbitrary.
inline constexpr Duration kPatience = std::chrono::seconds(5);
// A check that runs programs ends them itself when its patience is over, before it is ended.
inline constexpr Duration kGrace = std::chrono::seconds(1);

struct Asked {
  std::function<void(const Finding&)> say;
  Time deadline;  // the end of its patience
  int stop = -1;  // can be read from when nobody waits any more
};

struct Check {
  std::vector<std::string> names;  // of the findings that it owes
  Duration patience = kPatience;
  std::function<void(const Asked&)> look;  // exceptions of the standard library end in its child
};

// In the order of the checks, and of what each of them said.
[[nodiscard]] std::vector<Finding> run_checks(const std::vector<Check>& checks);

}  // namespace surefoot::doctor
