#include "launcher/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace surefoot {
namespace {

constexpr int kWrongUse = 64;  // EX_USAGE

// Everything any verb can take; the chosen verb picks its part.
struct Parsed {
  RunArguments run;
  RunArguments resume;
  ValidateArguments validate;
  StatusArguments status;
  LogsArguments logs;
  CancelArguments cancel;
  NodesArguments nodes;
  DrainArguments drain;
  CheckpointsArguments checkpoints;
  DoctorArguments doctor;
  std::int64_t attempt = 0;
  int rank = -1;
  std::int64_t step = -1;
};

void add_run(CLI::App& app, Parsed& parsed) {
  CLI::App* run = app.add_subcommand(
      "run", "Train a job until it is done; goes on where an earlier run stopped");
  run->add_option("job", parsed.run.job, "The job file")->required();
  run->add_flag("--fresh", parsed.run.fresh, "Start anew; the old job directory is moved aside");
  CLI::App* resume = app.add_subcommand("resume", "Go on with a job whose supervisor is gone");
  resume->add_option("job", parsed.resume.job, "The job's directory, or its job file")->required();
  for (auto& [verb, to] : {std::pair{run, &parsed.run}, std::pair{resume, &parsed.resume}}) {
    verb->add_option("--dir", to->dir, "Job directory (default: runs/<name> beside the job file)");
    verb->add_option("--set", to->sets, "Change a key of the job file: train.max_steps=50")
        ->allow_extra_args(false);
    verb->add_option("--fault", to->faults, "Inject a fault: kill:rank=1,step=20 (see docs)")
        ->allow_extra_args(false);
    verb->add_flag("--faults-count", to->faults_count,
                   "Injected faults count against the job's budgets");
    verb->add_flag("--accept-changes", to->accept_changes,
                   "Go on although keys have changed that decide the weights");
    verb->add_flag("--json", to->json,
                   "Print one JSON object at the end; all else goes to standard error");
    verb->add_flag("--quiet", to->quiet, "No progress, only what went wrong and the summary");
  }
}

void add_readers(CLI::App& app, Parsed& parsed) {
  CLI::App* validate =
      app.add_subcommand("validate", "Check a job file and say what the job will need");
  auto* job = validate->add_option("job", parsed.validate.job, "The job file");
  validate->add_option("--set", parsed.validate.sets, "Change a key of the job file")
      ->allow_extra_args(false);
  validate->add_flag("--json", parsed.validate.json, "Print one JSON object");
  auto* schema = validate->add_flag("--schema", parsed.validate.schema,
                                    "Print the JSON Schema of job files, for editors");
  job->excludes(schema);

  CLI::App* status = app.add_subcommand("status", "Say how a job is");
  status->add_option("job", parsed.status.job,
                     "The job's directory, or its job file (default: the job here)");
  status->add_flag("--json", parsed.status.json, "Print one JSON object");

  CLI::App* logs = app.add_subcommand("logs", "Print the logs of a job's workers");
  logs->add_option("job", parsed.logs.job,
                   "The job's directory, or its job file (default: the job here)");
  logs->add_flag("-f,--follow", parsed.logs.follow,
                 "Go on printing what is added, until Ctrl-C or the job's end");
  logs->add_option("--attempt", parsed.attempt, "Of this attempt (default: the last)")
      ->check(CLI::Range(1, 1000000000));
  logs->add_option("--rank", parsed.rank, "Of this rank (default: all)")
      ->check(CLI::Range(0, 1000000));

  CLI::App* cancel =
      app.add_subcommand("cancel", "End a job and free what it holds; its checkpoints stay");
  cancel->add_option("job", parsed.cancel.job,
                     "The job's directory, or its job file (default: the job here)");
  cancel->add_flag("--json", parsed.cancel.json, "Print one JSON object");
}

void add_machines(CLI::App& app, Parsed& parsed) {
  CLI::App* nodes = app.add_subcommand("nodes", "Say how a job's machines are");
  nodes->add_option("job", parsed.nodes.job,
                    "The job's directory, or its job file (default: the job here)");
  nodes->add_flag("--json", parsed.nodes.json, "Print one JSON object");

  CLI::App* drain = app.add_subcommand(
      "drain", "Have a machine's workers leave after the step in hand; the job goes on without it");
  drain->add_option("node", parsed.drain.node, "The machine, as `surefoot nodes` names it")
      ->required();
  drain->add_option("job", parsed.drain.job,
                    "The job's directory, or its job file (default: the job here)");
  drain->add_option("--in", parsed.drain.in, "The machine goes in so long: 30s, 5m");
  drain->add_flag("--json", parsed.drain.json, "Print one JSON object");
}

void add_doctor(CLI::App& app, Parsed& parsed) {
  CLI::App* doctor = app.add_subcommand(
      "doctor", "Look at this machine, and say what is wrong with it and what to do");
  doctor->add_option("job", parsed.doctor.job,
                     "The job file or job directory that it is to run (default: none)");
  doctor->add_option("--dir", parsed.doctor.dir, "Job directory, as for `run`");
  doctor->add_option("--set", parsed.doctor.sets, "Change a key of the job file")
      ->allow_extra_args(false);
  doctor->add_flag("--json", parsed.doctor.json, "Print one JSON object");
}

void add_checkpoints(CLI::App& app, Parsed& parsed) {
  using Action = CheckpointsArguments::Action;
  CLI::App* checkpoints =
      app.add_subcommand("checkpoints", "List, verify, export or remove checkpoints");
  checkpoints->require_subcommand(1);
  const std::tuple<const char*, const char*, Action> actions[] = {
      {"list", "List the checkpoints, newest first", Action::kList},
      {"verify", "Read every byte and compare the digests", Action::kVerify},
      {"export", "Write model.safetensors and config.json of a checkpoint", Action::kExport},
      {"rm", "Remove a checkpoint", Action::kRemove}};
  for (const auto& [name, help, action] : actions) {
    CLI::App* verb = checkpoints->add_subcommand(name, help);
    CheckpointsArguments& to = parsed.checkpoints;
    verb->add_option("job", to.job, "The job's directory, or its job file (default: the job here)");
    verb->add_flag("--json", to.json, "Print one JSON object");
    verb->callback([&to, action = action] { to.action = action; });
    if (action == Action::kList) continue;
    auto* step =
        verb->add_option("--step", parsed.step, "Of this step")->check(CLI::NonNegativeNumber);
    if (action == Action::kRemove) step->required();
    if (action == Action::kExport)
      verb->add_option("--to", to.to, "Folder to write to")->required();
  }
}

Arguments chosen(const CLI::App& app, Parsed& parsed) {
  parsed.resume.resume = true;
  if (parsed.attempt > 0) parsed.logs.attempt = Attempt{parsed.attempt};
  if (parsed.rank >= 0) parsed.logs.rank = parsed.rank;
  if (parsed.step >= 0) parsed.checkpoints.step = Step{parsed.step};
  if (app.got_subcommand("run")) return parsed.run;
  if (app.got_subcommand("resume")) return parsed.resume;
  if (app.got_subcommand("status")) return parsed.status;
  if (app.got_subcommand("logs")) return parsed.logs;
  if (app.got_subcommand("cancel")) return parsed.cancel;
  if (app.got_subcommand("nodes")) return parsed.nodes;
  if (app.got_subcommand("drain")) return parsed.drain;
  if (app.got_subcommand("checkpoints")) return parsed.checkpoints;
  if (app.got_subcommand("doctor")) return parsed.doctor;
  if (!parsed.validate.schema && parsed.validate.job.empty()) {
    return PrintAndLeave{
        kWrongUse, "surefoot validate: which job file? (surefoot validate JOB, or --schema)\n"};
  }
  return parsed.validate;
}

}  // namespace

Arguments parse_arguments(const std::vector<std::string>& words) {
  CLI::App app{"Surefoot runs data-parallel training jobs and never loses a finished step.",
               "surefoot"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "surefoot " SUREFOOT_VERSION);
  Parsed parsed;
  add_run(app, parsed);
  add_readers(app, parsed);
  add_machines(app, parsed);
  add_checkpoints(app, parsed);
  add_doctor(app, parsed);
  try {
    std::vector<std::string> reversed(words.rbegin(),
                                      words.rend());  // CLI11 takes them from the back
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& failed) {
    std::ostringstream out;
    std::ostringstream problem;
    const int code = app.exit(failed, out, problem);
    return PrintAndLeave{code == 0 ? 0 : kWrongUse, out.str() + problem.str()};
  }
  return chosen(app, parsed);
}

}  // namespace surefoot
