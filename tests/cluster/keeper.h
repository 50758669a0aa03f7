// The keeper of a cluster: the first process of a PID namespace in which all hosts live, so that
// nothing of them outlives it, however it ends.
//
// It boots and ends hosts, holds the other end of their cables (switch.h), and does what it is
// asked to over a socket (wire.h), one JSON object a packet:
//   {"op": "add"}                                  a new host; answered when it is up
//   {"op": "kill" | "reboot", "host": "host0"}     answered when it is gone, or up again
//   {"op": "freeze" | "thaw", "host": ...}         all of its processes stop, or go on
//   {"op": "cut", "host": ..., ["to": "host1"]}    the host's cable, or what it sends to one other
//   {"op": "heal", "host": ...}                    takes back the cuts that name the host
//   {"op": "impair", "host": ..., "delay_ms": 10, "loss": 0.05}
//   {"op": "enter", "host": ...}                   a pidfd to enter it; answered once it is thawed
//   {"op": "list"}                                 names, addresses, states
//   {"op": "down"}                                 everything ends
// Answers: {"error": "..."} or what was asked for.
//
// One thread, one loop.
#pragma once

#include <string>
#include <vector>

#include "common/file.h"
#include "common/status.h"

namespace surefoot::cluster {

struct KeeperOptions {
  std::string name;
  std::vector<std::string> shared;  // folders that hosts see although they lie below a private one
  int parent = 0;                   // not 0: the keeper ends when this parent of the caller ends
};
// Makes the keeper and waits for its end. The caller has one thread. Returns an exit code; says on
// standard error what went wrong.
[[nodiscard]] int keep(const KeeperOptions& options);

}  // namespace surefoot::cluster
