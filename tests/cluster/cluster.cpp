#include "tests/cluster/cluster.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

#include "tests/cluster/machine.h"
#include "tests/cluster/wire.h"

namespace surefoot::cluster {
namespace {

std::string program() {
  return program_directory() + "/surefoot-cluster";
}

Fd anonymous_file() {
  return Fd(::memfd_create("surefoot-output", MFD_CLOEXEC));
}
std::string path_of(const Fd& fd) {
  return fmt::format("/proc/self/fd/{}", fd.get());
}
std::string content_of(const Fd& fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got;
       (got = ::pread(fd.get(), buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

constexpr Duration kEndPatience = std::chrono::seconds(10);

void pause_briefly() {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Nothing when it did not end in time.
std::optional<ExitStatus> await_exit(const ProcessId& process, Time deadline) {
  for (;;) {
    if (auto exit = poll_exit(process)) return exit;
    if (now() >= deadline) return std::nullopt;
    pause_briefly();
  }
}

}  // namespace

std::string cluster_unavailable() {
  return machines_unavailable();
}

Running::Running(Running&& other) noexcept
    : process_(std::exchange(other.process_, ProcessId{})),
      output_(std::move(other.output_)),
      begun_(other.begun_) {}

Running::~Running() {
  if (process_.pid != 0) (void)end();
}

// SIGQUIT: it ends what it runs by SIGKILL, and then itself.
std::optional<ExitStatus> Running::end() {
  const ProcessId process = std::exchange(process_, ProcessId{});
  (void)send_signal(process, SIGQUIT);
  if (auto exit = await_exit(process, now() + kEndPatience)) return exit;
  (void)send_signal(process, SIGKILL);
  return await_exit(process, now() + kEndPatience);
}

CommandResult Running::wait(Time deadline) {
  CommandResult result;
  auto exit = await_exit(process_, deadline);
  if (!exit) {
    result.timed_out = true;
    exit = end();
  }
  process_ = ProcessId{};
  if (exit) result.exit_code = exit->signal != 0 ? 128 + exit->signal : exit->code;
  result.output = output();
  result.seconds = seconds(now() - begun_);
  return result;
}

std::string Running::output() const {
  return content_of(output_);
}

Status Running::signal(int number) const {
  return send_signal(process_, number);
}

std::string Host::name() const {
  return name_of_host(number_);
}
std::string Host::address() const {
  return address_of_host(number_);
}

Result<Running> Host::start(const std::vector<std::string>& argv, const Options& options) const {
  SpawnOptions spawned;
  spawned.argv = {program(), "--cluster", cluster_->name(), "exec", name()};
  spawned.argv.insert(spawned.argv.end(), argv.begin(), argv.end());
  spawned.environment = options.environment;
  spawned.directory = options.directory;
  Fd output = anonymous_file();
  spawned.output = path_of(output);
  SUREFOOT_ASSIGN(const ProcessId process, spawn(spawned));
  return Running(process, std::move(output));
}

CommandResult Host::run(const std::vector<std::string>& argv, const Options& options) const {
  auto running = start(argv, options);
  if (running) return running->wait(now() + options.patience);
  CommandResult result;
  result.output = running.error().message;
  return result;
}

Status Host::add_address(const std::string& address) const {
  const CommandResult added = run({"ip", "address", "add", address + "/32", "dev", "lo"});
  if (added.exit_code != 0)
    return error(Code::kRetry, "{} gets no address {}: {}", name(), address, added.output);
  return {};
}

Status Host::ask(const std::string& op, nlohmann::json more) const {
  more["op"] = op;
  more["host"] = name();
  SUREFOOT_TRY(cluster_->ask(more));
  return {};
}

Status Host::kill() const {
  return ask("kill");
}
Status Host::reboot() const {
  return ask("reboot");
}
Status Host::freeze() const {
  return ask("freeze");
}
Status Host::thaw() const {
  return ask("thaw");
}
Status Host::cut() const {
  return ask("cut");
}
Status Host::cut(const Host& to) const {
  return ask("cut", {{"to", to.name()}});
}
Status Host::heal() const {
  return ask("heal");
}
Status Host::impair(Duration delay, double loss) const {
  return ask("impair", {{"delay_ms", seconds(delay) * 1e3}, {"loss", loss}});
}

Result<std::unique_ptr<Cluster>> Cluster::start(const ClusterOptions& options) {
  static std::atomic<int> number{0};
  std::unique_ptr<Cluster> cluster(new Cluster(fmt::format("{}-{}", ::getpid(), ++number)));
  SUREFOOT_TRY(cluster->start_keeper(options));
  // All at once.
  for (int i = 0; i < options.hosts; ++i)
    SUREFOOT_TRY(send_packet(cluster->connection_.get(), {{"op", "add"}}));
  for (int i = 0; i < options.hosts; ++i) {
    SUREFOOT_ASSIGN(const Packet added,
                    receive_packet(cluster->connection_.get(), now() + kPatience));
    if (added.json.contains("error"))
      return error(Code::kRetry, "a host does not come up: {}",
                   added.json["error"].get<std::string>());
  }
  cluster->hosts_ = options.hosts;
  return cluster;
}

Status Cluster::start_keeper(const ClusterOptions& options) {
  SpawnOptions spawned;
  spawned.argv = {program(), "--cluster", name_, "keep", "--parent", std::to_string(::getpid())};
  std::vector<std::string> shared = options.shared;
  shared.push_back(program_directory());
  for (const std::string& folder : shared) {
    spawned.argv.push_back("--share");
    spawned.argv.push_back(folder);
  }
  keeper_output_ = anonymous_file();
  spawned.output = path_of(keeper_output_);
  SUREFOOT_ASSIGN(keeper_, spawn(spawned));
  for (const Time deadline = now() + kPatience; now() < deadline; pause_briefly()) {
    auto connection = connect_to(name_);
    if (connection) {
      connection_ = std::move(*connection);
      return {};
    }
    if (poll_exit(keeper_)) break;
  }
  keeper_ = ProcessId{};
  return error(Code::kRetry, "the cluster does not come up: {}", content_of(keeper_output_));
}

// Returns when nothing of it is there any more.
Cluster::~Cluster() {
  if (keeper_.pid == 0) return;
  (void)send_packet(connection_.get(), {{"op", "down"}});
  if (await_exit(keeper_, now() + kPatience)) return;
  (void)send_signal(keeper_, SIGKILL);
  (void)await_exit(keeper_, now() + kPatience);
}

Result<Host> Cluster::add() {
  SUREFOOT_TRY(ask({{"op", "add"}}));
  return host(hosts_++);
}

Result<nlohmann::json> Cluster::ask(const nlohmann::json& request) {
  SUREFOOT_TRY(send_packet(connection_.get(), request));
  SUREFOOT_ASSIGN(Packet packet, receive_packet(connection_.get(), now() + kPatience));
  if (packet.json.contains("error"))
    return error(Code::kRetry, "{} {}: {}", request.value("op", ""), request.value("host", ""),
                 packet.json["error"].get<std::string>());
  return std::move(packet.json);
}

}  // namespace surefoot::cluster
