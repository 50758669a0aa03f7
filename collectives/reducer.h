// The sum of the gradients of all micro-batches of a step, the same bits for any number of ranks.
//
// The vector of a micro-batch has `gradient_elements` floats (padded with zeros to a multiple of
// kBlockElements) followed by `buffer_elements` floats (the model's floating-point buffers after
// that micro-batch). It is cut into buckets, each bucket into P ranges; borders of both are
// multiples of kBlockElements. Range o of each bucket belongs to rank o: it receives the subtree
// roots of all others, finishes the tree (reduction_tree.h) and sends the sum to the ranks that
// need it.
//
// Who needs it: the ranks of a node share the training state, so each needs only its share of the
// elements: of every bucket the ranges o with o mod (ranks on the node) == local rank. On one node
// that is the rank's own range and nothing is sent back; over several nodes one rank on each. Bytes
// per rank and step, N = bytes of the vector, one root per rank: sent (P-1)/P N + (nodes-1)/P N;
// the optimum for a full all-reduce is 2(P-1)/P N.
//
// A bucket is shipped as soon as all its elements are `ready` in the rank's last micro-batch, while
// backward goes on.
//
// The norm: per block of kBlockElements the sum of squares in double (kLanes partial sums, then
// pairwise; arithmetic.h); blocks combined by the tree of reduction_tree.h over the blocks. The
// losses: doubles, summed by the same tree over micro-batches. Both bits do not depend on P.
//
// Control word: each rank's word rides on one last small message; all ranks get the OR of the bits,
// and which ranks disagree in `must_match`.
//
// One thread. Blocks in finish() until its deadline only; kRestart names the missing ranks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/element_range.h"
#include "collectives/numbers.h"

namespace surefoot {

struct Place {
  int node = 0;  // from 0, by node order in the attempt
  int local_rank = 0;
  int local_size = 1;
};

struct ReducerOptions {
  std::int64_t gradient_elements = 0;
  std::int64_t buffer_elements = 0;
  int micro_batches = 1;                   // M of the whole step; at least as many as ranks
  std::int64_t bucket_elements = 1 << 19;  // rounded up to a multiple of ranks * kBlockElements
  std::vector<Place> places;               // by rank
  // Every node of the tree over a gradient, leaves included, is rounded to this, whether it is sent
  // or added where it lies: so bits do not depend on P here either. Buffers are fp32 always: they
  // are state. On a device only (device_reducer.h).
  NumberFormat communicate_in = NumberFormat::kFp32;
};

struct ControlWord {
  std::uint64_t bits = 0;  // OR over all ranks
  std::array<std::uint64_t, 2>
      must_match{};  // equal on all ranks, or the ranks that differ from rank 0 are named
};

struct ReducedStep {
  double loss_sum = 0;    // over all micro-batches; divide by M
  double square_sum = 0;  // of the *summed* gradient's elements (buffers left out); the norm of the
                          // mean is sqrt(square_sum) / M
  std::uint64_t control = 0;
  std::array<std::vector<int>, 2> mismatched{};  // ranks whose must_match[i] differs from rank 0's
};

class Reducer {
 public:
  virtual ~Reducer() = default;

  // Elements of this rank's share, ascending, as indices into the vector. Fixed for the life of the
  // reducer.
  [[nodiscard]] virtual const std::vector<ElementRange>& share() const = 0;
  // How many buffers begin_micro_batch chooses from: what the reducer needs of memory in multiples
  // of the vector, besides staging for the roots of other ranks (about (P-1)/P of a vector per root
  // that a rank sends).
  [[nodiscard]] virtual int gradient_buffers() const = 0;
  // Index of the first buffer element in the vector: gradient_elements rounded up to a multiple of
  // kBlockElements.
  [[nodiscard]] virtual std::int64_t buffer_begin() const = 0;

  virtual void begin_step() = 0;
  // Where the vector of this rank's next micro-batch goes, all zeros. Valid until end_micro_batch.
  // At most gradient_buffers() different pointers are ever returned, so views can be made once.
  virtual std::span<float> begin_micro_batch() = 0;
  // These elements of the current micro-batch are final, each reported at most once; from now on
  // they are the reducer's, which may overwrite them. Cheap; any order; may start messages and move
  // others. Gaps between tensors belong to the tensor before them: report up to the next tensor's
  // first element.
  virtual void ready(ElementRange elements) = 0;
  // The micro-batch is complete: elements not yet reported ready are final too.
  virtual void end_micro_batch() = 0;
  // Waits for the step's sums. `losses` are those of this rank's micro-batches, in order: asked for
  // here and not earlier, since on a GPU reading one waits for all that was enqueued before it.
  // After it sum() holds them in the elements of share() until the next begin_step.
  virtual Result<ReducedStep> finish(const ControlWord& mine, std::span<const double> losses,
                                     Time deadline) = 0;
  [[nodiscard]] virtual std::span<const float> sum() const = 0;
};

// The reproducible reduction. The communicator must outlive the reducer.
[[nodiscard]] std::unique_ptr<Reducer> make_tree_reducer(Communicator& communicator,
                                                         const ReducerOptions& options);
// The same, and ranks of one node read each other's gradient buffers where they lie
// (slot_memory.h), so that nothing is copied and no staging is needed between them. All ranks must
// call it together; blocks until `deadline`. kNoSpace: a node has not enough memory.
[[nodiscard]] Result<std::unique_ptr<Reducer>> connect_tree_reducer(Communicator& communicator,
                                                                    const ReducerOptions& options,
                                                                    Time deadline);
// The library's all-reduce, for `reduction: fast`: same calls, bits depend on P.
[[nodiscard]] std::unique_ptr<Reducer> make_fast_reducer(Communicator& communicator,
                                                         const ReducerOptions& options);

// Sum of squares of `gradient` as above; what the reducers compute in parts.
[[nodiscard]] double square_sum(std::span<const float> gradient);

}  // namespace surefoot
