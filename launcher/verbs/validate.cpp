#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/file.h"
#include "common/process.h"
#include "launcher/doctor/gpu_checks.h"
#include "launcher/format.h"
#include "launcher/needs.h"
#include "launcher/verbs/verbs.h"

namespace surefoot {
namespace {

using nlohmann::json;

// Runs `surefoot-worker JOB --describe` and reads the object it prints. It builds the model, so
// this takes seconds.
Result<json> describe(const ValidateArguments& arguments, const std::vector<std::string>& more) {
  const std::filesystem::path worker =
      std::filesystem::path(program_directory()) / "surefoot-worker";
  if (!std::filesystem::exists(worker))
    return error(Code::kNotFound, "{} is not built", worker.string());
  std::string output =
      (std::filesystem::temp_directory_path() / "surefoot-describe-XXXXXX").string();
  const Fd file(::mkstemp(output.data()));
  if (!file) return error(Code::kRetry, "cannot make {}", output);
  SpawnOptions options;
  options.argv = {worker.string(), arguments.job, "--describe"};
  for (const std::string& set : arguments.sets)
    options.argv.insert(options.argv.end(), {"--set", set});
  for (const std::string& set : more) options.argv.insert(options.argv.end(), {"--set", set});
  options.output = output;
  auto process = spawn(options);
  std::optional<ExitStatus> exit;
  while (process && !(exit = poll_exit(*process))) ::usleep(5000);
  auto text = read_file(output);
  ::unlink(output.c_str());
  if (!process) return process.error();
  // Libraries may have printed before it.
  const std::size_t start = text ? text->rfind("\n{") : std::string::npos;
  json object = json::parse(
      start == std::string::npos ? text ? *text : "" : text->substr(start + 1), nullptr, false);
  if (exit->code != 0 || !object.is_object())
    return error(Code::kInvalid, "{}", text ? *text : "surefoot-worker printed nothing");
  return object;
}

// A job for GPUs may be written where there are none. What it needs is then asked for as if it ran
// on processors, which only what decides the bits depends on.
Result<json> describe(const ValidateArguments& arguments, const config::Job& job) {
  auto needs = describe(arguments, std::vector<std::string>{});
  const bool refused = !needs && needs.error().code == Code::kInvalid &&
                       needs.error().message.find("resources.device: ") != std::string::npos;
  if (!refused || job.resources().device() != config::Resources::cuda) return needs;
  needs = describe(arguments,
                   std::vector<std::string>{"resources.device=cpu", "resources.devices=[]",
                                            "train.precision=fp32", "train.communicate_in=fp32"});
  if (needs) {
    for (const char* key : {"numerics_id", "training_hash", "training_lines"}) needs->erase(key);
  }
  return needs;
}

// Why the job would not start on this machine, and what is not as it should be.
std::vector<std::string> warnings_of(const config::Job& job) {
  const doctor::LaunchCheck check =
      doctor::look_before_launch(doctor::gpu_need_of(job.resources(), visible_devices(),
                                                     job.resources().workers_per_node().max()),
                                 program_directory(), doctor::kGpuPatience);
  std::vector<std::string> warnings = check.warnings;
  if (!check.faults.empty())
    warnings.insert(warnings.begin(),
                    "the job would not start on this machine: " + doctor::first_fault(check));
  return warnings;
}

}  // namespace

int validate_verb(const ValidateArguments& arguments) {
  if (arguments.schema) {
    std::printf("%s\n", json_schema().c_str());
    return kExitOk;
  }
  LoadOptions options;
  options.sets = arguments.sets;
  const LoadOutcome outcome = load_job(arguments.job, options);
  if (!outcome.faults.empty()) {
    if (arguments.json) std::printf("%s\n", invalid_job_json(outcome.faults).dump().c_str());
    return complain_about(outcome.faults);
  }
  const config::Job& job = outcome.job.job;
  const std::vector<std::string> warnings = warnings_of(job);
  const auto needs = describe(arguments, job);
  if (!needs && needs.error().code != Code::kNotFound) {
    std::fprintf(stderr, "surefoot: the model or its data cannot be used: %s\n",
                 needs.error().message.c_str());
    return kExitWrongUse;
  }
  if (arguments.json) {
    std::printf("%s\n", json{{"valid", true},
                             {"faults", json::array()},
                             {"warnings", warnings},
                             {"needs", needs ? *needs : json(nullptr)}}
                            .dump()
                            .c_str());
    return kExitOk;
  }
  std::printf("%s is a valid job file.\n", arguments.job.c_str());
  for (const std::string& warning : warnings) std::printf("  warning       %s\n", warning.c_str());
  if (needs) {
    std::fputs(needs_screen(*needs, job.resources().workers_per_node().max()).c_str(), stdout);
  } else {
    std::printf("What it needs is not known: %s\n", needs.error().message.c_str());
  }
  return kExitOk;
}

}  // namespace surefoot
