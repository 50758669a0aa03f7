// The one binary tree over the micro-batches of a step, and who adds what in it.
//
// Node [a, b) of the tree over [0, M) splits at a + (the largest power of two below b - a). The
// tree depends on M only. Rank r of P owns the micro-batches [rM/P, (r+1)M/P); it adds up every
// subtree that lies within its range and sends the roots; whoever owns a range of elements finishes
// the tree. So the sum of an element is always made of the same additions, left operand first,
// whatever P is.
//
// Pure: no I/O, no memory but the returned values. Proven in the tests for all M up to 64 and all P
// up to M.
#pragma once

#include <cstdint>
#include <vector>

namespace surefoot {

struct TreeNode {
  int begin = 0;
  int end = 0;
  friend bool operator==(const TreeNode&, const TreeNode&) = default;
};

// Micro-batches of `rank`: [begin, end). Requires 1 <= ranks <= micro_batches.
[[nodiscard]] TreeNode micro_batches_of(int rank, int ranks, int micro_batches);

// The maximal subtrees within [begin, end), from left to right: what a rank sends.
[[nodiscard]] std::vector<TreeNode> subtree_roots(int begin, int end, int micro_batches);

// `slot[left] = slot[left] + slot[right]`.
struct Addition {
  int left = 0;
  int right = 0;
};

// How a rank adds up its own micro-batches as they come: after micro-batch `begin + i` its gradient
// lies in slot `slots[i]`, then `additions[i]` are done in order. At the end the roots lie in
// `root_slots`, in the order of subtree_roots. Slots are reused, so that `slot_count` buffers are
// enough.
struct LocalSchedule {
  std::vector<int> slots;
  std::vector<std::vector<Addition>> additions;
  std::vector<int> root_slots;
  int slot_count = 0;
};
[[nodiscard]] LocalSchedule local_schedule(int begin, int end, int micro_batches);

// How the owner of a range of elements finishes: slot i holds the i-th root of all ranks' roots
// from left to right; after the additions slot 0 holds the sum over all micro-batches.
[[nodiscard]] std::vector<Addition> finishing_schedule(int ranks, int micro_batches);

// The same for a stack: the roots are pushed from left to right, and after root i the two values on
// top are added `additions_after[i]` times. `depth`: values below the top at most.
struct StackSchedule {
  std::vector<std::int32_t> additions_after;
  int depth = 0;
};
[[nodiscard]] StackSchedule stack_schedule(int ranks, int micro_batches);

}  // namespace surefoot
