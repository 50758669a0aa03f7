// Several ranks on one GPU. NCCL refuses two ranks of a host on one device; ranks that say they are
// hosts of their own may, and talk over sockets. For tests, and for trying out more ranks than
// there are GPUs: slow, since the ranks' kernels take turns.
#pragma once

#include <optional>
#include <string>

#include "collectives/reducer.h"

namespace surefoot {

// What NCCL_HOSTID must be for this rank; nothing where every rank of the node has a device.
[[nodiscard]] std::optional<std::string> nccl_host_id(const Place& place, int devices_of_node);
// Sets it, unless the user has set another. Before the first open() of the process, with no other
// thread running.
void set_nccl_host_id(const Place& place, int devices_of_node);

}  // namespace surefoot
