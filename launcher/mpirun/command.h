// The command line and environment with which Open MPI 4.1 starts the workers of one attempt.
//
// Pure. Every option is there for a measured reason:
//   --bind-to none                 OpenBLAS takes its thread count from the affinity mask, and
//                                  mpirun binds 1 or 2 ranks but not 3: other bits, same job
//   --oversubscribe                more workers than cores is a choice of the user
//   --allow-run-as-root            only for root, whom mpirun refuses otherwise
//   mpi_yield_when_idle 1          a rank that waits gives its core to one that works
//   odls_base_sigkill_timeout 0    else mpirun takes 1 to 2 s to end after a rank was killed
//   pml ob1, btl self,vader,tcp    MPI_Init takes 0.04 s rather than 0.25 s: UCX and OFI are not
//                                  opened
//   btl_vader_backing_directory,   mpirun leaves shared memory and a session folder behind when
//   orte_tmpdir_base               it is killed; so each attempt has a folder of its own, and
//                                  whoever ends the attempt removes it
// The environment of an outer mpirun (OMPI_*, PMIX_*, ...) would make ours part of that job, so
// none of it is passed on.
//
// Over several machines also:
//   plm_rsh_agent                  surefoot-rsh, which asks the machine's service: no ssh at a
//   recovery, and the daemon is
//                                  in a session that the service ends
//   plm_rsh_no_tree_spawn 1        else daemons start each other, and rented machines cannot reach
//   each other so orte_leave_session_attached 1  else the daemon makes a session of its own
//   --host, --map-by slot          ranks go machine by machine. A machine that mpirun runs on is
//   always the first, whatever
//                                  is said: rank_order()
//   oob_, btl_tcp_if_include       the network; else Open MPI tries docker's bridges and waits for
//   them oob_tcp_dynamic_ipv4_ports, btl_tcp_port_min_v4, btl_tcp_port_range_v4    resources.ports
//   -x                             mpirun hands on no variables but its own
// Machines are called by their addresses, as mpirun looks every name up, and ssh's aliases are in
// no DNS.
//
// Measured on three hosts of the test cluster, two cores: `mpirun true` 0.47 s with the agent (1.4
// s with ssh); services reached and started over ssh 0.5 s, all at once. A daemon whose mpirun was
// killed ends its ranks and itself after 1.0 s, and leaves nothing but what it has in
// orte_tmpdir_base; behind a link that was cut, nobody notices anything for minutes: the services'
// lease is for that.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/launch_book.h"
#include "common/ids.h"
#include "common/process.h"
#include "launcher/nodes/node_list.h"

namespace surefoot {

struct GangNode {
  std::string name;  // `local`: host_name(); else the address in its endpoint
  int slots = 1;
  std::string endpoint;  // of its service
  bool local = false;    // mpirun runs on it
};

struct GangSpec {
  std::filesystem::path program;   // surefoot-worker
  std::filesystem::path job_file;  // resolved: <dir>/job.yaml
  std::filesystem::path job_directory;
  std::filesystem::path arena_folder;
  Attempt attempt;
  int workers = 1;  // in all
  // The machines; none, or this one alone: mpirun starts its workers without any daemon. With
  // others the workers' program and job file are those in the arena's folder
  // (launcher/nodes/start_request.h), on this machine too.
  std::vector<GangNode> nodes;
  std::string own_address;    // of this machine, as the others see it
  std::string network;        // mpi_network(); empty: all that there are
  std::string ports;          // resources.ports; may be empty
  bool has_bundle = false;    // the machines have Open MPI from resources.bundle
  std::filesystem::path rsh;  // surefoot-rsh
  std::string job_id;
  std::string faults;  // SUREFOOT_FAULTS: faults joined by ';'; empty: none
  std::int32_t supervisor_pid = 0;
  Step known_step;  // SUREFOOT_KNOWN_STEP: the furthest that is known to have been finished
  bool accept_changes = false;
  bool root = false;  // the effective user is root
};

// Whether mpirun has to have daemons started.
[[nodiscard]] bool is_over_machines(const GangSpec& spec);
// The order in which they get their ranks.
[[nodiscard]] std::vector<GangNode> rank_order(std::vector<GangNode> nodes);
// logs/attempt-003/nodes.json.
[[nodiscard]] std::filesystem::path node_list_file(const GangSpec& spec);
[[nodiscard]] NodeList node_list(const GangSpec& spec);

// argv, environment and output file (logs/attempt-003/mpirun.log; each rank writes
// logs/attempt-003/rank-R.log itself, see SUREFOOT_LOG_DIR).
[[nodiscard]] SpawnOptions mpirun_command(const GangSpec& spec);

// The entries of a process' environment, as in /proc/<pid>/environ, that say it belongs to this job
// and, if not 0, this attempt.
[[nodiscard]] bool belongs_to_gang(std::string_view environ_block,
                                   const std::filesystem::path& job_directory, Attempt attempt);

}  // namespace surefoot
