#include "launcher/nodes/bootstrap.h"

#include <algorithm>
#include <thread>

#include "common/process.h"
#include "launcher/nodes/bundle.h"
#include "launcher/nodes/network.h"
#include "launcher/nodes/start_request.h"

namespace surefoot {
namespace {

// ssh's own time-out is a little shorter than ours, as it can name the reason.
constexpr Duration kConnectPatience = std::chrono::seconds(10);
constexpr int kNoProgram = 127;  // of a shell, and of ld.so

struct SshTarget {
  const std::string& ssh;
  const std::string& name;
  Time deadline;
  int stop;
};

bool has(std::string_view text, std::string_view what) {
  return text.find(what) != text.npos;
}

// The program is there, but ld.so does not find what it needs, or an older one: "...: version
// `GLIBC_2.36' not found (required by ...)".
bool cannot_be_loaded(const ProgramEnd& end) {
  return has(end.errors, "error while loading shared libraries") ||
         has(end.errors, "' not found (required by ");
}

Result<NodeAccess> bootstrap_here(const BootstrapSettings& settings, Time deadline) {
  SUREFOOT_TRY(place_node_files(settings.arena_folder, {settings.job, settings.programs, {}, {}}));
  ServiceClient client(settings.arena_folder, settings.job_id);
  ServiceLaunch launch;
  launch.program = settings.programs / "surefoot-node";
  launch.job_file = settings.directory / "job.yaml";
  launch.job_directory = settings.directory;
  launch.supervised = true;
  SUREFOOT_TRY(ensure_service(client, launch, deadline));
  service::Request request;
  request.mutable_status()->set_records_from(~std::uint64_t{0});
  SUREFOOT_ASSIGN(const service::Reply reply, client.call(request, deadline));
  return NodeAccess{reply.status().endpoint(), address_of_endpoint(reply.status().endpoint()),
                    host_name(), true};
}

Result<NodeAccess> bootstrap_there(const SshTarget& target, const BootstrapSettings& settings) {
  std::string program = (settings.programs / "surefoot-node").string();
  std::string command = "exec " + shell_quoted(program) + " --from-stdin";
  std::optional<Bundle> bundle;
  if (!settings.bundle.empty()) {
    SUREFOOT_ASSIGN(bundle, Bundle::open(settings.bundle));
    program = bundle->folder() + "/bin/surefoot-node";
    command = "exec " + program + " --from-stdin";
  }
  const std::string request =
      to_text(StartRequest{settings.job_id, settings.directory, settings.arena_folder, settings.job,
                           to_text(server_half(settings.keys))});
  ProgramRun run = ssh_run(target.ssh, target.name, command, target.deadline, target.stop);
  run.input = request;
  SUREFOOT_ASSIGN(ProgramEnd end, run_program(run));
  if (bundle && end.status.code == kNoProgram && !cannot_be_loaded(end)) {
    ProgramRun sending =
        ssh_run(target.ssh, target.name, bundle->unpack_command(), target.deadline, target.stop);
    sending.input_file = bundle->file();
    SUREFOOT_ASSIGN(const ProgramEnd sent, run_program(sending));
    if (!sent.succeeded()) return reason_of_failure(target.name, "tar", sent);
    SUREFOOT_ASSIGN(end, run_program(run));
  }
  if (!end.succeeded()) return reason_of_failure(target.name, program, end, settings.bundle);
  const auto reply = parse_start_reply(end.output);
  if (!reply) return error(reply.error().code, "{}: {}", target.name, reply.error().message);
  NodeAccess access{reply->endpoint, address_of_endpoint(reply->endpoint), reply->host, false};
  access.local = reply->boot == self_process().boot && reply->host == host_name() &&
                 is_own_address(access.address);
  // A call to it would end at a service of this machine, or at nobody's.
  if (!access.local && is_loopback(access.address))
    return error(Code::kInvalid,
                 "{}: its service listens on {} only, where nobody else gets: set "
                 "resources.network",
                 target.name, access.address);
  return access;
}

}  // namespace

bool is_this_machine(const std::string& name) {
  return name.empty() || name == "localhost" || name == host_name() || is_own_address(name);
}

Result<NodeAccess> bootstrap(const std::string& name, const BootstrapSettings& settings,
                             Time deadline, int stop) {
  if (is_this_machine(name)) return bootstrap_here(settings, deadline);
  return bootstrap_there({settings.ssh, name, deadline, stop}, settings);
}

ProgramRun ssh_run(const std::string& ssh, const std::string& name, const std::string& command,
                   Time deadline, int stop) {
  const auto left = std::chrono::duration_cast<std::chrono::seconds>(
      std::min<Duration>(kConnectPatience, deadline - now()));
  ProgramRun run;
  run.argv = {"/bin/sh", "-c", ssh + " \"$@\"", "ssh", "-o", "BatchMode=yes", "-o",
              fmt::format("ConnectTimeout={}", std::max<std::int64_t>(left.count(), 1)),
              // So that it ends by itself when we and the machine are both gone.
              "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", name,
              // The log-in shell may be one that understands little of what ours does.
              "exec /bin/sh -c " + shell_quoted(command)};
  run.deadline = deadline;
  run.stop = stop;
  return run;
}

Error reason_of_failure(const std::string& name, const std::string& program, const ProgramEnd& end,
                        const std::filesystem::path& bundle) {
  const std::string& said = end.errors;
  const std::string line = last_line(said);
  if (end.why != ProgramEnd::Why::kExited)
    return error(Code::kRetry, "{}: ssh did not come back in time{}", name,
                 line.empty() ? "" : ": " + line);
  if (end.status.code == 255 || end.status.signal != 0) {
    if (has(said, "Host key verification failed"))
      return error(
          Code::kInvalid,
          "{}: its host key is not known here, or another one: `ssh {}` once by hand, or set "
          "resources.ssh to \"ssh -o StrictHostKeyChecking=accept-new\"",
          name, name);
    if (has(said, "Permission denied"))
      return error(Code::kInvalid, "{}: does not let us in without a password: {}", name, line);
    return error(Code::kRetry, "{}: cannot be reached: {}", name,
                 line.empty() ? "ssh failed" : line);
  }
  if (cannot_be_loaded(end) && !bundle.empty())
    return error(Code::kInvalid,
                 "{}: {} (resources.bundle was made on a system that is newer than this machine's, "
                 "or lacks a library)",
                 name, line);
  if (cannot_be_loaded(end))
    return error(Code::kInvalid, "{}: {} (resources.bundle brings its libraries along)", name,
                 line);
  const bool is_missing = end.status.code == kNoProgram || end.status.code == 126;
  if (is_missing && !bundle.empty())
    return error(Code::kInvalid,
                 "{}: cannot run {}: resources.bundle {} must be an archive made by `make bundle`",
                 name, program, bundle.string());
  if (is_missing)
    return error(Code::kInvalid,
                 "{}: has no {}: Surefoot must lie in the same folder there, or resources.bundle "
                 "name an archive made by `make bundle`",
                 name, program);
  return error(end.status.code == 64 ? Code::kInvalid : Code::kRetry, "{}: {}", name,
               line.empty() ? fmt::format("exit code {}", end.status.code) : line);
}

}  // namespace surefoot
