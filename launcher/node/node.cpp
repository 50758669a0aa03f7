#include "launcher/node/node.h"

#include <signal.h>
#include <sys/signalfd.h>

#include <cstdio>
#include <cstdlib>

#include "checkpoint/key_file.h"
#include "checkpoint/store/open_store.h"
#include "common/file.h"
#include "common/log.h"
#include "configs/job.h"
#include "configs/job_directory.h"
#include "launcher/doctor/gpu_checks.h"
#include "launcher/metrics/metrics.h"
#include "launcher/node/gpu_watch.h"
#include "launcher/nodes/start_request.h"
#include "launcher/notice/watchers.h"

namespace surefoot {
namespace {

constexpr int kExitJobFile = 64;
constexpr int kExitMachine = 66;
constexpr const char* kUsage =
    "usage: surefoot-node JOB.yaml --dir DIR [--set KEY=VALUE]... [--supervised]\n"
    "       surefoot-node --from-stdin\n"
    "       surefoot-node JOB.yaml --look-at-gpus [--workers N]\n"
    "       surefoot-node --sample-gpus DEVICE,...";
// Over ssh, with a person's hands out of it.
constexpr Duration kRequestPatience = std::chrono::seconds(30);
// Until the service that was asked for answers.
constexpr Duration kStartPatience = std::chrono::seconds(25);
// As long as can be, since a machine is left out by it: below what its check has
// (recovery.check_timeout).
constexpr Duration kLookPatience = std::chrono::seconds(40);
// For work that was in hand at the end. Shorter than who starts the next service is patient.
constexpr Duration kEndPatience = std::chrono::seconds(3);

struct NodeOptions {
  std::string job_file;
  std::string directory;
  std::vector<std::string> sets;
  bool supervised = false;
  bool look_at_gpus = false;
  int workers = 0;  // 0: as the job file says
};

Result<NodeOptions> parse_options(int argc, char** argv) {
  NodeOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool takes_value = argument == "--dir" || argument == "--set" || argument == "--workers";
    if (takes_value && i + 1 == argc)
      return error(Code::kInvalid, "{} needs a value\n{}", argument, kUsage);
    if (argument == "--dir") {
      options.directory = argv[++i];
    } else if (argument == "--set") {
      options.sets.emplace_back(argv[++i]);
    } else if (argument == "--workers") {
      options.workers = std::atoi(argv[++i]);
    } else if (argument == "--look-at-gpus") {
      options.look_at_gpus = true;
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

// Keeps what lies in the arena's folder for workers and for the next service. Nothing, where nobody
// has placed it.
std::function<void(bool)> keep_node_files(const std::filesystem::path& arena_folder) {
  auto files = std::make_shared<NodeFiles>();
  read_node_files(arena_folder, *files);
  return [files, arena_folder](bool anew) {
    // First, as somebody may have placed newer ones already.
    read_node_files(arena_folder, *files);
    if (!anew || files->job.empty()) return;
    if (const Status placed = place_node_files(arena_folder, *files); !placed)
      spdlog::error("what workers need is not there again: {}", placed.error().message);
  };
}

// Those that came with the request to start a service here, if one did; else the supervisor's own
// file.
Result<ServiceKeys> find_keys(const std::filesystem::path& brought, const JobDirectory& directory) {
  auto keys = read_service_keys(brought);
  if (keys || keys.error().code != Code::kNotFound) return keys;
  return read_service_keys(directory.service_keys());
}

Result<ServiceSettings> settings_of(const NodeOptions& options, const LoadedJob& loaded) {
  const JobDirectory directory = JobDirectory::of(loaded, options.directory);
  const config::Job& job = loaded.job;
  ServiceSettings settings;
  SUREFOOT_ASSIGN(settings.job_id, directory.job_id(job.name()));
  settings.job = job;
  settings.arena_folder = arena_folder(job.checkpoint().arena(), settings.job_id);
  settings.final_folder = directory.final_model();
  settings.job_directory = directory.root;
  settings.describe = {(std::filesystem::path(program_directory()) / "surefoot-worker").string(),
                       loaded.file, "--dir", directory.root.string()};
  for (const std::string& set : options.sets)
    settings.describe.insert(settings.describe.end(), {"--set", set});
  if (job.resources().device() == config::Resources::cuda) {
    const std::string program =
        (std::filesystem::path(program_directory()) / "surefoot-node").string();
    settings.look_at_gpus = {program, loaded.file, "--look-at-gpus"};
    for (const std::string& set : options.sets)
      settings.look_at_gpus.insert(settings.look_at_gpus.end(), {"--set", set});
    settings.gpus = [watch = std::make_shared<GpuWatch>(job.resources(), program)](int workers) {
      return watch->look(workers);
    };
  }
  settings.history_file = directory.service_history() / (host_name() + ".json");
  settings.supervised = options.supervised;
  if (auto listen = read_file(node_listen(settings.arena_folder)); listen)
    settings.listen = *listen;
  settings.placed_files = keep_node_files(settings.arena_folder);
  settings.read_keys = [brought = node_keys(settings.arena_folder), directory] {
    return find_keys(brought, directory);
  };
  settings.metrics = [metrics = std::make_shared<Metrics>(directory.metrics())](
                         const std::vector<StepRecord>& records) { metrics->append(records); };
  settings.open_store = [job, directory] { return open_store(job, directory, false); };
  SUREFOOT_ASSIGN(settings.encryption_keys, read_keys(job.checkpoint()));
  return settings;
}

int serve(ServiceSettings settings) {
  settings.signals = block_signals();
  // Outlives the service, which asks it. Its threads start when this is the service of the job.
  std::unique_ptr<notice::Watchers> watchers;
  if (!settings.notices) settings.notices = [&watchers](bool safe) { return watchers->look(safe); };
  const std::string job = settings.job.name();
  const std::string id = settings.job_id;
  auto service = Service::start(settings);
  if (!service && service.error().code == Code::kStale) {
    spdlog::info("another service of this job runs: {}", service.error().message);
    return 0;
  }
  if (!service) {
    spdlog::error("{}", service.error().message);
    return kExitMachine;
  }
  auto started = notice::Watchers::start(settings.job.recovery(), host_name());
  if (!started) {
    spdlog::error("{}", started.error().message);
    return kExitJobFile;
  }
  watchers = std::move(*started);
  spdlog::info("serving job {} ({}), process {}", job, id, ::getpid());
  spdlog::info("ended: {}", (*service)->run());
  if (!(*service)->close(now() + kEndPatience)) {
    spdlog::warn("something in hand hangs (a disk that does not answer?) and is left as it is");
    std::_Exit(0);
  }
  return 0;
}

// A program of ServiceSettings::look_at_gpus.
int look_at_gpus(const config::Resources& resources, int workers) {
  const int wanted = workers > 0 ? workers : resources.workers_per_node().max();
  const doctor::LaunchCheck check =
      doctor::look_before_launch(doctor::gpu_need_of(resources, visible_devices(), wanted),
                                 program_directory(), kLookPatience);
  std::string text;
  if (!check.faults.empty()) text += "fault " + doctor::first_fault(check) + "\n";
  for (const std::string& warning : check.warnings) text += "warning " + warning + "\n";
  std::fputs((text + "done\n").c_str(), stdout);
  return std::fflush(stdout) == 0 ? 0 : kExitMachine;
}

// The other end has the reason on standard error, in one line.
int start_from_stdin() {
  const auto request = receive_start_request(0, now() + kRequestPatience);
  const auto reply =
      request ? start_here(*request, now() + kStartPatience) : Result<StartReply>(request.error());
  if (!reply) {
    std::fprintf(stderr, "%s\n", reply.error().message.c_str());
    return reply.error().code == Code::kRetry ? kExitMachine : kExitJobFile;
  }
  std::fputs(to_text(*reply).c_str(), stdout);
  return std::fflush(stdout) == 0 ? 0 : kExitMachine;
}

}  // namespace

int run_node(int argc, char** argv, const std::function<void(ServiceSettings&)>& adjust) {
  if (argc == 2 && std::string_view(argv[1]) == "--from-stdin") return start_from_stdin();
  if (argc == 3 && std::string_view(argv[1]) == "--sample-gpus") return sample_gpus(argv[2], 0, 1);
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
  if (options->look_at_gpus) return look_at_gpus(outcome.job.job.resources(), options->workers);
  auto settings = settings_of(*options, outcome.job);
  if (!settings) {
    spdlog::error("{}", settings.error().message);
    return kExitMachine;
  }
  if (adjust) adjust(*settings);
  return serve(*std::move(settings));
}

}  // namespace surefoot
