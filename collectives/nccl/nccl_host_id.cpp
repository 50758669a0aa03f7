#include "collectives/nccl/nccl_host_id.h"

#include <fmt/format.h>

#include <cstdlib>

namespace surefoot {

std::optional<std::string> nccl_host_id(const Place& place, int devices_of_node) {
  if (place.local_size <= devices_of_node) return std::nullopt;
  return fmt::format("surefoot-node-{}-rank-{}", place.node, place.local_rank);
}

void set_nccl_host_id(const Place& place, int devices_of_node) {
  constexpr int kKeepTheUsers = 0;
  if (const auto id = nccl_host_id(place, devices_of_node))
    setenv("NCCL_HOSTID", id->c_str(), kKeepTheUsers);
}

}  // namespace surefoot
