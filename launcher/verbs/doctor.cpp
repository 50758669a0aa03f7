// Puts the checks of launcher/doctor/ together for a machine and a job.
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/arena.h"
#include "checkpoint/key_file.h"
#include "common/file.h"
#include "common/process.h"
#include "configs/store_url.h"
#include "launcher/doctor/gpu_checks.h"
#include "launcher/doctor/gpu_peers.h"
#include "launcher/doctor/hosts.h"
#include "launcher/doctor/links.h"
#include "launcher/doctor/machine.h"
#include "launcher/doctor/programs.h"
#include "launcher/doctor/run_checks.h"
#include "launcher/doctor/store_check.h"
#include "launcher/nodes/discovery.h"
#include "launcher/verbs/verbs.h"

namespace surefoot {
namespace {

namespace fs = std::filesystem;
using namespace doctor;
using nlohmann::json;

static_assert(kExitUnusable == kExitNoInput);

// The default of recovery.check_timeout, in which a service has to do the same.
constexpr Duration kDescribePatience = std::chrono::seconds(60);
constexpr Duration kReductionPatience = std::chrono::seconds(20);
// Of a bucket: some requests over a slow line, tried again, of which the last is to clear up.
constexpr Duration kBucketPatience = std::chrono::seconds(30);
constexpr Duration kOpeningPatience = std::chrono::seconds(12);
constexpr Duration kClearingUp = std::chrono::seconds(8);
constexpr int kMostRanks = 16;  // of the reduction, which is to take a second, not a minute

// Where no job is given, the worker's program is asked about this one.
constexpr const char* kSmallJob = R"(name: doctor
model: {kind: mlp, hidden: [4]}
data: {kind: synthetic, samples: 8, shape: [4], classes: 2}
train: {max_steps: 1, global_batch_size: 2, micro_batch_size: 2, optimizer: {kind: sgd, lr: 0.1}}
)";

// What programs leave behind lies here, and goes with it. In memory, where mpirun's files are to
// be.
class Scratch {
 public:
  Scratch() {
    const fs::path memory = "/dev/shm";
    const fs::path base =
        ::access(memory.c_str(), W_OK | X_OK) == 0 ? memory : fs::temp_directory_path();
    std::string form = (base / "surefoot-doctor-XXXXXX").string();
    if (::mkdtemp(form.data()) != nullptr) path_ = form;
  }
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

struct Subject {
  Scratch scratch;
  DoctorArguments arguments;
  fs::path programs = program_directory();
  bool has_job = false;
  fs::path job_file;
  config::Job job;  // empty without one
  JobDirectory directory;
  ProbeOpener open_store;

