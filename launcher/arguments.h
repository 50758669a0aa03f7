// The command line of `surefoot`, as values.
//
// Pure: looks at no file. parse_arguments() returns what to do, or a text to print and a code to
// leave with (help: 0; wrong use: 64).
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/ids.h"

namespace surefoot {

struct RunArguments {
  std::string job;  // of `run`: a job file; of `resume`: a job file or job directory
  std::string dir;
  std::vector<std::string> sets;
  std::vector<std::string> faults;
  bool faults_count = false;
  bool fresh = false;
  bool accept_changes = false;
  bool json = false;
  bool quiet = false;
  bool resume = false;
};
struct ValidateArguments {
  std::string job;  // empty with `schema`
  std::vector<std::string> sets;
  bool schema = false;
  bool json = false;
};
struct StatusArguments {
  std::string job;  // empty: the job in the current folder
  bool json = false;
};
struct LogsArguments {
  std::string job;
  bool follow = false;
  std::optional<Attempt> attempt;  // default: the last one
  std::optional<int> rank;         // default: all
};
struct CancelArguments {
  std::string job;
  bool json = false;
};
struct NodesArguments {
  std::string job;
  bool json = false;
};
struct DrainArguments {
  std::string node;
  std::string job;
  std::optional<std::string> in;  // a duration; none: the machine goes at a time nobody knows
  bool json = false;
};
struct CheckpointsArguments {
  enum class Action { kList, kVerify, kExport, kRemove };
  Action action = Action::kList;
  std::string job;
  std::optional<Step> step;  // default: verify: all; export: the newest that verifies
  std::string to;            // export: folder
  bool json = false;
};
struct DoctorArguments {
  std::string job;  // a job file or job directory; empty: this machine, for no job in particular
  std::string dir;
  std::vector<std::string> sets;
  bool json = false;
};
struct PrintAndLeave {
  int code = 0;
  std::string text;
};
using Arguments = std::variant<PrintAndLeave, RunArguments, ValidateArguments, StatusArguments,
                               LogsArguments, CancelArguments, NodesArguments, DrainArguments,
                               CheckpointsArguments, DoctorArguments>;

// Without argv[0].
[[nodiscard]] Arguments parse_arguments(const std::vector<std::string>& words);

}  // namespace surefoot
