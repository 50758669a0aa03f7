#include "launcher/doctor/hosts.h"

#include <atomic>
#include <mutex>
#include <sstream>
#include <thread>

#include "launcher/nodes/bootstrap.h"
#include "launcher/nodes/bundle.h"

namespace surefoot::doctor {
namespace {

constexpr std::string_view kMark = "surefoot-doctor ";

}  // namespace

std::string host_command(const std::string& folder) {
  // One line: what a log-in prints stands before it.
  return fmt::format(
      "n=0; o=0; test -x {} && n=1; command -v orted >/dev/null && o=1; "
      "echo; echo \"{}$n $o $SSH_CONNECTION\"",
      shell_quoted(folder + "/surefoot-node"), kMark);
}

HostFacts host_facts(const std::string& name, const std::string& folder,
                     const Result<ProgramEnd>& end, double seconds) {
  HostFacts facts;
  facts.seconds = seconds;
  if (!end) {
    facts.fault = end.error().message;
    facts.cure = "resources.ssh";
    return facts;
  }
  const std::size_t mark = end->output.rfind(kMark);
  if (!end->succeeded() || mark == std::string::npos) {
    facts.unknown = end->why != ProgramEnd::Why::kExited;
    facts.fault = facts.unknown
                      ? fmt::format("no answer within {:.0f} s", surefoot::seconds(kPatience))
                      : reason_of_failure(name, folder + "/surefoot-node", *end).message;
    // The finding names it already.
    if (facts.fault.starts_with(name + ": ")) facts.fault.erase(0, name.size() + 2);
    facts.cure = fmt::format("ssh -o BatchMode=yes {} true", name);
    return facts;
  }
  std::istringstream words(end->output.substr(mark + kMark.size()));
  std::string node, orted, client, client_port;
  words >> node >> orted >> client >> client_port >> facts.address;
  facts.has_node = node == "1";
  facts.has_orted = orted == "1";
  return facts;
}

Finding check_host(const HostFacts& facts, const std::string& folder, bool bundle) {
  const std::string check = "host";
  if (facts.unknown) return not_checked(check, facts.fault, facts.cure);
  if (!facts.fault.empty()) return bad(check, facts.fault, facts.cure);
  std::string found = fmt::format("reached in {:.2f} s", facts.seconds);
  if (!facts.address.empty()) found += ", by its address " + facts.address;
  if (bundle) return ok(check, found + "; resources.bundle brings the programs");
  if (!facts.has_node) {
    return bad(check, fmt::format("{}, but it has no {}/surefoot-node", found, folder),
               "put Surefoot into the same folder there, or set resources.bundle (make bundle)");
  }
  if (!facts.has_orted)
    return bad(check, found + ", but it has no Open MPI (orted)",
               "apt-get install openmpi-bin there, or set resources.bundle (make bundle)");
  return ok(check, found + "; surefoot-node and orted are there");
}

Duration hosts_patience(std::size_t count) {
  const auto turns = (count + kHostsAtOnce - 1) / kHostsAtOnce;
  return kPatience * std::max<std::int64_t>(static_cast<std::int64_t>(turns), 1);
}

void look_at_hosts(const HostsRequest& request, const Asked& asked) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;  // of what is said
  const auto work = [&] {
    for (std::size_t i = next++; i < request.hosts.size(); i = next++) {
      const std::string& name = request.hosts[i].name;
      Finding finding = ok("host", "this machine");
      if (!is_this_machine(name)) {
        const Time begin = now();
        const auto end =
            run_program(ssh_run(request.ssh, name, host_command(request.folder),
                                std::min<Time>(begin + kPatience, asked.deadline), asked.stop));
        finding = check_host(host_facts(name, request.folder, end, seconds(now() - begin)),
                             request.folder, request.bundle);
      }
      const std::lock_guard lock(mutex);
      asked.say(on(name, std::move(finding)));
    }
  };
  std::vector<std::thread> threads;
  const std::size_t count = std::min<std::size_t>(request.hosts.size(), kHostsAtOnce);
  for (std::size_t i = 0; i < count; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace surefoot::doctor