  [[nodiscard]] int workers() const {
    return has_job ? std::max(job.resources().workers_per_node().max(), 1) : 0;
  }
  [[nodiscard]] int workers_in_all() const {
    return has_job ? workers() * std::max(job.resources().num_nodes().max(), 1) : 0;
  }
  [[nodiscard]] GpuNeed gpu_need() const {
    return has_job ? gpu_need_of(job.resources(), visible_devices(), workers()) : GpuNeed();
  }
  [[nodiscard]] bool has_hosts() const {
    const config::Resources& resources = job.resources();
    return resources.hosts_size() > 0 || !resources.hostfile().empty() ||
           !resources.discovery_command().empty();
  }
  [[nodiscard]] std::string arena() const { return job.checkpoint().arena(); }
  // Of the job's checkpoints; empty: no folder.
  [[nodiscard]] fs::path checkpoints() const {
    const auto url = parse_store_url(job.checkpoint().to());
    return has_job && url && url->kind == StoreUrl::Kind::kFolder ? directory.checkpoints(job)
                                                                  : fs::path();
  }
};

// ---- the machine ----

void add_machine(const Subject& subject, std::vector<Check>& checks) {
  checks.push_back(
      {{"processors"}, kPatience, [&](const Asked& asked) {
         const ProcessorNeed need{subject.workers(), subject.job.resources().threads_per_worker()};
         asked.say(check_processors(look_at_processors("/"), need));
       }});
  checks.push_back({{"memory"}, kPatience, [](const Asked& asked) {
                      asked.say(check_memory(look_at_memory("/")));
                    }});
  checks.push_back({{"shared memory"}, kPatience, [&](const Asked& asked) {
                      asked.say(check_shared_memory(
                          look_at_shared_memory(subject.arena(), std::max(subject.workers(), 1))));
                    }});
  checks.push_back(
      {{"open files", "locked memory", "core files"}, kPatience, [&](const Asked& asked) {
         for (const Finding& finding : check_limits(look_at_limits("/"), subject.workers_in_all()))
           asked.say(finding);
       }});
  checks.push_back({{"logind"}, kPatience, [&](const Asked& asked) {
                      asked.say(check_logind(look_at_logind("/", subject.arena())));
                    }});
}

void add_links(const Subject& subject, std::vector<Check>& checks) {
  checks.push_back({{"rdma"}, kPatience, [](const Asked& asked) {
                      for (const Finding& finding : check_rdma(look_at_rdma("/")))
                        asked.say(finding);
                    }});
  checks.push_back({{"network"}, kPatience, [&](const Asked& asked) {
                      NetworkFacts facts = look_at_network("/");
                      facts.wanted = subject.job.resources().network();
                      facts.many_machines = subject.has_hosts();
                      facts.gpus = subject.job.resources().device() == config::Resources::cuda;
                      asked.say(check_network(facts));
                    }});
}

// ---- GPUs ----

void add_gpus(const Subject& subject, std::vector<Check>& checks) {
  for (Check& check : gpu_checks(subject.gpu_need(), subject.programs, kGpuPatience))
    checks.push_back(std::move(check));
}

// ---- programs ----

void add_programs(const Subject& subject, std::vector<Check>& checks) {
  checks.push_back(
      {{"programs"}, kPatience, [&](const Asked& asked) {
         std::vector<std::string> missing;
         for (const char* name : {"surefoot-node", "surefoot-worker", "surefoot-rsh"}) {
           if (::access((subject.programs / name).c_str(), X_OK) != 0) missing.emplace_back(name);
         }
         asked.say(check_programs(subject.programs.string(), missing));
       }});
  checks.push_back({{"libraries"}, kPatience, [&](const Asked& asked) {
                      const auto libraries =
                          list_libraries(subject.programs / "surefoot-worker", asked);
                      asked.say(libraries ? check_libraries(*libraries)
                                          : not_checked("libraries", libraries.error().message));
                    }});
  checks.push_back({{"mpirun"}, kPatience, [&](const Asked& asked) {
                      asked.say(check_mpirun(look_at_mpirun(subject.scratch.path(), asked)));
                    }});
  checks.push_back({{"ssh"}, kPatience, [&](const Asked& asked) {
                      const std::string ssh =
                          subject.has_job ? subject.job.resources().ssh() : "ssh";
                      asked.say(check_ssh(look_at_ssh(ssh, asked), subject.has_hosts()));
                    }});
}

// Each apart, when nothing else runs any more: they measure.
Check reduction(const Subject& subject) {
  return {{"reduction"}, kReductionPatience, [&](const Asked& asked) {
            const int ranks = std::clamp(subject.workers(), 2, kMostRanks);
            asked.say(check_reduction(measure(subject.programs / "surefoot-reduction", ranks, {},
                                              subject.scratch.path(), asked)));
          }};
}
Check peer_bandwidth(const Subject& subject) {
  return {{"peer bandwidth"}, kPeerPatience, [&](const Asked& asked) {
            asked.say(
                look_at_peers(subject.gpu_need(), subject.programs, subject.scratch.path(), asked));
          }};
}
// One that did not is not asked again.
bool driver_answered(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.check == "gpu driver" && finding.verdict != Verdict::kNotChecked;
  });
}
std::vector<Finding> measure_all(const Subject& subject, bool gpus) {
  std::vector<Finding> findings = run_checks({reduction(subject)});
  findings.push_back(gpus ? run_checks({peer_bandwidth(subject)}).front()
                          : not_checked("peer bandwidth", "no GPU is known of: see gpu driver"));
  return findings;
}

// ---- the job ----

