#include "launcher/nodes/discovery.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>

#include "launcher/nodes/run_program.h"

namespace surefoot {
namespace {

Look failure(std::string kind, std::string message) {
  return {error(Code::kRetry, "{}", message), std::move(kind)};
}

Look run_command(const DiscoveryOptions& options, int stop) {
  ProgramRun run;
  run.argv = {"/bin/sh", "-c", options.command};
  run.directory = options.directory.string();
  run.deadline = now() + options.patience;
  run.stop = stop;
  const auto end = run_program(run);
  if (!end) return {end.error(), "start"};
  const std::string said = last_line(end->errors);
  const std::string tail = said.empty() ? "" : ": " + said;
  if (end->why != ProgramEnd::Why::kExited)
    return failure("deadline", fmt::format("discovery_command did not end within {:.0f} s{}",
                                           seconds(options.patience), tail));
  if (end->status.signal != 0) {
    const std::string kind = fmt::format("signal {}", end->status.signal);
    return failure(kind, "discovery_command was ended by " + kind + tail);
  }
  if (end->status.code != 0) {
    const std::string kind = fmt::format("exit code {}", end->status.code);
    return failure(kind, "discovery_command left with " + kind + tail);
  }
  if (end->cut) return failure("size", "discovery_command prints more than 1 MiB");
  auto hosts = parse_discovery(end->output);
  if (!hosts) return failure("output", "what discovery_command prints, " + hosts.error().message);
  return {std::move(hosts), ""};
}

Look read_hostfile(const std::filesystem::path& file) {
  auto text = read_file(file);
  if (!text) return failure("file", "hostfile: " + text.error().message);
  const std::string name = "hostfile " + file.string();
  if (text->size() > kMaxOutputBytes) return failure("size", name + " has more than 1 MiB");
  auto hosts = parse_hostfile(*text);
  if (!hosts) return failure("output", name + ", " + hosts.error().message);
  return {std::move(hosts), ""};
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

Look discover(const DiscoveryOptions& options, int stop) {
  if (!options.command.empty()) return run_command(options, stop);
  if (!options.hostfile.empty()) return read_hostfile(options.hostfile);
  return {parse_hosts(options.hosts), "hosts"};
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
    const Look look = discover(options_, stop_.get());
    lock.lock();
    if (closing_) return;
    note(look);
    changed_.wait_until(lock, next, [this] { return closing_; });
  }
}

void Discovery::note(const Look& look) {
  if (!look.hosts) {
    if (complained_.insert(look.kind).second) complaint_ = look.hosts.error().message;
    return;
  }
  complained_.clear();
  if (newest_ == *look.hosts) return;
  newest_ = *look.hosts;
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
