#include "tests/e2e/sandbox.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/file.h"
#include "common/test_paths.h"

namespace surefoot::e2e {
namespace {

namespace fs = std::filesystem;

// Files that Open MPI leaves in shared places after a crash.
std::vector<std::string> open_mpi_files() {
  std::vector<std::string> found;
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("vader_segment.") || name.starts_with("ompi.") ||
          name.starts_with("openmpi-sessions")) {
        found.push_back(entry.path());
      }
    }
  }
  return found;
}

// Processes (but ourselves) whose command line or environment names `folder`.
std::vector<std::string> processes_naming(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    if (!std::all_of(pid.begin(), pid.end(), ::isdigit) || pid == std::to_string(::getpid()))
      continue;
    auto line = read_file(entry.path() / "cmdline");
    auto environment = read_file(entry.path() / "environ");
    const bool names = (line && line->find(folder) != std::string::npos) ||
                       (environment && environment->find(folder) != std::string::npos);
    if (!names) continue;
    std::string shown = line ? *line : "?";
    std::replace(shown.begin(), shown.end(), '\0', ' ');
    found.push_back("process " + pid + ": " + shown);
  }
  return found;
}

}  // namespace

fs::path program(const std::string& name) {
  return programs_folder() / name;
}
void pause_briefly() {
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

std::string RunResult::text(const std::string& key) const {
  return json.is_object() && json.contains(key) && json[key].is_string()
             ? json[key].get<std::string>()
             : "";
}
double RunResult::number(const std::string& key) const {
  return json.is_object() && json.contains(key) && json[key].is_number() ? json[key].get<double>()
                                                                         : -1;
}

Sandbox::Sandbox(const std::string& job) : before_(open_mpi_files()) {
  std::string form = (fs::temp_directory_path() / "surefoot-e2e-XXXXXX").string();
  SUREFOOT_CHECK(::mkdtemp(form.data()) != nullptr);
  root_ = form;
  std::string text = job;
  const std::string mark = "{source}";
  for (std::size_t at; (at = text.find(mark)) != std::string::npos;)
    text.replace(at, mark.size(), source_folder().string());
  std::ofstream(job_file()) << text;
}

Sandbox::~Sandbox() {
  // A test that failed may leave a supervisor, a gang or a service behind: they are this sandbox's
  // own, known by its folder.
  const auto deadline = now() + std::chrono::seconds(10);
  (void)end_processes(started_, deadline);
  (void)end_all(deadline);
  std::error_code ignored;
  fs::remove_all(arena(), ignored);
  fs::remove_all(root_, ignored);
}

fs::path Sandbox::arena() const {
  auto content = read_file(directory() / "job.json");
  if (!content) return root_ / "no-arena";
  const auto json = nlohmann::json::parse(*content, nullptr, false);
  if (!json.is_object()) return root_ / "no-arena";
  return fs::path("/dev/shm") / ("surefoot-" + json.value("id", "none"));
}

std::vector<std::string> Sandbox::run_command(std::vector<std::string> arguments) const {
  std::vector<std::string> argv = {"surefoot",           "run",   job_file().string(), "--dir",
                                   directory().string(), "--json"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

RunResult Sandbox::run(std::vector<std::string> arguments,
                       const std::vector<std::string>& environment) {
  return command(run_command(std::move(arguments)), environment);
}

RunResult Sandbox::command(std::vector<std::string> argv,
                           const std::vector<std::string>& environment) {
  return wait(start(std::move(argv), environment));
}

ProcessId Sandbox::start(std::vector<std::string> argv,
                         const std::vector<std::string>& environment) {
  if (argv[0].find('/') == std::string::npos && fs::exists(program(argv[0])))
    argv[0] = program(argv[0]).string();
  SpawnOptions options;
  options.argv = std::move(argv);
  options.environment = environment;
  options.output = (root_ / ("output-" + std::to_string(started_.size()))).string();
  auto process = spawn(options);
  EXPECT_TRUE(process) << (process ? "" : process.error().message);
  started_.push_back(process ? *process : ProcessId{});
  return started_.back();
}

RunResult Sandbox::wait(const ProcessId& process) {
  RunResult result;
  const auto began = std::chrono::steady_clock::now();
  std::optional<ExitStatus> exit;
  while (!(exit = poll_exit(process))) pause_briefly();
  result.exit_code = exit->signal != 0 ? 128 + exit->signal : exit->code;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const auto at = std::find(started_.begin(), started_.end(), process) - started_.begin();
  auto output = read_file(root_ / ("output-" + std::to_string(at)));
  result.output = output ? *output : "";
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("{")) continue;
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) result.json = json;
  }
  return result;
}

std::map<std::int64_t, std::string> Sandbox::losses() const {
  std::map<std::int64_t, std::string> found;
  std::ifstream in(directory() / "metrics" / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("loss") || !json.contains("step")) continue;
    found[json["step"].get<std::int64_t>()] = json["loss"].dump();
  }
  return found;
}

std::int64_t Sandbox::newest_step() const {
  const auto all = losses();
  return all.empty() ? 0 : all.rbegin()->first;
}

Status Sandbox::end_all(Time deadline) {
  std::vector<ProcessId> own;
  for (const std::string& line : processes_naming(root_.string())) {
    if (auto process = process_of(std::atoi(line.c_str() + std::string("process ").size())))
      own.push_back(*process);
  }
  return end_processes(own, deadline);
}

std::string Sandbox::everything_in(const fs::path& folder) {
  std::string text;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    if (auto content = read_file(entry.path())) text += *content;
  }
  return text;
}

std::vector<std::string> Sandbox::leftovers() const {
  std::vector<std::string> found = processes_naming(root_.string());
  if (fs::exists(arena())) found.push_back(arena().string());
  for (const std::string& file : open_mpi_files()) {
    if (std::find(before_.begin(), before_.end(), file) == before_.end()) found.push_back(file);
  }
  return found;
}

}  // namespace surefoot::e2e
