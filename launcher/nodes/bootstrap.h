// Has the job's service run on a machine, over ssh or on this one, and says how it is reached.
//
//   ssh -o BatchMode=yes ... NAME 'exec /bin/sh -c "exec PATH/surefoot-node --from-stdin"'
//
// with keys and job file on standard input (start_request.h). ssh returns once the service answers
// on its own machine, detached; whether it can be reached from here only a call to the endpoint
// tells. What is there already is found and stays as it is, so this may be repeated at any time,
// and at once from several threads for several machines.
//
// Where a bundle is named the machine runs it from ~/.cache/surefoot/<hash>/ (XDG_CACHE_HOME if
// set), and gets it when it has none of that hash.
//
// Blocks until `deadline` at the longest, or until `stop` can be read. Errors begin with the
// machine's name: kInvalid what the user has to see to (a host key that is not known, a key that is
// not accepted, no Surefoot there, another version of it, ...), kRetry what may pass (no way there,
// a time-out).
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/service_client.h"
#include "checkpoint/service_keys.h"
#include "common/clock.h"
#include "common/status.h"
#include "launcher/nodes/run_program.h"

namespace surefoot {

struct NodeAccess {
  std::string endpoint;  // tcp://ADDRESS:PORT. Of this machine too, where the service may be asked
                         // by its folder
  std::string address;   // in it
  std::string host;      // its own name
  bool local = false;    // this machine, under whatever name
};

struct BootstrapSettings {
  std::string ssh = "ssh";  // resources.ssh: for a shell, options and all
  std::string job_id;
  std::string job;                  // the resolved job file's text
  ServiceKeys keys;                 // all of them, or the server's half
  std::filesystem::path directory;  // of the job
  std::filesystem::path arena_folder;
  std::filesystem::path programs;  // the folder they lie in, here and, without a bundle, there
  std::filesystem::path bundle;    // the archive; empty: none
};

// Whether this name means this machine without asking anybody: empty, "localhost", its host name,
// an address of its own. With a USER@ it does not. (Another name for it is found out by bootstrap.)
[[nodiscard]] bool is_this_machine(const std::string& name);

// `name`: as ssh takes it, or empty.
[[nodiscard]] Result<NodeAccess> bootstrap(const std::string& name,
                                           const BootstrapSettings& settings, Time deadline,
                                           int stop = -1);

// How `command`, for /bin/sh whatever the user's log-in shell is, is run on a machine: `ssh`
// (resources.ssh) without a question asked, ended by itself when we and the machine are both gone.
[[nodiscard]] ProgramRun ssh_run(const std::string& ssh, const std::string& name,
                                 const std::string& command, Time deadline, int stop = -1);

// Pure: what ssh's end means. `bundle`: the archive that `program` is from; empty: none.
[[nodiscard]] Error reason_of_failure(const std::string& name, const std::string& program,
                                      const ProgramEnd& end,
                                      const std::filesystem::path& bundle = {});

}  // namespace surefoot
