// What a DeviceStream is given to do (device_stream.h): plain data, so that a step's plan is made
// once and device code shares the types.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "collectives/kernel_arithmetic.h"
#include "collectives/numbers.h"

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
  static constexpr int kMaxDepth = 30;
  std::vector<kernel::Root> roots;
  std::vector<std::int32_t> additions_after;  // by root
  int depth = 0;                              // values below the top at most
  NumberFormat format = NumberFormat::kFp32;  // to which every node is rounded
};

}  // namespace surefoot
