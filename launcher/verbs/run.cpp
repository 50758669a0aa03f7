#include <signal.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/arena.h"
#include "checkpoint/arena_space.h"
#include "checkpoint/key_file.h"
#include "checkpoint/service_client.h"
#include "common/file.h"
#include "common/process.h"
#include "configs/fault.h"
#include "launcher/before_launch.h"
#include "launcher/bring_model.h"
#include "launcher/control.h"
#include "launcher/driver.h"
#include "launcher/fault_list.h"
#include "launcher/nodes/bootstrap.h"
#include "launcher/report.h"
#include "launcher/rules.h"
#include "launcher/verbs/verbs.h"

namespace surefoot {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// What `run`, `resume` and `cancel` have in common.
struct Request {
  config::Job job;
  JobDirectory directory;
  std::vector<std::string> faults;
  bool faults_count = false;
  bool accept_changes = false;
  bool cancel = false;
  bool json = false;
  bool quiet = false;
  StoreOpener open_store;
  Fitness fitness;
};

Programs programs() {
  const fs::path folder = program_directory();
  return {folder / "surefoot-worker", folder / "surefoot-node"};
}

Status check_programs() {
  const Programs needed = programs();
  for (const fs::path& program : {needed.worker, needed.node}) {
    if (!fs::exists(program))
      return error(Code::kNotFound, "{} is missing: it belongs beside surefoot", program.string());
  }
  return {};
}

// What all modules log goes to logs/supervisor.log: the terminal belongs to the progress line.
void log_to_file(const JobDirectory& directory) {
  std::error_code failed;
  fs::create_directories(directory.logs(), failed);
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(
        (directory.logs() / "supervisor.log").string());
    auto logger = std::make_shared<spdlog::logger>("surefoot", sink);
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %-7l %v", spdlog::pattern_time_type::utc);
    logger->flush_on(spdlog::level::info);
    spdlog::set_default_logger(logger);
  } catch (const spdlog::spdlog_ex& no_file) {
    std::fprintf(stderr, "surefoot: no log is written: %s\n", no_file.what());
  }
}

int show_report(const Request& request, Console& console, int code) {
  auto view = read_journal(request.directory.root);
  if (!view) return complain(view.error());
  JobReport report =
      make_report(*view, read_metrics(request.directory.metrics()), request.directory.root.string(),
                  Step{request.job.train().max_steps()});
  if (report.exit_code < 0) report.exit_code = code;
  console.clear();
  console.print("\n" + summary_screen(report, console.color()));
  if (request.json) std::printf("%s\n", to_json(report).dump().c_str());
  std::fflush(stdout);
  return code;
}

// Keys that decide the weights may not change in the middle of a job. The workers' service checks
// it again, data included; here it costs no launch.
Status check_changes(const Request& request, const supervisor::History& history, Console& console) {
  if (history.finished_step.value == 0) return {};
  LoadOptions options;
  options.check_files = false;
  const LoadOutcome was = load_job(request.directory.job_file(), options);
  if (!was.faults.empty()) return {};
  auto before = training_identity(was.job.job);
  auto after = training_identity(request.job);
  if (!before || !after || before->hash == after->hash) return {};
  std::string changed;
  for (const std::string& line : differences(before->lines, after->lines)) changed += "\n  " + line;
  if (request.accept_changes) {
    console.warning("going on with changes that decide the weights:" + changed);
    return {};
  }
  return error(Code::kInvalid,
               "{} has finished {} steps with other values of what decides its weights:{}\nPut "
               "them back, start anew with --fresh, or go on with "
               "--accept-changes",
               request.directory.root.string(), history.finished_step, changed);
}

// Who is left of a gang on other machines only these can tell.
Status check_machines(const Request& request, const supervisor::History& history) {
  if (!history.attempt_open || !supervisor::rules_of(request.job).fleet.alone) return {};
  for (const std::string& name : history.gang) {
    if (is_this_machine(name)) continue;
    return error(Code::kInvalid,
                 "attempt {} of it may still run on {}, and the job file names no machines any "
                 "more: put them back, or `surefoot cancel {}` first",
                 history.attempt, name, request.directory.root.string());
  }
  return {};
}

bool is_finished(const supervisor::History& history, const config::Job& job) {
  return history.state == supervisor::JobState::kDone &&
         history.finished_step.value >= job.train().max_steps() && !history.attempt_open;
}