// Bytes that the job's own arena has already.
std::int64_t held_by(const Subject& subject) {
  const auto id = subject.directory.existing_job_id(subject.job.name());
  if (!id) return 0;
  std::int64_t bytes = 0;
  std::error_code none;
  for (const auto& file : fs::directory_iterator(arena_folder(subject.arena(), *id), none)) {
    const auto size = file.is_regular_file(none) ? file.file_size(none) : 0;
    if (!none) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

// The folder, or the first above it that there is.
fs::path existing_part(fs::path folder) {
  std::error_code none;
  while (folder.has_relative_path() && !fs::exists(folder, none)) folder = folder.parent_path();
  return folder;
}

void say_needs(const Subject& subject, const json& description, const Asked& asked) {
  const JobNeeds needs = needs_of(description, subject.workers());
  const SharedMemoryFacts shared = look_at_shared_memory(subject.arena(), subject.workers());
  const std::int64_t held = held_by(subject);
  asked.say(check_arena(needs, shared, held));
  asked.say(check_job_memory(needs, shared, held, look_at_memory("/")));
  if (subject.checkpoints().empty()) return;
  const fs::path folder = existing_part(subject.checkpoints());
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) {
    return asked.say(not_checked("checkpoint room", folder.string() + ": " + errno_text(errno)));
  }
  const auto free_bytes =
      static_cast<std::int64_t>(space.f_bavail) * static_cast<std::int64_t>(space.f_frsize);
  asked.say(check_checkpoint_room(needs, folder.string(), free_bytes,
                                  subject.job.checkpoint().keep(),
                                  subject.job.checkpoint().keep_every() > 0));
}

void describe_job(const Subject& subject, const Asked& asked) {
  fs::path job = subject.job_file;
  if (!subject.has_job) {
    job = subject.scratch.path() / "job.yaml";
    if (const Status written = write_file_atomically(job, kSmallJob); !written)
      return asked.say(not_checked("blas", written.error().message));
  }
  const auto description =
      describe(subject.programs / "surefoot-worker", job,
               subject.has_job ? subject.arguments.sets : std::vector<std::string>(), asked);
  if (!description) {
    const std::string& why = description.error().message;
    asked.say(description.error().code == Code::kInvalid
                  ? bad("blas", why, "surefoot-worker JOB --describe says it all")
                  : not_checked("blas", why));
    return;
  }
  asked.say(check_numerics(description->value("numerics_id", "")));
  if (subject.has_job) say_needs(subject, *description, asked);
}

void look_at_data(const Subject& subject, const Asked& asked) {
  LoadOptions options;
  options.sets = subject.arguments.sets;
  const LoadOutcome outcome = load_job(subject.job_file, options);
  if (outcome.faults.empty()) return asked.say(ok("data", "every file of the job is there"));
  for (const Fault& fault : outcome.faults)
    asked.say(bad("data", fault.text(), "bring the file, or change the key"));
}

void look_at_store(const Subject& subject, const Asked& asked) {
  const bool bucket = subject.checkpoints().empty();
  const MadeFolders made(subject.checkpoints());
  const auto store =
      subject.open_store({subject.directory, subject.job, "doctor"}, kOpeningPatience);
  StoreFacts facts;
  if (store) {
    facts = probe_store(**store, asked.deadline - (bucket ? kClearingUp : kGrace), asked.deadline);
  } else {
    facts.fault = store.error().message;
    facts.retry = store.error().code == Code::kRetry;
  }
  asked.say(check_store(facts));
}

void add_job(const Subject& subject, std::vector<Check>& checks) {
  std::vector<std::string> owed = {"blas"};
  if (subject.has_job) owed.insert(owed.end(), {"arena", "job memory"});
  if (!subject.checkpoints().empty()) owed.emplace_back("checkpoint room");
  checks.push_back(
      {owed, kDescribePatience, [&](const Asked& asked) { describe_job(subject, asked); }});
  if (!subject.has_job) return;
  checks.push_back(
      {{"data"}, kPatience, [&](const Asked& asked) { look_at_data(subject, asked); }});
  checks.push_back({{"store"},
                    subject.checkpoints().empty() ? kBucketPatience : kPatience,
                    [&](const Asked& asked) { look_at_store(subject, asked); }});
  if (subject.job.checkpoint().has_encryption() &&
      !subject.job.checkpoint().encryption().key_file().empty()) {
    checks.push_back({{"encryption key"}, kPatience, [&](const Asked& asked) {
                        const auto keys = read_keys(subject.job.checkpoint());
                        asked.say(keys ? ok("encryption key", "can be read")
                                       : bad("encryption key", keys.error().message,
                                             "checkpoint.encryption.key_file"));
                      }});
  }
}

// The list of machines, which a command may print, and then each of them.
void add_hosts(const Subject& subject, std::vector<Check>& checks) {
  if (!subject.has_job || !subject.has_hosts()) return;
  const bool by_command = !subject.job.resources().discovery_command().empty();
  // How many a command or a file names is not known yet: time for some turns of them.
  const std::size_t named = static_cast<std::size_t>(subject.job.resources().hosts_size());
  const Duration patience = hosts_patience(named > 0 ? named : 4 * kHostsAtOnce) + kPatience;
  checks.push_back({{"host"}, patience, [&, by_command](const Asked& asked) {
                      DiscoveryOptions options =
                          discovery_options(subject.job.resources(), subject.directory.root);
                      options.patience = kPatience;
                      if (by_command && !fs::exists(options.directory))
                        options.directory = subject.job_file.parent_path();
                      const Result<std::vector<HostSpec>> hosts =
                          discover(options, asked.stop).hosts;
                      if (!hosts)
                        return asked.say(bad("host", hosts.error().message,
                                             "resources.hostfile, "
                                             "resources.discovery_command"));
                      if (hosts->empty()) return asked.say(warn("host", "no machine is named", ""));
                      const config::Resources& resources = subject.job.resources();
                      look_at_hosts({*hosts, resources.ssh(), subject.programs.string(),
                                     !resources.bundle().empty()},
                                    asked);
                    }});
}

// A job file on a disk that hangs keeps nobody waiting. Empty: it can be read.
std::vector<Finding> cannot_be_read(const fs::path& file) {
  auto findings = run_checks({{{"job file"}, kPatience, [&](const Asked& asked) {
                                 std::error_code failed;
                                 (void)fs::status(file, failed);
                                 if (!failed) (void)read_file(file);
                                 asked.say(ok("job file", file.string()));
                               }}});
  if (findings.front().verdict == Verdict::kOk) findings.clear();
  return findings;
}

int show(const Subject& subject, const std::vector<Finding>& findings) {
  if (subject.arguments.json) {
    const json report = report_of(findings, host_name(), subject.job.name());
    std::printf("%s\n", report.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    std::fputs(screen_of(findings).c_str(), stdout);
  }
  return exit_code_of(findings);
}

}  // namespace

int doctor_verb(const DoctorArguments& arguments, const ProbeOpener& open_store) {
  Subject subject;
  subject.arguments = arguments;
  subject.open_store = open_store;
  if (!arguments.job.empty()) {
    subject.job_file = fs::absolute(arguments.job);
    if (auto findings = cannot_be_read(subject.job_file); !findings.empty()) {
      show(subject, findings);
      return kExitUnusable;
    }
    if (fs::is_directory(subject.job_file)) subject.job_file /= "job.yaml";
    LoadOptions options;
    options.sets = arguments.sets;
    options.check_files = false;  // "data" does
    LoadOutcome outcome = load_job(subject.job_file, options);
    if (!outcome.faults.empty()) {
      if (arguments.json) std::printf("%s\n", invalid_job_json(outcome.faults).dump().c_str());
      return complain_about(outcome.faults);
    }
    subject.has_job = true;
    subject.directory = JobDirectory::of(outcome.job, arguments.dir);
    subject.job = std::move(outcome.job.job);
  }
  std::vector<Check> checks;
  add_machine(subject, checks);
  add_gpus(subject, checks);
  add_links(subject, checks);
  add_programs(subject, checks);
  add_job(subject, checks);
  add_hosts(subject, checks);
  std::vector<Finding> findings = run_checks(checks);
  for (Finding& finding : measure_all(subject, driver_answered(findings)))
    findings.push_back(std::move(finding));
  return show(subject, findings);
}

}  // namespace surefoot
