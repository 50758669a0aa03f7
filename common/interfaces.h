// The network interfaces of this machine.
#pragma once

#include <string>
#include <vector>

namespace surefoot {

struct InterfaceAddress {
  std::string name;     // "eth0"
  std::string address;  // in numbers
};
// Of this machine, those that are up.
[[nodiscard]] std::vector<InterfaceAddress> interface_addresses();

}  // namespace surefoot
