#include "launcher/nodes/discovery.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>

#include "launcher/nodes/run_program.h"

namespace surefoot {
namespace {

Result<std::vector<HostSpec>> run_command(const DiscoveryOptions& options, int stop) {
  ProgramRun run;
  run.argv = {"/bin/sh", "-c", options.command};
  run.directory = options.directory.string();
  run.deadline = now() + options.patience;
  run.stop = stop;
  SUREFOOT_ASSIGN(const ProgramEnd end, run_program(run));
  const std::string said = last_line(end.errors);
  const std::string tail = said.empty() ? "" : ": " + said;
  if (end.why != ProgramEnd::Why::kExited)
    return error(Code::kRetry, "discovery_command did not end within {:.0f} s{}",
                 seconds(options.patience), tail);
  if (end.status.signal != 0)
    return error(Code::kRetry, "discovery_command was ended by signal {}{}", end.status.signal,
                 tail);
  if (end.status.code != 0)
    return error(Code::kRetry, "discovery_command left with exit code {}{}", end.status.code, tail);
  if (end.cut) return error(Code::kRetry, "discovery_command prints more than 1 MiB");
  auto hosts = parse_discovery(end.output);
  if (!hosts)
    return error(Code::kRetry, "what discovery_command prints, {}", hosts.error().message);
  return hosts;
}

Result<std::vector<HostSpec>> read_hostfile(const std::filesystem::path& file) {
  auto text = read_file(file);
  if (!text) return error(Code::kRetry, "hostfile: {}", text.error().message);
  if (text->size() > kMaxOutputBytes)
    return error(Code::kRetry, "hostfile {} has more than 1 MiB", file.string());
  auto hosts = parse_hostfile(*text);
  if (!hosts) return error(Code::kRetry, "hostfile {}, {}", file.string(), hosts.error().message);
  return hosts;
}

// Failures of the same kind differ in what they found.
std::string kind_of(const std::string& message) {
  return message.substr(0, message.find("found"));
}

}  // namespace

DiscoveryOptions discovery_options(const config::Resources& resources,
                                   const std::filesystem::path& job_directory) {
  DiscoveryOptions options;
  options.hosts = {resources.hosts().begin(), resources.hosts().end()};
  options.hostfile = resources.hostfile();
  options.command = resources.discovery_command();
  options.directory = job_directory;
  options.interval = std::chrono::milliseconds(resources.discovery_interval());
  return options;
}

Result<std::vector<HostSpec>> discover(const DiscoveryOptions& options, int stop) {
  if (!options.command.empty()) return run_command(options, stop);
  if (!options.hostfile.empty()) return read_hostfile(options.hostfile);
  return parse_hosts(options.hosts);
}

Discovery::Discovery(DiscoveryOptions options)
    : options_(std::move(options)), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  const bool changes = !options_.command.empty() || !options_.hostfile.empty();
  if (changes) {
    thread_ = std::thread([this] { run(); });
  } else if (!options_.hosts.empty()) {
    note(discover(options_));
  }
}

Discovery::~Discovery() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(stop_.get(), &one, sizeof one);
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Discovery::run() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    const Time next = now() + options_.interval;
    lock.unlock();
    const auto found = discover(options_, stop_.get());
    lock.lock();
    if (closing_) return;
    note(found);
    changed_.wait_until(lock, next, [this] { return closing_; });
  }
}

void Discovery::note(const Result<std::vector<HostSpec>>& found) {
  if (!found) {
    if (complained_.insert(kind_of(found.error().message)).second)
      complaint_ = found.error().message;
    return;
  }
  complained_.clear();
  if (newest_ == *found) return;
  newest_ = *found;
  taken_ = false;
}

std::optional<std::vector<HostSpec>> Discovery::take() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(taken_, true)) return std::nullopt;
  return newest_;
}

std::optional<std::string> Discovery::complaint() {
  const std::lock_guard lock(mutex_);
  return std::exchange(complaint_, std::nullopt);
}

}  // namespace surefoot
