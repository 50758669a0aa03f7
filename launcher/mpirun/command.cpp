#include "launcher/mpirun/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "configs/job_directory.h"
#include "configs/machines.h"
#include "launcher/nodes/start_request.h"

namespace surefoot {

bool is_over_machines(const GangSpec& spec) {
  return std::any_of(spec.nodes.begin(), spec.nodes.end(),
                     [](const GangNode& node) { return !node.local; });
}

std::vector<GangNode> rank_order(std::vector<GangNode> nodes) {
  std::stable_partition(nodes.begin(), nodes.end(),
                        [](const GangNode& node) { return node.local; });
  return nodes;
}

std::filesystem::path node_list_file(const GangSpec& spec) {
  return JobDirectory{spec.job_directory}.attempt_logs(spec.attempt) / "nodes.json";
}

NodeList node_list(const GangSpec& spec) {
  const JobDirectory directory{spec.job_directory};
  NodeList list{spec.attempt,
                spec.job_id,
                directory.service_keys(),
                directory.attempt_logs(spec.attempt),
                {}};
  for (const GangNode& node : rank_order(spec.nodes))
    list.nodes.push_back({node.name, node.endpoint});
  return list;
}

namespace {

using Parameters = std::vector<std::pair<std::string, std::string>>;

// The same paths on all machines.
void use_node_files(GangSpec& spec) {
  spec.job_file = node_job_file(spec.arena_folder);
  spec.program = node_programs(spec.arena_folder) / spec.program.filename();
}

void append_machines(const GangSpec& spec, std::vector<std::string>& argv) {
  std::string hosts;
  for (const GangNode& node : rank_order(spec.nodes))
    hosts += fmt::format("{}{}:{}", hosts.empty() ? "" : ",", node.name, node.slots);
  argv.insert(argv.end(), {"--host", hosts, "--map-by", "slot"});
}

void append_parameters(const GangSpec& spec, Parameters& parameters) {
  parameters.insert(parameters.end(),
                    {{"plm_rsh_agent", spec.rsh.string() + " " + node_list_file(spec).string()},
                     {"plm_rsh_no_tree_spawn", "1"},
                     {"orte_leave_session_attached", "1"}});
  if (spec.has_bundle)
    parameters.emplace_back("orte_launch_agent",
                            (node_programs(spec.arena_folder) / "orted").string());
  if (!spec.network.empty()) {
    parameters.emplace_back("oob_tcp_if_include", spec.network);
    parameters.emplace_back("btl_tcp_if_include", spec.network);
  }
  if (const auto ports = parse_ports(spec.ports)) {
    parameters.emplace_back("oob_tcp_dynamic_ipv4_ports", spec.ports);
    parameters.emplace_back("btl_tcp_port_min_v4", std::to_string(ports->first));
    parameters.emplace_back("btl_tcp_port_range_v4", std::to_string(ports->count()));
  }
}

// All but the supervisor's pid, which means somebody else elsewhere.
void append_exports(const SpawnOptions& options, std::vector<std::string>& argv) {
  for (const std::string& entry : options.environment) {
    const std::string name = entry.substr(0, entry.find('='));
    if (name != "SUREFOOT_SUPERVISOR") argv.insert(argv.end(), {"-x", name});
  }
}

}  // namespace

SpawnOptions mpirun_command(const GangSpec& given) {
  GangSpec spec = given;
  const bool over_machines = is_over_machines(spec);
  if (over_machines) use_node_files(spec);
  const std::string own_files = attempt_folder(spec.arena_folder, spec.attempt).string();
  const std::filesystem::path logs = JobDirectory{spec.job_directory}.attempt_logs(spec.attempt);
  SpawnOptions options;
  options.argv = {"mpirun"};
  if (spec.root) options.argv.push_back("--allow-run-as-root");
  const std::vector<std::string> fixed = {"--oversubscribe", "--bind-to", "none", "-np",
                                          std::to_string(spec.workers)};
  options.argv.insert(options.argv.end(), fixed.begin(), fixed.end());
  if (over_machines) append_machines(spec, options.argv);
  Parameters parameters = {
      {"mpi_yield_when_idle", "1"},
      {"odls_base_sigkill_timeout", "0"},
      {"pml", "ob1"},
      {"btl", "self,vader,tcp"},
      {"btl_vader_backing_directory", own_files},
      {"orte_tmpdir_base", own_files},
  };
  if (over_machines) append_parameters(spec, parameters);
  for (const auto& [key, value] : parameters)
    options.argv.insert(options.argv.end(), {"--mca", key, value});
  options.environment = {
      fmt::format("SUREFOOT_ATTEMPT={}", spec.attempt),
      fmt::format("SUREFOOT_JOB_DIR={}", spec.job_directory.string()),
      fmt::format("SUREFOOT_LOG_DIR={}", logs.string()),
      fmt::format("SUREFOOT_SUPERVISOR={}", spec.supervisor_pid),
      fmt::format("SUREFOOT_FAULTS={}", spec.faults),
      fmt::format("SUREFOOT_KNOWN_STEP={}", spec.known_step),
      fmt::format("SUREFOOT_WORKERS={}", spec.workers),
  };
  if (over_machines) {
    const GangNode first = rank_order(spec.nodes).front();
    if (!spec.network.empty()) options.environment.push_back("SUREFOOT_NETWORK=" + spec.network);
    options.environment.push_back("MASTER_ADDR=" + (first.local ? spec.own_address : first.name));
  }
  if (over_machines) append_exports(options, options.argv);
  options.argv.insert(options.argv.end(), {spec.program.string(), spec.job_file.string(), "--dir",
                                           spec.job_directory.string()});
  if (spec.accept_changes) options.argv.push_back("--accept-changes");
  options.dropped = kept_from_workers();
  options.output = (logs / "mpirun.log").string();
  options.directory = spec.job_directory.string();
  return options;
}

bool belongs_to_gang(std::string_view environ_block, const std::filesystem::path& job_directory,
                     Attempt attempt) {
  const std::string job = fmt::format("SUREFOOT_JOB_DIR={}", job_directory.string());
  const std::string number = fmt::format("SUREFOOT_ATTEMPT={}", attempt);
  return has_entry(environ_block, job) && (attempt.value == 0 || has_entry(environ_block, number));
}

}  // namespace surefoot
