#include "checkpoint/launch_book.h"

#include <algorithm>

#include "common/file.h"

namespace surefoot {
namespace {

// How long a process may be about to begin a program, on a machine that is swamped. Arbitrary.
constexpr Duration kDoubt = std::chrono::seconds(1);
constexpr int kKept = 16;  // attempts whose logs can still be asked for; arbitrary

ProcessId process_of(const service::Launched& entry) {
  ProcessId process;
  process.boot = entry.boot();
  process.start_ticks = entry.start_ticks();
  process.pid = entry.pid();
  return process;
}

Status check(const service::Launch& wanted) {
  const bool sane = wanted.attempt() > 0 && wanted.attempt() <= kMaxAttempt &&
                    !wanted.command().empty() && wanted.log_folder().starts_with('/') &&
                    wanted.command().find('\0') == std::string::npos &&
                    wanted.log_folder().find('\0') == std::string::npos;
  if (!sane) return error(Code::kInvalid, "the launch makes no sense");
  for (const std::string& entry : wanted.environment()) {
    const std::size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos || entry.find('\0') != std::string::npos)
      return error(Code::kInvalid, "a variable of the launch is not NAME=value");
  }
  return {};
}

Status make_folder(const std::filesystem::path& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return error(Code::kInvalid, "cannot make {}: {}", folder.string(), failed.message());
  return {};
}

}  // namespace

std::filesystem::path attempt_folder(const std::filesystem::path& arena_folder, Attempt attempt) {
  return arena_folder / fmt::format("attempt-{}", attempt);
}

std::string daemon_log_name() {
  return "daemon-" + host_name() + ".log";
}

std::vector<std::string> kept_from_workers() {
  return {"OMPI_",
          "PMIX_",
          "PMI_",
          "ORTE_",
          "OPAL_",
          "PRTE_",
          "AWS_ACCESS_KEY",
          "AWS_SECRET_ACCESS_KEY",
          "AWS_SESSION_TOKEN"};
}

void LaunchBook::read() {
  const Lock lock(mutex_);
  const auto text = read_file(folder_ / "launched");
  service::Launches book;
  if (text && book.ParseFromString(*text)) book_ = std::move(book);
}

Status LaunchBook::save() {
  const Lock lock(mutex_);
  return write();
}

Status LaunchBook::write() {
  return write_file_atomically(folder_ / "launched", book_.SerializeAsString());
}

std::string LaunchBook::mark_of(std::int64_t attempt) const {
  return fmt::format("SUREFOOT_LAUNCHED={}/{}", job_id_, attempt);
}

service::Launched* LaunchBook::entry_of(std::int64_t attempt) {
  for (service::Launched& entry : *book_.mutable_launched()) {
    if (entry.attempt() == attempt) return &entry;
  }
  return nullptr;
}

// Once nobody is found nobody comes any more, and the number may become somebody else's. Two looks,
// as one may miss a child whose parent ends at this moment; and more where one may be in the middle
// of beginning another program.
SessionProcesses LaunchBook::session(service::Launched& entry) {
  SessionProcesses found;
  for (int look = 0; look < 2 && found.members.empty() && entry.pid() != 0; ++look)
    found = session_of(process_of(entry), mark_of(entry.attempt()));
  if (found.members.empty() && found.maybe_more) {
    const Time since = doubtful_since_.try_emplace(entry.attempt(), now()).first->second;
    if (now() - since < kDoubt) return found;
  }
  doubtful_since_.erase(entry.attempt());
  found.maybe_more = false;
  if (found.members.empty()) entry.set_pid(0);
  return found;
}

bool LaunchBook::runs(service::Launched& entry) {
  const SessionProcesses found = session(entry);
  return found.maybe_more || !found.members.empty();
}