Result<int> run_job(const Request& request, Console& console) {
  // A dozen for each machine, and some for what is being started there.
  raise_descriptor_limit();
  SUREFOOT_TRY(check_programs());
  SUREFOOT_ASSIGN(const std::string id, request.directory.job_id(request.job.name()));
  SUREFOOT_ASSIGN(auto journal, Journal::open(request.directory.root, id, request.job.name()));
  const supervisor::History& history = journal->history();
  if (is_finished(history, request.job)) {
    console.event(fmt::format("{} is finished already: all {} steps (--fresh starts it anew)",
                              request.job.name(), history.finished_step));
    return kExitOk;
  }
  SUREFOOT_TRY(check_changes(request, history, console));
  SUREFOOT_TRY(check_machines(request, history));
  DriverSettings settings;
  settings.job = request.job;
  settings.directory = request.directory;
  settings.job_id = id;
  SUREFOOT_ASSIGN(const ServiceKeys keys, make_service_keys(request.directory.service_keys()));
  settings.keys = keys;
  settings.programs = programs();
  settings.faults_count = request.faults_count;
  settings.accept_changes = request.accept_changes;
  settings.cancel = request.cancel;
  settings.flops_per_sample = request.fitness.flops_per_sample;
  settings.bring_model = [open_store = request.open_store,
                          found = FoundJob{request.directory, request.job, id}](
                             Step step, const std::string& weights_sha256, Time deadline) {
    return bring_model(open_store, found, step, weights_sha256, deadline);
  };
  SUREFOOT_ASSIGN(settings.faults, remember_faults(request.directory.root, request.faults));
  SUREFOOT_TRY(write_file_atomically(request.directory.job_file(), to_yaml(request.job)));
  log_to_file(request.directory);
  if (history.attempt.value == 0) {
    console.event(fmt::format("{}: {} steps, in {}", request.job.name(),
                              request.job.train().max_steps(), request.directory.root.string()));
  } else {
    console.event(fmt::format("{}: {} of {} steps are done after {} attempts", request.job.name(),
                              history.finished_step, request.job.train().max_steps(),
                              history.attempt));
  }
  for (const std::string& warning : request.fitness.warnings) console.warning(warning);
  return supervise(settings, *journal, console);
}

int run_and_report(const Request& request) {
  Console console({request.json ? STDERR_FILENO : STDOUT_FILENO, request.quiet});
  auto code = run_job(request, console);
  if (!code) {
    console.clear();
    return complain(code.error());
  }
  return show_report(request, console, *code);
}

// Of a job on this machine alone. One that is done needs nothing.
Result<Fitness> look_at_this_machine(const Request& request, const RunArguments& arguments,
                                     const fs::path& file) {
  if (!supervisor::rules_of(request.job).fleet.alone) return Fitness{};
  if (!arguments.fresh && fs::exists(request.directory.journal())) {
    const auto view = read_journal(request.directory.root);
    if (view && is_finished(view->history, request.job)) return Fitness{};
  }
  return look_before_launch(request.job, file, arguments.sets, program_directory());
}

// ---- --fresh

// Ends the service an earlier run has left, after it has stored the newest step.
Status close_service(const FoundJob& old) {
  const fs::path folder = arena_folder(old.job.checkpoint().arena(), old.id);
  std::error_code failed;
  if (!fs::exists(folder, failed)) return {};
  ServiceClient client(folder, old.id);
  service::Request probe;
  probe.mutable_status()->set_records_from(~std::uint64_t{0});
  if (client.call(probe, now() + 1s)) {
    service::Request request;
    request.mutable_shutdown()->set_flush(true);
    request.mutable_shutdown()->set_remove(true);
    auto reply = client.call(request, now() + 5min);
    if (!reply) return reply.error();
  }
  fs::remove_all(folder, failed);
  if (failed)
    return error(Code::kRetry, "cannot remove {} of {}: {}", folder.string(),
                 old.directory.root.string(), failed.message());
  return {};
}

Status move_aside(const JobDirectory& directory) {
  if (!fs::exists(directory.root / "job.json")) return {};
  if (auto view = read_journal(directory.root)) {
    if (view->supervisor && is_alive(*view->supervisor)) {
      return error(Code::kRetry, "{} runs (process {}): end it first with `surefoot cancel {}`",
                   directory.root.string(), view->supervisor->pid, directory.root.string());
    }
    if (view->history.attempt_open) {
      return error(
          Code::kRetry,
          "{} has lost its supervisor and workers may still train: `surefoot cancel {}` first",
          directory.root.string(), directory.root.string());
    }
  }
  if (auto old = find_job(directory.root.string())) SUREFOOT_TRY(close_service(*old));
  for (int n = 1;; ++n) {
    const fs::path aside = directory.root.string() + "." + std::to_string(n);
    if (fs::exists(aside)) continue;
    std::error_code failed;
    fs::rename(directory.root, aside, failed);
    if (failed)
      return error(Code::kRetry, "cannot move {} to {}: {}", directory.root.string(),
                   aside.string(), failed.message());
    std::fprintf(stderr, "the earlier run is now %s\n", aside.c_str());
    return {};
  }
}

