#include "checkpoint/node_check.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "checkpoint/arena_format.h"
#include "checkpoint/arena_space.h"
#include "checkpoint/launch_book.h"
#include "checkpoint/service_client.h"
#include "checkpoint/service_message.h"
#include "common/address.h"
#include "common/file.h"

namespace surefoot {
namespace {

using std::chrono::milliseconds;

constexpr double kLongest = 600;
constexpr int kMaxConnections = 1024;  // arbitrary: one a node
constexpr auto kPoll = milliseconds(10);
constexpr Duration kEndPatience = std::chrono::seconds(10);
constexpr std::int64_t kMaxProbeBytes = 4096;
constexpr std::size_t kMaxDescription = 1 << 20;

int milliseconds_until(Time deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

// ---- connections ----

// Connections that the kernel makes while other things are looked at.
class Connections {
 public:
  explicit Connections(const service::Check& request) {
    for (const std::string& text : request.connect_to()) {
      Pending pending{text, Fd(), {}};
      if (const auto address = parse_address_and_port(text); !address) {
        pending.fault = "not an address in numbers with a port";
      } else if (pending_.size() >= kMaxConnections) {
        pending.fault = "too many are asked for at once";
      } else {
        begin(*address, pending);
      }
      pending_.push_back(std::move(pending));
    }
  }

  void await(Time deadline, const std::function<bool()>& stop, service::CheckReply& reply) {
    // What the kernel has done by then counts, also where other things have taken all the time.
    for (bool over = false; !over;) {
      std::vector<pollfd> open;
      for (const Pending& pending : pending_) {
        if (pending.fd) open.push_back({pending.fd.get(), POLLOUT, 0});
      }
      over = open.empty() || now() >= deadline || (stop && stop());
      const int patience = over ? 0 : std::min<int>(milliseconds_until(deadline), 100);
      if (::poll(open.data(), open.size(), patience) <= 0) continue;
      for (const pollfd& each : open) {
        if (each.revents != 0) settle(each.fd);
      }
    }
    for (const Pending& pending : pending_) {
      const std::string fault = pending.fd ? "no answer in time" : pending.fault;
      if (!fault.empty()) reply.add_unreachable(as_utf8(pending.text + ": " + fault));
    }
  }

 private:
  struct Pending {
    std::string text;
    Fd fd;              // open: not known yet
    std::string fault;  // empty, and no fd: it was taken
  };

  static void begin(const SocketAddress& address, Pending& pending) {
    pending.fd =
        Fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (pending.fd && ::connect(pending.fd.get(), address.name(), address.bytes) == 0) {
      pending.fd.reset();
    } else if (!pending.fd || errno != EINPROGRESS) {
      pending.fault = errno_text(errno);
      pending.fd.reset();
    }
  }

  void settle(int fd) {
    for (Pending& pending : pending_) {
      if (pending.fd.get() != fd) continue;
      int number = 0;
      socklen_t bytes = sizeof number;
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &bytes);
      if (number != 0) pending.fault = errno_text(number);
      pending.fd.reset();
    }
  }

  std::vector<Pending> pending_;
};

// ---- the store ----

// Nothing else may be written, read or removed by such a message.
bool is_probe(const std::string& name) {
  constexpr std::string_view kPrefix = "probe-";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() && name.size() <= 80 &&
         name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string::npos;
}

Status put(Store& store, const std::string& name, Time deadline) {
  Status done = put_if_absent(store, name, name, deadline);
  // Asked before.
  if (!done && done.error().code == Code::kExists) return {};
  return done;
}

Status get(Store& store, const std::string& name, Time deadline) {
  auto found = read_object(store, name, kMaxProbeBytes, deadline);
  if (!found)
    return error(found.error().code, "{}/{}: {}", store.url(), name, found.error().message);
  if (*found != name) return error(Code::kCorrupt, "{}/{} has another content", store.url(), name);
  return {};
}

void look_at_store(const service::Check& request, const OpenStore& open, Time deadline,
                   service::CheckReply& reply) {
  const bool puts = !request.put_probe().empty();
  const bool gets = !request.get_probe().empty();
  const bool removes = !request.remove_probe().empty();
  if (!puts && !gets && !removes) return;
  const auto store = open();
  // What a server says may be anything, and a message's text is UTF-8.
  const auto with = [&](const std::string& name, auto&& act) -> std::string {
    if (!is_probe(name)) return "not the name of a probe";
    const Status done = store ? act(**store, name) : Status(store.error());
    return done ? std::string() : as_utf8(done.error().message);
  };
  if (puts) {
    reply.set_put_error(
        with(request.put_probe(), [&](auto& in, auto& name) { return put(in, name, deadline); }));
  }
  if (gets) {
    reply.set_get_error(
        with(request.get_probe(), [&](auto& in, auto& name) { return get(in, name, deadline); }));
  }
  if (removes) {
    const std::string fault = with(request.remove_probe(),
                                   [&](auto& in, auto& name) { return in.remove(name, deadline); });
    if (reply.put_error().empty()) reply.set_put_error(fault);
  }
}

// ---- programs that know ----

// A program that runs while other things are looked at.
class Asking {
 public:
  // `name`: as people know it; `output`: a file of its own.
  Asking(std::string name, const std::vector<std::string>& argv, std::filesystem::path output)
      : name_(std::move(name)), output_(std::move(output)) {
    if (argv.empty()) return;
    ::unlink(output_.c_str());
    SpawnOptions options;
    options.argv = argv;
    options.dropped = kept_from_workers();
    options.output = output_.string();
    process_ = spawn(options);
  }

