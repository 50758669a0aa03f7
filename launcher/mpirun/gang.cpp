#include "launcher/mpirun/gang.h"

#include <dirent.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
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

// All processes, or those of one session. One may be gone by the time it is looked at.
std::vector<pid_t> all_processes(std::optional<pid_t> session) {
  std::vector<pid_t> found;
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) return found;
  while (const dirent* entry = ::readdir(folder)) {
    pid_t pid = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, pid).ptr != end || pid <= 0) continue;
    if (!session || ::getsid(pid) == *session) found.push_back(pid);
  }
  ::closedir(folder);
  return found;
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

}  // namespace

Result<Gang> Gang::start(const GangSpec& spec) {
  const SpawnOptions options = mpirun_command(spec);
  SUREFOOT_TRY(make_folder(std::filesystem::path(options.output).parent_path()));
  SUREFOOT_TRY(make_folder(attempt_folder(spec.arena_folder, spec.attempt)));
  if (is_over_machines(spec))
    SUREFOOT_TRY(write_file_atomically(node_list_file(spec), to_text(node_list(spec))));
  auto mpirun = spawn(options);
  if (!mpirun)
    return error(mpirun.error().code,
                 "{} (Open MPI's mpirun starts the workers: apt-get install openmpi-bin)",
                 mpirun.error().message);
  return Gang(*mpirun, spec, true);
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
  for (const pid_t pid : all_processes(known ? std::optional(mpirun_.pid) : std::nullopt)) {
    // The identity first: what is read after belongs to it, or to nobody.
    auto process = process_of(pid);
    auto environment = read_file(fmt::format("/proc/{}/environ", pid));
    if (!process || !environment || (!known && !is_mpirun_or_worker(pid, spec_.program)) ||
        !is_alive(*process))
      continue;
    if (belongs_to_gang(*environment, spec_.job_directory, spec_.attempt))
      found.push_back(*process);
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
  std::error_code failed;
  std::filesystem::remove_all(attempt_folder(spec_.arena_folder, spec_.attempt), failed);
  if (failed)
    return error(Code::kRetry, "cannot remove {}: {}",
                 attempt_folder(spec_.arena_folder, spec_.attempt).string(), failed.message());
  return {};
}

}  // namespace surefoot
