#include "launcher/mpirun/gang.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "common/file.h"
#include "configs/job_directory.h"

namespace surefoot {
namespace {

Status make_folder(const std::filesystem::path& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return error(Code::kRetry, "cannot make {}: {}", folder.string(), failed.message());
  return {};
}

// Whether it may belong to a gang at all, by what it is and not by its environment: a shell in
// which somebody has set a worker's variables does not, nor does the service, nor anything of our
// own session.
bool is_mpirun_or_worker(pid_t pid, const std::filesystem::path& worker) {
  if (pid <= 1 || ::getsid(pid) == ::getsid(0)) return false;
  std::error_code gone;
  const std::string exe =
      std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), gone).filename().string();
  return exe == "orterun" || exe == "mpirun" || exe == "orted" || exe == worker.filename().string();
}

// Of Open MPI, on this machine.
Status remove_files(const GangSpec& spec) {
  std::error_code failed;
  const std::filesystem::path folder = attempt_folder(spec.arena_folder, spec.attempt);
  std::filesystem::remove_all(folder, failed);
  if (failed) return error(Code::kRetry, "cannot remove {}: {}", folder.string(), failed.message());
  ::rmdir(spec.arena_folder.c_str());  // empty: no service has it
  return {};
}

Result<ProcessId> start_mpirun(const GangSpec& spec) {
  const SpawnOptions options = mpirun_command(spec);
  SUREFOOT_TRY(make_folder(std::filesystem::path(options.output).parent_path()));
  // On a machine that is none of the job's nobody else has made it. As the service does.
  SUREFOOT_TRY(make_folder(spec.arena_folder.parent_path()));
  ::mkdir(spec.arena_folder.c_str(), 0700);
  SUREFOOT_TRY(make_folder(attempt_folder(spec.arena_folder, spec.attempt)));
  if (is_over_machines(spec))
    SUREFOOT_TRY(write_file_atomically(node_list_file(spec), to_text(node_list(spec))));
  auto mpirun = spawn(options);
  if (!mpirun)
    return error(mpirun.error().code,
                 "{} (Open MPI's mpirun starts the workers: apt-get install openmpi-bin)",
                 mpirun.error().message);
  return *mpirun;
}

}  // namespace

Result<Gang> Gang::start(const GangSpec& spec) {
  const auto mpirun = start_mpirun(spec);
  if (mpirun) return Gang(*mpirun, spec, true);
  // The first error is the one to tell.
  (void)remove_files(spec);
  return mpirun.error();
}

Gang Gang::left_behind(const ProcessId& mpirun, const GangSpec& spec) {
  return Gang(mpirun, spec, false);
}

std::optional<ExitStatus> Gang::poll() {
  if (ended_) return ended_;
  if (child_) {
    ended_ = poll_exit(mpirun_);
  } else if (mpirun_.pid > 0 ? !is_alive(mpirun_) : processes().empty()) {
    ended_ = ExitStatus{};
  }
  return ended_;
}

std::vector<ProcessId> Gang::processes() const {
  std::vector<ProcessId> found;
  const bool known = mpirun_.pid > 0;
  // After a reboot the number names somebody else's session.
  if (known && mpirun_.boot != self_process().boot) return found;
  for (const ProcessId& process :
       running_processes(known ? std::optional(mpirun_.pid) : std::nullopt)) {
    if (!known && !is_mpirun_or_worker(process.pid, spec_.program)) continue;
    if (belongs_to_gang(environment_of(process), spec_.job_directory, spec_.attempt))
      found.push_back(process);
  }
  return found;
}

Status Gang::end(Time deadline) {
  // A process that was just forking may have a child that the first look missed: until a look finds
  // nobody.
  for (std::vector<ProcessId> alive = processes(); !alive.empty(); alive = processes()) {
    SUREFOOT_TRY(end_processes(alive, deadline));
  }
  if (child_) [[maybe_unused]]
    const auto reaped = poll();
  return remove_files(spec_);
}

}  // namespace surefoot
