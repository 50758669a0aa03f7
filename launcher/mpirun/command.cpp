#include "launcher/mpirun/command.h"

#include <fmt/format.h>

#include <string_view>

#include "configs/job_directory.h"

namespace surefoot {

SpawnOptions mpirun_command(const GangSpec& spec) {
  const std::string own_files = attempt_folder(spec.arena_folder, spec.attempt).string();
  const std::filesystem::path logs = JobDirectory{spec.job_directory}.attempt_logs(spec.attempt);
  SpawnOptions options;
  options.argv = {"mpirun"};
  if (spec.root) options.argv.push_back("--allow-run-as-root");
  const std::vector<std::string> fixed = {"--oversubscribe", "--bind-to", "none", "-np",
                                          std::to_string(spec.workers)};
  options.argv.insert(options.argv.end(), fixed.begin(), fixed.end());
  const std::pair<const char*, std::string> parameters[] = {
      {"mpi_yield_when_idle", "1"},
      {"odls_base_sigkill_timeout", "0"},
      {"pml", "ob1"},
      {"btl", "self,vader,tcp"},
      {"btl_vader_backing_directory", own_files},
      {"orte_tmpdir_base", own_files},
  };
  for (const auto& [key, value] : parameters)
    options.argv.insert(options.argv.end(), {"--mca", key, value});
  options.argv.insert(options.argv.end(), {spec.program.string(), spec.job_file.string(), "--dir",
                                           spec.job_directory.string()});
  if (spec.accept_changes) options.argv.push_back("--accept-changes");

  options.environment = {
      fmt::format("SUREFOOT_ATTEMPT={}", spec.attempt),
      fmt::format("SUREFOOT_JOB_DIR={}", spec.job_directory.string()),
      fmt::format("SUREFOOT_LOG_DIR={}", logs.string()),
      fmt::format("SUREFOOT_SUPERVISOR={}", spec.supervisor_pid),
      fmt::format("SUREFOOT_FAULTS={}", spec.faults),
      fmt::format("SUREFOOT_KNOWN_STEP={}", spec.known_step),
  };
  options.dropped = kept_from_workers();
  options.output = (logs / "mpirun.log").string();
  options.directory = spec.job_directory.string();
  return options;
}

bool belongs_to_gang(std::string_view environ_block, const std::filesystem::path& job_directory,
                     Attempt attempt) {
  const std::string job = fmt::format("SUREFOOT_JOB_DIR={}", job_directory.string());
  const std::string number = fmt::format("SUREFOOT_ATTEMPT={}", attempt);
  return has_entry(environ_block, job) && (attempt.value == 0 || has_entry(environ_block, number));
}

}  // namespace surefoot
