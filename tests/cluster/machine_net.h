// A host's network devices, set up from inside of its network namespace.
#pragma once

#include "common/file.h"
#include "common/status.h"

namespace surefoot::cluster {

// Brings up `lo`, makes `eth0` with the host's address, and returns the end of it on which one read
// or write is one frame.
[[nodiscard]] Result<Fd> make_network(int number);
[[nodiscard]] Result<Fd> listen_on(int port);

}  // namespace surefoot::cluster
