// surefoot: the command line.
#include <cstdio>
#include <string>
#include <vector>

#include "checkpoint/store/open_store.h"
#include "launcher/arguments.h"
#include "launcher/verbs/verbs.h"

namespace {

using namespace surefoot;

Result<std::unique_ptr<Store>> open_store_of(const FoundJob& found, bool write) {
  return open_store(found.job, found.directory, /*read_only=*/!write);
}

struct Verb {
  int operator()(const PrintAndLeave& leave) const {
    std::fputs(leave.text.c_str(), leave.code == 0 ? stdout : stderr);
    return leave.code;
  }
  int operator()(const RunArguments& arguments) const { return run_verb(arguments, open_store_of); }
  int operator()(const ValidateArguments& arguments) const { return validate_verb(arguments); }
  int operator()(const StatusArguments& arguments) const { return status_verb(arguments); }
  int operator()(const LogsArguments& arguments) const { return logs_verb(arguments); }
  int operator()(const CancelArguments& arguments) const {
    return cancel_verb(arguments, open_store_of);
  }
  int operator()(const NodesArguments& arguments) const { return nodes_verb(arguments); }
  int operator()(const DrainArguments& arguments) const { return drain_verb(arguments); }
  int operator()(const CheckpointsArguments& arguments) const {
    return checkpoints_verb(arguments, open_store_of);
  }
  int operator()(const DoctorArguments& arguments) const {
    return doctor_verb(arguments, [](const FoundJob& found, Duration patience) {
      return open_store(found.job, found.directory, /*read_only=*/false, patience);
    });
  }
};

}  // namespace

int main(int argc, char** argv) {
  return std::visit(Verb{}, parse_arguments(std::vector<std::string>(argv + 1, argv + argc)));
}
