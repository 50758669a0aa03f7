// surefoot-node: the checkpoint service of one job on this node (checkpoint/service.h), as a
// process of its own.
//
//   surefoot-node JOB.yaml --dir DIR [--set KEY=VALUE]... [--supervised]
//
// Started detached by `surefoot run` or by the first worker of a node. Log: standard error. Exit
// codes: 0 it has ended as it should, or another service of the job runs already; 64 the job file;
// 66 the machine (arena folder, socket).
#include <signal.h>
#include <sys/signalfd.h>

#include <cstdio>

#include "checkpoint/key_file.h"
#include "checkpoint/service.h"
#include "checkpoint/store/open_store.h"
#include "common/log.h"
#include "configs/job.h"
#include "configs/job_directory.h"
#include "launcher/metrics/metrics.h"

namespace surefoot {
namespace {

constexpr int kExitJobFile = 64;
constexpr int kExitMachine = 66;
constexpr const char* kUsage =
    "usage: surefoot-node JOB.yaml --dir DIR [--set KEY=VALUE]... [--supervised]";

struct NodeOptions {
  std::string job_file;
  std::string directory;
  std::vector<std::string> sets;
  bool supervised = false;
};

Result<NodeOptions> parse_options(int argc, char** argv) {
  NodeOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool takes_value = argument == "--dir" || argument == "--set";
    if (takes_value && i + 1 == argc)
      return error(Code::kInvalid, "{} needs a value\n{}", argument, kUsage);
    if (argument == "--dir") {
      options.directory = argv[++i];
    } else if (argument == "--set") {
      options.sets.emplace_back(argv[++i]);
    } else if (argument == "--supervised") {
      options.supervised = true;
    } else if (argument.starts_with("-") || !options.job_file.empty()) {
      return error(Code::kInvalid, "unknown argument {}\n{}", argument, kUsage);
    } else {
      options.job_file = argument;
    }
  }
  if (options.job_file.empty()) return error(Code::kInvalid, "{}", kUsage);
  return options;
}

// Before any thread is made, so that none takes them.
int block_signals() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  return ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

// Writes metrics/ from the finished steps. The folder is made with the first of them.
class Metrics {
 public:
  explicit Metrics(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void append(const std::vector<StepRecord>& records) {
    if (!writer_) {
      auto opened = MetricsWriter::open(folder_);
      if (!opened) return complain(opened.error());
      writer_ = std::move(*opened);
    }
    using std::chrono::duration;
    const double wall =
        duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const auto monotonic = static_cast<double>(now().time_since_epoch().count()) * 1e-9;
    std::vector<MetricRecord> metrics;
    for (const StepRecord& record : records) {
      const double age = monotonic - static_cast<double>(record.finished_ns) * 1e-9;
      metrics.push_back({record, wall - age});
    }
    if (auto written = writer_->append(metrics); !written) complain(written.error());
  }

 private:
  void complain(const Error& failed) {
    if (!std::exchange(complained_, true))
      spdlog::warn("metrics of some steps are lost: {}", failed.message);
  }
  std::filesystem::path folder_;
  std::unique_ptr<MetricsWriter> writer_;
  bool complained_ = false;
};

int run(int argc, char** argv) {
  auto options = parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr, "%s\n", options.error().message.c_str());
    return kExitJobFile;
  }
  init_log("node@" + host_name());
  const LoadOutcome outcome =
      load_job(options->job_file, {.sets = options->sets, .check_files = false});
  for (const Fault& fault : outcome.faults) spdlog::error("{}", fault.text());
  if (!outcome.faults.empty()) return kExitJobFile;
  const JobDirectory directory = JobDirectory::of(outcome.job, options->directory);
  const config::Job& job = outcome.job.job;
  auto id = directory.job_id(job.name());
  if (!id) {
    spdlog::error("{}", id.error().message);
    return kExitMachine;
  }

  Metrics metrics(directory.metrics());
  ServiceSettings settings;
  settings.job = job;
  settings.job_id = *id;
  settings.arena_folder = arena_folder(job.checkpoint().arena(), *id);
  settings.final_folder = directory.final_model();
  settings.supervised = options->supervised;
  settings.signals = block_signals();
  settings.metrics = [&metrics](const std::vector<StepRecord>& records) {
    metrics.append(records);
  };
  settings.open_store = [job, directory] { return open_store(job, directory, false); };
  auto keys = read_keys(job.checkpoint());
  if (!keys) {
    spdlog::error("{}", keys.error().message);
    return kExitMachine;
  }
  settings.keys = std::move(*keys);
  auto service = Service::start(std::move(settings));
  if (!service && service.error().code == Code::kStale) {
    spdlog::info("another service of this job runs: {}", service.error().message);
    return 0;
  }
  if (!service) {
    spdlog::error("{}", service.error().message);
    return kExitMachine;
  }
  spdlog::info("serving job {} ({}), process {}", job.name(), *id, ::getpid());
  spdlog::info("ended: {}", (*service)->run());
  return 0;
}

}  // namespace
}  // namespace surefoot

int main(int argc, char** argv) {
  return surefoot::run(argc, argv);
}
