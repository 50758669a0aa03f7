// The port through which ranks talk.
//
// All ranks of a gang hold one Communicator each, used by one thread (the rank's own). Operations
// are started and waited for; between the two the buffer belongs to the communicator. Messages
// between two ranks with equal tags arrive in the order sent; sizes of both sides must be equal (a
// mismatch is a bug of ours and ends the process).
//
// Every wait has a deadline. When it passes, or a peer is known to be lost, the error is kRestart
// and names the ranks that are missing and `what` was waited for. After that the communicator and
// all buffers in flight must not be used any more: the gang ends and starts anew. Nothing here
// tries to repair a gang.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"

namespace surefoot {

// A started operation. Copyable name, no resource: the communicator owns what lies behind it until
// wait() has returned. A name is not used again; one that was waited for already counts as
// complete.
struct Request {
  std::uint64_t id = 0;  // 0: nothing to wait for
  int peer = -1;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // Starts to send or receive exactly these bytes; never blocks. `tag` is in [0, kMaxTag]. A rank
  // may send to itself.
  virtual Request send(std::span<const std::byte> bytes, int to, int tag) = 0;
  virtual Request receive(std::span<std::byte> bytes, int from, int tag) = 0;

  // Moves what has been started, and tells whether all of these are complete; never blocks. Each
  // request must be waited for nonetheless. False as well when a peer is lost: wait() says so.
  virtual bool test(std::span<const Request> requests) = 0;

  // Returns when all of them are complete, and forgets them. Blocks until `deadline` at the
  // longest.
  virtual Status wait(std::span<const Request> requests, Time deadline, std::string_view what) = 0;

  // The library's own all-reduce (sum), in place, for `reduction: fast` and for comparison. Bits
  // depend on the number of ranks.
  virtual Status all_reduce_sum(std::span<float> values, Time deadline) = 0;

  // Gives the transport a chance to move what has been started. Called between pieces of
  // computation.
  void progress() { (void)test({}); }
};

inline constexpr int kMaxTag = 1 << 20;
// Tags from here on are used by the helpers of collectives.h; below they are the caller's.
inline constexpr int kFirstReservedTag = kMaxTag - 1024;

}  // namespace surefoot
