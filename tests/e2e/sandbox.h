// A job in a folder of its own, run by the real programs, and what is left of it afterwards.
//
// Everything a sandbox starts it ends, by process id, when it is destroyed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/process.h"

namespace surefoot::e2e {

struct RunResult {
  int exit_code = -1;   // 128 + signal when a signal ended it
  std::string output;   // standard output and error
  nlohmann::json json;  // the last line of the output that is a JSON object; null without one
  double seconds = 0;
  [[nodiscard]] std::string text(const std::string& key) const;
  [[nodiscard]] double number(const std::string& key) const;
};

class Sandbox {
 public:
  // `job`: YAML text; `{source}` in it stands for the project's root.
  explicit Sandbox(const std::string& job);
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;

  [[nodiscard]] const std::filesystem::path& root() const { return root_; }
  [[nodiscard]] std::filesystem::path job_file() const { return root_ / "job.yaml"; }
  [[nodiscard]] std::filesystem::path directory() const { return root_ / "run"; }  // of the job
  [[nodiscard]] std::filesystem::path arena() const;  // the job's folder in shared memory

  // `surefoot run job.yaml --dir ... --json` and these arguments, to its end.
  RunResult run(std::vector<std::string> arguments = {},
                const std::vector<std::string>& environment = {});
  // Any program of the project (argv[0] without a path: beside this one).
  RunResult command(std::vector<std::string> argv,
                    const std::vector<std::string>& environment = {});
  // Starts without waiting, to be killed or waited for.
  ProcessId start(std::vector<std::string> argv, const std::vector<std::string>& environment = {});
  RunResult wait(const ProcessId& process);
  [[nodiscard]] std::vector<std::string> run_command(std::vector<std::string> arguments) const;

  // The loss line of every step as printed in metrics.jsonl, by the last attempt that finished it.
  [[nodiscard]] std::map<std::int64_t, std::string> losses() const;
  [[nodiscard]] std::int64_t newest_step() const;  // in metrics.jsonl; 0: none

  // Ends every process of the job at once (SIGKILL): those that name its folder.
  Status end_all(Time deadline);
  // All regular files below a folder, one after the other.
  [[nodiscard]] static std::string everything_in(const std::filesystem::path& folder);

  // What the job has left behind that it must not: processes that name its folder, its shared
  // memory, Open MPI's files. Empty: nothing.
  [[nodiscard]] std::vector<std::string> leftovers() const;

 private:
  std::filesystem::path root_;
  std::vector<ProcessId> started_;
  std::vector<std::string> before_;  // Open MPI's files that were there already
};

[[nodiscard]] std::filesystem::path program(const std::string& name);

// Polls until `condition` holds; false after `patience`.
template <class Condition>
[[nodiscard]] bool eventually(Condition condition, std::chrono::seconds patience);
void pause_briefly();

template <class Condition>
bool eventually(Condition condition, std::chrono::seconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    pause_briefly();
  }
  return true;
}

}  // namespace surefoot::e2e