// ---- Reading the request

Result<std::vector<std::string>> fault_texts(const std::vector<std::string>& texts,
                                             const config::Job& job) {
  SUREFOOT_ASSIGN(
      const auto faults,
      parse_faults(texts, {job.train().max_steps(), job.resources().workers_per_node().max()}));
  std::vector<std::string> plain;
  for (const InjectedFault& fault : faults) plain.push_back(to_text(fault));
  return plain;
}

Request request_of(const RunArguments& arguments) {
  Request request;
  request.faults_count = arguments.faults_count;
  request.accept_changes = arguments.accept_changes;
  request.json = arguments.json;
  request.quiet = arguments.quiet;
  return request;
}

}  // namespace

int run_verb(const RunArguments& arguments, const StoreOpener& open_store) {
  block_signals();
  Request request = request_of(arguments);
  request.open_store = open_store;
  // A job directory stands for the job file as it ran.
  fs::path file = arguments.job;
  std::string dir = arguments.dir;
  if (arguments.resume) {
    std::error_code failed;
    if (fs::is_directory(file, failed)) {
      if (dir.empty()) dir = fs::absolute(file, failed).lexically_normal().string();
      file /= "job.yaml";
    }
  }
  LoadOptions options;
  options.sets = arguments.sets;
  LoadOutcome outcome = load_job(file, options);
  if (!outcome.faults.empty()) return complain_about(outcome.faults);
  request.directory = JobDirectory::of(outcome.job, dir);
  request.job = std::move(outcome.job.job);
  if (arguments.resume && !fs::exists(request.directory.journal())) {
    return complain(error(Code::kNotFound, "there is nothing to resume in {}",
                          request.directory.root.string()));
  }
  auto faults = fault_texts(arguments.faults, request.job);
  if (!faults) return complain(faults.error());
  request.faults = std::move(*faults);
  const config::Resources& resources = request.job.resources();
  if (Status room =
          check_arena_base(request.job.checkpoint().arena(), resources.workers_per_node().max());
      !room)
    return complain(room.error());
  if (auto keys = read_keys(request.job.checkpoint()); !keys) return complain(keys.error());
  auto fitness = look_at_this_machine(request, arguments, file);
  if (!fitness) return complain(fitness.error());
  request.fitness = *std::move(fitness);
  if (arguments.fresh) {
    if (Status moved = move_aside(request.directory); !moved) return complain(moved.error());
  }
  return run_and_report(request);
}

int cancel_verb(const CancelArguments& arguments, const StoreOpener& open_store) {
  block_signals();
  auto found = find_job(arguments.job);
  if (!found) return complain(found.error());
  auto view = read_journal(found->directory.root);
  if (!view) return complain(view.error());
  Request request;
  request.job = found->job;
  request.directory = found->directory;
  request.cancel = true;
  request.open_store = open_store;
  request.json = arguments.json;
  request.quiet = true;
  if (!view->supervisor || !is_alive(*view->supervisor)) {
    Console console({arguments.json ? STDERR_FILENO : STDOUT_FILENO, true});
    auto code = run_job(request, console);
    if (!code) return complain(code.error());
    return show_report(request, console, *code == supervisor::kExitDoNotRequeue ? kExitOk : *code);
  }
  const ProcessId supervisor = *view->supervisor;
  // It may have no socket, or just be leaving.
  const auto asked =
      ask_supervisor(found->directory.root, {{"ask", "cancel"}}, now() + kSupervisorPatience);
  if (!asked) {
    const Status sent = send_signal(supervisor, SIGUSR1);
    if (!sent && sent.error().code != Code::kNotFound) return complain(sent.error());
  }
  std::fprintf(stderr, "asked process %d to end the job\n", supervisor.pid);
  const Time deadline = now() + 2min;
  while (is_alive(supervisor)) {
    if (now() > deadline)
      return complain(error(Code::kRetry, "process {} has not ended the job within two minutes",
                            supervisor.pid));
    ::usleep(20000);
  }
  Console console({arguments.json ? STDERR_FILENO : STDOUT_FILENO, true});
  return show_report(request, console, kExitOk);
}

}  // namespace surefoot
