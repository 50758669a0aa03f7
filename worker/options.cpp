#include "worker/options.h"

#include <cstdlib>

#include "common/process.h"

namespace surefoot {
namespace {

constexpr const char* kUsage =
    "usage: surefoot-worker JOB.yaml [--dir DIR] [--set KEY=VALUE]... [--accept-changes] "
    "[--describe]";

std::string text_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

int number_of(const char* variable, int fallback) {
  const std::string text = text_of(variable);
  return text.empty() ? fallback : std::atoi(text.c_str());
}

}  // namespace

Result<WorkerOptions> parse_options(int argc, const char* const* argv) {
  WorkerOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool takes_value = argument == "--dir" || argument == "--set";
    if (takes_value && i + 1 == argc)
      return error(Code::kInvalid, "{} needs a value\n{}", argument, kUsage);
    if (argument == "--dir") {
      options.directory = argv[++i];
    } else if (argument == "--set") {
      options.sets.emplace_back(argv[++i]);
    } else if (argument == "--accept-changes") {
      options.accept_changes = true;
    } else if (argument == "--describe") {
      options.describe = true;
    } else if (argument.starts_with("-") || !options.job_file.empty()) {
      return error(Code::kInvalid, "unknown argument {}\n{}", argument, kUsage);
    } else {
      options.job_file = argument;
    }
  }
  if (options.job_file.empty()) return error(Code::kInvalid, "{}", kUsage);
  options.rank = number_of("OMPI_COMM_WORLD_RANK", 0);
  options.world_size = number_of("OMPI_COMM_WORLD_SIZE", 1);
  options.local_rank = number_of("OMPI_COMM_WORLD_LOCAL_RANK", 0);
  options.local_size = number_of("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  // A rank that has lost mpirun's environment on the way would be a world of its own.
  if (const int asked = number_of("SUREFOOT_WORKERS", options.world_size);
      asked != options.world_size) {
    return error(Code::kInvalid,
                 "the world that was formed has {} ranks, not the {} that the supervisor has asked "
                 "for: mpirun's environment does not come through",
                 options.world_size, asked);
  }
  options.attempt = Attempt{number_of("SUREFOOT_ATTEMPT", 0)};
  options.faults = text_of("SUREFOOT_FAULTS");
  options.supervisor = number_of("SUREFOOT_SUPERVISOR", 0);
  options.known_step = Step{number_of("SUREFOOT_KNOWN_STEP", 0)};
  options.log_directory = text_of("SUREFOOT_LOG_DIR");
  options.network = text_of("SUREFOOT_NETWORK");
  return options;
}

void export_standard_variables(const WorkerOptions& options) {
  const auto set = [](const char* variable, const std::string& value) {
    ::setenv(variable, value.c_str(), 0);
  };
  set("RANK", std::to_string(options.rank));
  set("LOCAL_RANK", std::to_string(options.local_rank));
  set("WORLD_SIZE", std::to_string(options.world_size));
  set("LOCAL_WORLD_SIZE", std::to_string(options.local_size));
  // Over several machines the supervisor names rank 0's. Where nobody does, none is better than a
  // wrong one.
  if (options.local_size == options.world_size) set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", "29400");
}

}  // namespace surefoot
