// Which addresses of a machine the job's machines talk to each other by.
//
// resources.network decides; without it it is the address by which the supervisor came in.
#pragma once

#include <string>
#include <vector>

#include "common/interfaces.h"
#include "common/status.h"

namespace surefoot {

[[nodiscard]] bool is_own_address(const std::string& address);
// Means each machine itself, so nobody else gets there by it. Of an address in numbers.
[[nodiscard]] bool is_loopback(const std::string& address);

// Pure. The address of this machine that its service listens on: in `network` (resources.network;
// IPv4 first), else the server's address in `ssh_connection` (ssh's SSH_CONNECTION), else
// 127.0.0.1. kInvalid: this machine has none in that network; the message says which it has.
[[nodiscard]] Result<std::string> choose_address(const std::string& network,
                                                 const std::string& ssh_connection,
                                                 const std::vector<InterfaceAddress>& own);

// This machine's address on the way to `peer` (an address in numbers); kRetry: no way. Sends
// nothing.
[[nodiscard]] Result<std::string> address_towards(const std::string& peer);

// Pure. What Open MPI is told to use (oob_tcp_if_include, btl_tcp_if_include): `network` if there
// is one, else the smallest network that holds all these addresses, loopback's left out. Empty:
// they have less than kMinCommonBits bits in common; Open MPI then tries all that there are.
inline constexpr int kMinCommonBits = 8;
[[nodiscard]] std::string mpi_network(const std::string& network,
                                      const std::vector<std::string>& addresses);

// The address in "tcp://10.0.0.5:43211" or "tcp://[fd00::5]:43211"; empty: it is no such text.
[[nodiscard]] std::string address_of_endpoint(const std::string& endpoint);

}  // namespace surefoot