Status LaunchBook::launch(const service::Launch& wanted, Attempt newest) {
  SUREFOOT_TRY(check(wanted));
  {
    const Lock lock(mutex_);
    SUREFOOT_ASSIGN(const bool begin, must_begin(wanted, newest));
    if (!begin) return {};
  }
  const std::filesystem::path own_files = attempt_folder(folder_, Attempt{wanted.attempt()});
  SUREFOOT_TRY(make_folder(wanted.log_folder()));
  SUREFOOT_TRY(make_folder(own_files));
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", wanted.command()};
  options.environment = {wanted.environment().begin(), wanted.environment().end()};
  options.environment.push_back(mark_of(wanted.attempt()));
  options.dropped = kept_from_workers();
  options.output = (std::filesystem::path(wanted.log_folder()) / daemon_log_name()).string();
  options.detach = true;
  options.before = [&](const ProcessId& process) { return write_down(wanted, process); };
  const auto started = spawn(options);
  if (!started) {
    // Ended while the folder was made, maybe.
    std::error_code ignored;
    std::filesystem::remove_all(own_files, ignored);
    return started.error();
  }
  const Lock lock(mutex_);
  if (service::Launched* entry = entry_of(wanted.attempt())) entry->set_begun(true);
  return write();
}

Result<bool> LaunchBook::must_begin(const service::Launch& wanted, Attempt newest) {
  const Attempt attempt{wanted.attempt()};
  if (attempt.value < book_.ended_below())
    return error(Code::kStale, "attempt {} was ended on this node", attempt);
  service::Launched* const entry = entry_of(attempt.value);
  if (entry != nullptr) {
    const bool same = entry->command() == wanted.command();
    if (same && runs(*entry)) return false;
    // Written down, but the service was killed before the command could begin.
    if (same && !entry->begun()) return true;
    return error(Code::kStale, "attempt {} was launched on this node before", attempt);
  }
  for (const service::Launched& other : book_.launched())
    newest = std::max(newest, Attempt{other.attempt()});
  if (attempt > newest) return true;
  return error(Code::kStale, "attempt {} is not newer than attempt {}, which has run on this node",
               attempt, newest);
}

// From here on it can be ended: under one lock with the question whether its attempt is.
Status LaunchBook::write_down(const service::Launch& wanted, const ProcessId& process) {
  const Lock lock(mutex_);
  if (wanted.attempt() < book_.ended_below())
    return error(Code::kStale, "attempt {} was ended on this node", wanted.attempt());
  service::Launched* entry = entry_of(wanted.attempt());
  if (entry == nullptr) entry = book_.add_launched();
  entry->set_attempt(wanted.attempt());
  entry->set_command(wanted.command());
  entry->set_log_folder(wanted.log_folder());
  entry->set_boot(process.boot);
  entry->set_start_ticks(process.start_ticks);
  entry->set_pid(process.pid);
  entry->set_begun(false);
  auto& all = *book_.mutable_launched();
  while (all.size() > kKept && !runs(all[0])) all.DeleteSubrange(0, 1);
  return write();
}

Status LaunchBook::end_below(Attempt attempt) {
  const Lock lock(mutex_);
  if (attempt.value <= book_.ended_below()) return {};
  book_.set_ended_below(attempt.value);
  return write();
}

Attempt LaunchBook::ended_below() const {
  const Lock lock(mutex_);
  return Attempt{book_.ended_below()};
}

Attempt LaunchBook::newest() const {
  const Lock lock(mutex_);
  Attempt newest;
  for (const service::Launched& entry : book_.launched())
    newest = std::max(newest, Attempt{entry.attempt()});
  return newest;
}

bool LaunchBook::anything_runs() {
  const Lock lock(mutex_);
  return std::any_of(book_.mutable_launched()->begin(), book_.mutable_launched()->end(),
                     [this](auto& entry) { return is_alive(process_of(entry)) || runs(entry); });
}

SessionProcesses LaunchBook::processes_below(Attempt attempt) {
  const Lock lock(mutex_);
  SessionProcesses all;
  for (service::Launched& entry : *book_.mutable_launched()) {
    if (entry.attempt() >= attempt.value) continue;
    const SessionProcesses here = session(entry);
    all.members.insert(all.members.end(), here.members.begin(), here.members.end());
    all.maybe_more = all.maybe_more || here.maybe_more;
  }
  return all;
}

std::optional<std::filesystem::path> LaunchBook::log_folder(Attempt attempt) const {
  const Lock lock(mutex_);
  for (const service::Launched& entry : book_.launched()) {
    if (entry.attempt() == attempt.value) return entry.log_folder();
  }
  return std::nullopt;
}

}  // namespace surefoot