  struct Said {
    int code = -1;
    std::string text;
  };
  [[nodiscard]] Result<Said> await(Time deadline, const std::function<bool()>& stop) {
    if (!process_) return process_.error();
    std::optional<ExitStatus> exit;
    bool late = false;
    while (!(exit = poll_exit(*process_)) && !late) {
      late = now() >= deadline || (stop && stop());
      if (!late) std::this_thread::sleep_for(kPoll);
    }
    if (!exit) {
      (void)end_processes({*process_}, now() + kEndPatience);
      (void)poll_exit(*process_);
    }
    const auto text = read_file(output_);
    ::unlink(output_.c_str());
    if (!exit) return error(Code::kRetry, "{} did not end in time", name_);
    return Said{exit->code, text ? *text : std::string()};
  }

 private:
  std::string name_;
  std::filesystem::path output_;
  Result<ProcessId> process_ = error(Code::kInvalid, "there is no program to describe the job");
};

std::vector<std::string> with(std::vector<std::string> argv, std::vector<std::string> more) {
  if (!argv.empty()) argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

void take_description(const Result<Asking::Said>& said, service::CheckReply& reply) {
  if (!said) return reply.set_describe_error(as_utf8(said.error().message));
  // Libraries may have printed before it.
  const std::size_t line = said->text.rfind("\n{");
  const std::string object = line == std::string::npos ? said->text : said->text.substr(line + 1);
  const bool good = said->code == 0 && object.starts_with('{') && object.size() < kMaxDescription;
  if (good) return reply.set_description(as_utf8(object));
  reply.set_describe_error(said->text.empty()
                               ? fmt::format("surefoot-worker --describe ended with {}", said->code)
                               : as_utf8(said->text.substr(0, kMaxDescription)));
}

void take_gpus(const Result<Asking::Said>& said, service::CheckReply& reply) {
  bool done = false;
  std::string_view rest = said ? std::string_view(said->text) : std::string_view();
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    constexpr std::string_view kFault = "fault ", kWarning = "warning ";
    if (line.starts_with(kFault)) reply.add_gpu_faults(as_utf8(line.substr(kFault.size())));
    if (line.starts_with(kWarning)) reply.add_gpu_warnings(as_utf8(line.substr(kWarning.size())));
    done = line == "done";
  }
  if (done) return;
  reply.add_gpu_faults(said ? fmt::format("the look at its GPUs ended with {}", said->code)
                            : as_utf8(said.error().message));
}

// ---- the machine ----

void look_at_machine(const std::filesystem::path& arena_folder, service::CheckReply& reply) {
  reply.set_build(build_text());
  reply.set_cores(static_cast<std::int32_t>(std::thread::hardware_concurrency()));
  const auto space = look_at_space(arena_folder);
  if (space) reply.set_arena_free_bytes(space->free_bytes);
  const auto memory = available_memory();
  if (!memory) return;
  const std::int64_t room = cgroup_room("/");
  reply.set_memory_bytes(room >= 0 ? std::min(room, *memory) : *memory);
}

}  // namespace

service::CheckReply check_node(const service::Check& request, const NodeTools& tools) {
  const double seconds = request.seconds() > 0 ? std::min(request.seconds(), kLongest) : 0;
  const Time deadline = now() + from_seconds(seconds);
  service::CheckReply reply;
  Connections connections(request);
  std::optional<Asking> describing, looking;
  if (request.describe())
    describing.emplace("surefoot-worker --describe", with(tools.describe, {"--describe"}),
                       tools.arena_folder / "describe");
  if (request.describe() && !tools.look_at_gpus.empty()) {
    looking.emplace("the look at its GPUs",
                    with(tools.look_at_gpus, {"--workers", std::to_string(request.workers())}),
                    tools.arena_folder / "look-at-gpus");
  }
  look_at_machine(tools.arena_folder, reply);
  look_at_store(request, tools.open_store, deadline, reply);
  connections.await(deadline, tools.stop, reply);
  if (describing) take_description(describing->await(deadline, tools.stop), reply);
  if (looking) take_gpus(looking->await(deadline, tools.stop), reply);
  return reply;
}

std::string build_text() {
  return fmt::format("surefoot {}, protocol {}, arena {}", SUREFOOT_VERSION, kProtocol,
                     arena_format::kArenaVersion);
}

}  // namespace surefoot
