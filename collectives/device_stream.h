// The port to a device (a GPU): its memory, and work that it does by itself, in order, while the
// caller goes on.
//
// Two queues. kComputation is the stream on which the model's forward and backward are enqueued (by
// somebody else, too); kExchange runs beside it. Work of one queue is done in the order enqueued.
// Between the queues nothing is ordered but by order(). So the plan of a step is data, made once,
// and handed over piece by piece.
//
// Work that ranks do together (Exchange, Gather, AllReduce) must be enqueued by all ranks in the
// same order, each with its counterpart: there are no tags, and a rank's next piece may wait for
// its peer's last one.
//
// Nothing blocks but wait(), allocate() and prepare(); enqueue() and order() never wait for another
// rank. They may be called from any thread, from one at a time (autograd has a thread of its own).
// An error of enqueued work is kept and returned by the next wait().
//
// Memory belongs to the stream and lives as long as it. It must be left alone by all but the
// enqueued work until that is done.
//
// Failure: kRestart names what was waited for and, where it is known, which rank is missing (a
// library like NCCL does not know: device_reducer.h finds out). After a deadline has passed wait()
// may be called again; after any other error the gang ends. kNoSpace: the device has not the
// memory, with the numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "collectives/kernel_arithmetic.h"
#include "collectives/numbers.h"
#include "common/clock.h"
#include "common/status.h"

namespace surefoot {

enum class Queue { kComputation, kExchange };
enum class MemoryOf { kDevice, kHost };  // kHost: of this process, and the device can write it

// --- Work of one rank. Pointers are to device memory, with room for `elements`.

struct Clear {
  float* values = nullptr;
  std::int64_t elements = 0;
};
// kernel::add_up on every element; kMaxSlots at most.
struct AddUp {
  static constexpr std::size_t kMaxSlots = 40;
  std::vector<float*> slots;
  std::int64_t elements = 0;
  NumberFormat format = NumberFormat::kFp32;
};
struct Pack {
  const float* from = nullptr;
  kernel::Bf16* to = nullptr;
  std::int64_t elements = 0;
};
struct Unpack {
  const kernel::Bf16* from = nullptr;
  float* to = nullptr;
  std::int64_t elements = 0;
};
// kernel::finish on every element of [begin, end) of the vector, whole blocks. The sum of the first
// goes to to[0]; it may lie over a root that is a vector.
struct FinishTree {
  int tree = 0;  // as prepare() named it
  std::int64_t begin = 0;
  std::int64_t end = 0;
  void* to = nullptr;
  NumberFormat to_format = NumberFormat::kFp32;
  double* square_sums = nullptr;  // one for each block; none: not asked for
};
struct CopyToHost {
  const void* from = nullptr;
  void* to = nullptr;  // MemoryOf::kHost
  std::int64_t bytes = 0;
};

// --- Work of all ranks together.

struct Message {
  int peer = 0;  // not this rank
  void* memory = nullptr;
  std::int64_t bytes = 0;  // at least 1; both sides name the same number
};
// Messages between two ranks meet in the order given here.
struct Exchange {
  std::vector<Message> sends;
  std::vector<Message> receives;
};
// Every rank's part to all: parts[this rank] is read, the others are written.
struct Gather {
  struct Part {
    void* memory = nullptr;
    std::int64_t bytes = 0;  // equal on all ranks; may be 0
  };
  std::vector<Part> parts;  // by rank
};
// The library's own sum, in place. Bits depend on the number of ranks and on the library.
struct AllReduce {
  void* values = nullptr;
  std::int64_t elements = 0;
  NumberFormat format = NumberFormat::kFp32;
};

// Clear and AddUp may be enqueued on either queue, all others on kExchange.
using Work =
    std::variant<Clear, AddUp, Pack, Unpack, FinishTree, CopyToHost, Exchange, Gather, AllReduce>;

// A tree to be finished many times (kernel::finish). Its depth is at most kMaxDepth.
struct Tree {
  static constexpr int kMaxDepth = 40;
  std::vector<kernel::Root> roots;
  std::vector<std::int32_t> additions_after;  // by root
  int depth = 0;                              // values below the top at most
  NumberFormat format = NumberFormat::kFp32;  // to which every node is rounded
};

class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  // All zeros for whatever is enqueued from now on; aligned to 256 bytes. `what` is for the
  // message.
  virtual Result<void*> allocate(MemoryOf memory, std::int64_t bytes, std::string_view what) = 0;
  // A name for FinishTree.
  virtual Result<int> prepare(const Tree& tree) = 0;

  virtual void enqueue(Queue queue, const Work& work) = 0;
  // What `then` is given from here on is done after all that `first` has been given so far.
  virtual void order(Queue first, Queue then) = 0;

  // Returns when all of kExchange is done, and what it was ordered after. Until `deadline` at the
  // longest.
  virtual Status wait(Time deadline, std::string_view what) = 0;
};

}  // namespace surefoot
