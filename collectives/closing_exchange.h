// The last small message of a step, from every rank to every rank: control word, losses, and the
// square sums of the blocks that the sender owns.
//
// All of it goes to all, raw, and every rank combines it by the same tree: so the numbers are equal
// everywhere and do not depend on P. Per rank (P - 1) messages of 24 + 8 (micro-batches + blocks)
// of the sender in bytes; for 64 MiB of gradients and 2 ranks 16 KiB.
//
// Owned by a reducer; one thread. Buffers are made once.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/ranges.h"

namespace surefoot {

class ClosingExchange {
 public:
  // `tag` is the caller's, used for nothing else.
  ClosingExchange(Communicator& communicator, const Ranges& ranges, int micro_batches, int tag);

  void begin_step();  // posts the receives
  // Square sum of the block of the gradient that begins at this element, in a range of this rank.
  void set_square_sum(std::int64_t block_begin, double square_sum);
  // Blocks until all ranks have sent theirs, or `deadline`. A loss for each of this rank's
  // micro-batches, in order.
  Result<ReducedStep> finish(const ControlWord& mine, std::span<const double> losses,
                             Time deadline);

 private:
  struct Part {  // what one rank contributes
    std::vector<std::uint64_t> words;
    int losses = 0;
  };
  [[nodiscard]] ReducedStep combine();

  Communicator& communicator_;
  const Ranges& ranges_;
  int tag_;
  std::vector<Part> parts_;                      // by rank
  std::vector<int> owner_of_block_;              // of the gradient's blocks
  std::vector<std::int64_t> position_of_block_;  // in the words of its owner
  std::vector<Request> receives_;
  std::vector<Request> requests_;
  std::vector<double> losses_;
  std::vector<double> square_sums_;
};

}  // namespace surefoot
