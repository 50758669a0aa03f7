#include "launcher/node/node.h"

#include <signal.h>
#include <sys/signalfd.h>

#include <cstdio>

#include "checkpoint/key_file.h"
#include "checkpoint/service_client.h"
#include "checkpoint/store/open_store.h"
#include "common/log.h"
#include "configs/job.h"
#include "configs/job_directory.h"
#include "launcher/metrics/metrics.h"
#include "launcher/notice/watchers.h"

namespace surefoot {
namespace {

constexpr int kExitJobFile = 64;
constexpr int kExitMachine = 66;
constexpr const char* kUsage =
    "usage: surefoot-node JOB.yaml --dir DIR [--set KEY=VALUE]... [--supervised] "
    "[--listen ADDRESS] [--keys-from-stdin]";
// Over ssh, with a person's hands out of it.
constexpr Duration kKeysPatience = std::chrono::seconds(30);
// Of asking another service that has just started.
constexpr Duration kOtherPatience = std::chrono::seconds(5);

struct NodeOptions {
  std::string job_file;
  std::string directory;
  std::string listen = "127.0.0.1";
  std::vector<std::string> sets;
  bool supervised = false;
  bool keys_from_stdin = false;
};

Result<NodeOptions> parse_options(int argc, char** argv) {
  NodeOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool takes_value = argument == "--dir" || argument == "--set" || argument == "--listen";
    if (takes_value && i + 1 == argc)
      return error(Code::kInvalid, "{} needs a value\n{}", argument, kUsage);
    if (argument == "--dir") {
      options.directory = argv[++i];
    } else if (argument == "--set") {
      options.sets.emplace_back(argv[++i]);
    } else if (argument == "--listen") {
      options.listen = argv[++i];
    } else if (argument == "--supervised") {
      options.supervised = true;
    } else if (argument == "--keys-from-stdin") {
      options.keys_from_stdin = true;
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

// For who has started this process from another machine.
void tell_endpoint(const std::string& endpoint) {
  std::printf("endpoint %s\n", endpoint.c_str());
  std::fflush(stdout);
}

std::string endpoint_of_other(const ServiceSettings& settings) {
  service::Request request;
  request.mutable_status()->set_records_from(~std::uint64_t{0});
  auto reply = ServiceClient(settings.arena_folder, settings.job_id)
                   .call(std::move(request), now() + kOtherPatience);
  return reply ? reply->status().endpoint() : std::string();
}

Result<ServiceSettings> settings_of(const NodeOptions& options, const LoadedJob& loaded) {
  const JobDirectory directory = JobDirectory::of(loaded, options.directory);
  const config::Job& job = loaded.job;
  ServiceSettings settings;
  SUREFOOT_ASSIGN(settings.job_id, directory.job_id(job.name()));
  settings.job = job;
  settings.arena_folder = arena_folder(job.checkpoint().arena(), settings.job_id);
  settings.final_folder = directory.final_model();
  settings.history_file = directory.service_history() / (host_name() + ".json");
  settings.supervised = options.supervised;
  settings.listen = options.listen;
  if (options.keys_from_stdin) {
    SUREFOOT_ASSIGN(const ServiceKeys keys, receive_service_keys(0, now() + kKeysPatience));
    settings.read_keys = [keys]() -> Result<ServiceKeys> { return keys; };
  } else {
    settings.read_keys = [file = directory.service_keys()] { return read_service_keys(file); };
  }
  settings.metrics = [metrics = std::make_shared<Metrics>(directory.metrics())](
                         const std::vector<StepRecord>& records) { metrics->append(records); };
  settings.open_store = [job, directory] { return open_store(job, directory, false); };
  SUREFOOT_ASSIGN(settings.encryption_keys, read_keys(job.checkpoint()));
  return settings;
}

int serve(ServiceSettings settings, bool tell) {
  settings.signals = block_signals();
  // Outlives the service, which asks it. Its threads start when this is the service of the job.
  std::unique_ptr<notice::Watchers> watchers;
  if (!settings.notices) settings.notices = [&watchers](bool safe) { return watchers->look(safe); };
  const std::string job = settings.job.name();
  const std::string id = settings.job_id;
  auto service = Service::start(settings);
  if (!service && service.error().code == Code::kStale) {
    spdlog::info("another service of this job runs: {}", service.error().message);
    if (tell) tell_endpoint(endpoint_of_other(settings));
    return 0;
  }
  if (service && tell && (*service)->endpoint().empty())
    service = error(Code::kInvalid, "cannot listen on {}", settings.listen);
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
  if (tell) tell_endpoint((*service)->endpoint());
  spdlog::info("serving job {} ({}), process {}", job, id, ::getpid());
  spdlog::info("ended: {}", (*service)->run());
  return 0;
}

}  // namespace

int run_node(int argc, char** argv, const std::function<void(ServiceSettings&)>& adjust) {
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
  auto settings = settings_of(*options, outcome.job);
  if (!settings) {
    spdlog::error("{}", settings.error().message);
    return kExitMachine;
  }
  if (adjust) adjust(*settings);
  return serve(*std::move(settings), options->keys_from_stdin);
}

}  // namespace surefoot
