#include "tests/replay/runner.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>

namespace surefoot::replay {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using nlohmann::json;

constexpr Duration kPatience = 1h;
constexpr Duration kTick = 10ms;
constexpr const char* kNoticeFile = "/run/goes";  // each host has its own /run

// 24 micro-batches for up to eight workers; timings short enough that a minute holds several
// losses.
const char* const kJob = R"(
name: replay
model: {kind: mlp, hidden: [1000, 1000], dropout: 0.1}
data: {kind: synthetic, samples: 1000, shape: [16], classes: 4}
train:
  max_steps: 100
  global_batch_size: 48
  micro_batch_size: 2
  optimizer: {kind: adamw, lr: 1e-3, weight_decay: 0.1}
  grad_clip: 1.0
  seed: 3
checkpoint: {interval: 1s, keep: 2}
recovery: {hang_timeout: 2m, heartbeat_timeout: 3s, grow_after: 1s, node_backoff: 0s, backoff: 200ms,
           notices: [signal, file], notice_file: /run/goes}
)";

json report_in(const std::string& output) {
  json report;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("{")) continue;
    json object = json::parse(line, nullptr, false);
    if (object.is_object()) report = std::move(object);
  }
  return report;
}

Result<json> report_of(const cluster::CommandResult& result, const std::string& name) {
  json report = report_in(result.output);
  if (result.exit_code == 0 && report.is_object()) return report;
  return error(Code::kRestart, "the job \"{}\" ended with exit code {}{}:\n{}", name,
               result.exit_code, result.timed_out ? " (it took too long)" : "", result.output);
}

double seconds_since(Time at) {
  return seconds(now() - at);
}

}  // namespace

Result<std::unique_ptr<Runner>> Runner::start(int hosts, const std::string& folder) {
  std::unique_ptr<Runner> runner(new Runner);
  runner->hosts_ = hosts;
  runner->up_.assign(static_cast<std::size_t>(hosts), true);
  std::error_code problem;
  if (folder.empty()) {
    std::string form = (fs::temp_directory_path() / "surefoot-replay-XXXXXX").string();
    if (::mkdtemp(form.data()) == nullptr)
      return error(Code::kRetry, "cannot make a folder {}", form);
    runner->folder_ = form;
    runner->temporary_ = true;
  } else {
    runner->folder_ = fs::absolute(folder).lexically_normal().string();
    if (fs::exists(folder) || !fs::create_directories(folder, problem))
      return error(Code::kInvalid, "{} must be a folder that can be made", folder);
  }
  SUREFOOT_TRY(write_file_atomically(runner->folder_ + "/job.yaml", kJob));
  SUREFOOT_ASSIGN(runner->cluster_,
                  cluster::Cluster::start({hosts + 1, {runner->folder_, program_directory()}}));
  return runner;
}

Runner::~Runner() {
  cluster_.reset();
  std::error_code ignored;
  if (temporary_) fs::remove_all(folder_, ignored);
}

std::vector<std::string> Runner::command(const std::string& name, int steps) const {
  return {program_directory() + "/surefoot",
          "run",
          folder_ + "/job.yaml",
          "--dir",
          folder_ + "/" + name,
          "--json",
          "--set",
          fmt::format("train.max_steps={}", steps)};
}

Result<json> Runner::run_alone(int steps, const std::string& name) {
  return report_of(cluster_->host(hosts_).run(command(name, steps), {{}, "", kPatience}), name);
}

bool Runner::has_a_step(const std::string& name) const {
  const auto metrics = read_file(folder_ + "/" + name + "/metrics/metrics.jsonl");
  return metrics && metrics->find("\"kind\":\"train\"") != std::string::npos;
}

Status Runner::act(const Action& action) {
  const cluster::Host host = cluster_->host(action.host);
  const auto number = static_cast<std::size_t>(action.host);
  switch (action.kind) {
    case Action::Kind::kNotice: {
      const auto told =
          host.run({"sh", "-c", fmt::format("echo {:.3f} > {}", action.notice, kNoticeFile)});
      if (told.exit_code == 0) return {};
      return error(Code::kRestart, "{} cannot be told: {}", host.name(), told.output);
    }
    case Action::Kind::kLoss:
      up_[number] = false;
      return host.kill();
    case Action::Kind::kReturn:
      up_[number] = true;
      return host.reboot();
  }
  return {};
}

Result<Outcome> Runner::run_through(const Plan& plan, int steps) {
  std::vector<bool> wanted(static_cast<std::size_t>(hosts_), false);
  for (const int host : plan.at_start) wanted[static_cast<std::size_t>(host)] = true;
  std::string list;
  for (int host = 0; host < hosts_; ++host) {
    list += (list.empty() ? "" : ", ") + cluster_->host(host).name();
    if (!wanted[static_cast<std::size_t>(host)])
      SUREFOOT_TRY(act({0, Action::Kind::kLoss, host, 0}));
  }
  std::vector<std::string> argv = command("replayed", steps);
  argv.insert(argv.end(), {"--set", "resources.hosts=[" + list + "]", "--set",
                           fmt::format("resources.num_nodes=1:{}", hosts_)});
  const Time launched = now();
  SUREFOOT_ASSIGN(cluster::Running job, cluster_->host(hosts_).start(argv, {}));
  const auto over = [&] { return report_in(job.output()).is_object(); };
  const auto pause = [] { std::this_thread::sleep_for(kTick); };
  while (!has_a_step("replayed") && !over()) {
    if (now() > launched + kPatience)
      return error(Code::kRestart, "no step was finished:\n{}", job.output());
    pause();
  }
  Outcome outcome;
  outcome.to_first_step = seconds_since(launched);
  const Time begin = now();
  for (const Action& action : plan.actions) {
    while (seconds_since(begin) < action.at && !over()) pause();
    if (over()) break;
    outcome.latest = std::max(outcome.latest, seconds_since(begin) - action.at);
    SUREFOOT_TRY(act(action));
    ++outcome.played;
    std::printf("  %s\n", to_text(action).c_str());
    std::fflush(stdout);
  }
  while (seconds_since(begin) < plan.seconds && !over()) pause();
  for (int host = 0; host < hosts_ && !over(); ++host) {
    if (!up_[static_cast<std::size_t>(host)])
      SUREFOOT_TRY(act({0, Action::Kind::kReturn, host, 0}));
  }
  SUREFOOT_ASSIGN(outcome.report, report_of(job.wait(now() + kPatience), "replayed"));
  return outcome;
}

}  // namespace surefoot::replay
