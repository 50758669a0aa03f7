// The machines that a job names: whether ssh reaches each without a question, and finds there what
// a start needs. Nothing is started on them.
#pragma once

#include <string>
#include <vector>

#include "configs/machines.h"
#include "launcher/doctor/finding.h"
#include "launcher/doctor/run_checks.h"
#include "launcher/nodes/run_program.h"

namespace surefoot::doctor {

struct HostFacts {
  std::string fault;  // it was not reached; empty: it was
  std::string cure;
  bool unknown = false;    // no answer within the patience: nobody knows why
  double seconds = 0;      // that it took
  std::string address;     // of that machine, as ssh came in
  bool has_node = false;   // surefoot-node lies where it is looked for
  bool has_orted = false;  // Open MPI's daemon is in PATH
};
// Pure: what is run there, and what ssh's end says.
[[nodiscard]] std::string host_command(const std::string& folder);
[[nodiscard]] HostFacts host_facts(const std::string& name, const std::string& folder,
                                   const Result<ProgramEnd>& end, double seconds);
// `bundle`: resources.bundle brings the programs.
[[nodiscard]] Finding check_host(const HostFacts& facts, const std::string& folder, bool bundle);

struct HostsRequest {
  std::vector<HostSpec> hosts;
  std::string ssh;     // resources.ssh
  std::string folder;  // of our programs, here and there
  bool bundle = false;
};
// So many ssh at once; each has kPatience.
inline constexpr int kHostsAtOnce = 64;
[[nodiscard]] Duration hosts_patience(std::size_t count);
// Says "host", on each. Threads of its own, which are joined.
void look_at_hosts(const HostsRequest& request, const Asked& asked);

}  // namespace surefoot::doctor
