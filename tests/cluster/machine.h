// One host of a cluster: the first process of its namespaces, and what it finds around it.
//
// A host has network, mount, UTS, IPC and PID namespaces of its own. It sees the machine's files,
// but for: /dev/shm, /tmp and /run (empty), /proc, /etc/hosts, /etc/passwd and /etc/shadow (root
// lives in /run/home), and /proc/sys/kernel/random/boot_id (another one after each boot). Its only
// way out is `eth0`, the other end of which the keeper holds; there is no route to anywhere else.
// An ssh daemon answers on port 22, with keys made for this cluster, which `ssh hostN` uses by
// itself.
//
// Everything of it ends when its first process ends, and nothing of it is anywhere else.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/file.h"
#include "common/status.h"

namespace surefoot::cluster {

struct SshKey {
  std::string secret;
  std::string open;  // the line of the .pub file
};
// By ssh-keygen, in a mount namespace of its own. Takes some 10 ms.
[[nodiscard]] Result<SshKey> make_ssh_key();

struct MachineSpec {
  int number = 0;
  std::vector<std::string> shared;  // folders seen although they lie below a private one
  SshKey host_key;
  SshKey user_key;
};
[[nodiscard]] std::string name_of_host(int number);     // "host0"
[[nodiscard]] std::string address_of_host(int number);  // "10.77.0.1"
inline constexpr int kMaxHosts = 250;

// Starts it as a child of the caller (who must be the first process of a PID namespace). Soon a
// packet arrives at `report`: {"ready": true} with the file descriptor of the tap device, or
// {"error": "..."}. The caller has one thread.
struct Machine {
  pid_t first = -1;
  Fd report;
};
[[nodiscard]] Result<Machine> boot(const MachineSpec& spec);

// Enters the host whose first process this is, and runs the program there as a child that ends with
// the caller. Returns its exit code; 128 + number after a signal. SIGTERM, SIGHUP, SIGUSR1 and
// SIGUSR2 are passed on to it; SIGQUIT ends it by SIGKILL.
[[nodiscard]] int run_inside(int first_process_fd, const std::vector<std::string>& argv);

// Why such hosts cannot be made on this machine; empty: they can.
[[nodiscard]] std::string machines_unavailable();

}  // namespace surefoot::cluster
