// How fast the ranks' devices sum a vector together: for `surefoot doctor`.
//
// An all-reduce of the library's own (AllReduce of a DeviceStream) is timed several times in a row,
// since one alone may take less than it takes to see that it is done; then one of known numbers,
// exact in any order of adding, is compared element by element: links that are set up wrongly can
// be fast.
#pragma once

#include <cstdint>

#include "common/clock.h"
#include "common/status.h"

namespace surefoot {

class Communicator;
class Device;
class DeviceStream;

struct LinkSpeed {
  int ranks = 1;
  std::int64_t bytes = 0;  // of the vector
  double seconds = 0;      // of one all-reduce: the median, of the slowest rank
  // What each link moves in a second, each way, whatever number of ranks: 2 (P-1)/P bytes/seconds.
  // Source: "bus bandwidth" in NCCL tests' doc/PERFORMANCE.md.
  [[nodiscard]] double bus_bandwidth() const {
    return 2.0 * (ranks - 1) / ranks * static_cast<double>(bytes) / seconds;
  }
};

// All ranks call it together, with a stream that device.connect() has made; equal on all. Blocks
// until `deadline`. kInvalid: one rank has nobody to talk to. kCorrupt: a sum is wrong, and where.
// After an error the gang ends, as after any other of the stream.
[[nodiscard]] Result<LinkSpeed> measure_links(Communicator& communicator, Device& device,
                                              DeviceStream& stream, std::int64_t bytes,
                                              Time deadline);

}  // namespace surefoot
