// Completes a block of bytes that lies in parts on several ranks: an all-gather around a ring.
//
// Rank ring[i] holds [borders[i], borders[i + 1]) of the block, maybe nothing; afterwards each of
// them holds all of it. Every rank sends to the next in the ring what it holds, then what it
// receives, piece by piece and at the same time, so all links are busy, a rank neither sends nor
// receives a byte twice, and the time is that of one block over one link. With one rank that holds
// everything it is a broadcast along a chain.
//
// No buffer: pieces are received where they belong. Ranks that are not in the ring do not call it.
// Blocks until `deadline` at the longest; kRestart names the missing rank and `what`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "collectives/communicator.h"

namespace surefoot {

struct RingGather {
  std::vector<int> ring;
  std::vector<std::int64_t> borders;  // one more than ranks; from 0 to the size of the block
  std::int64_t piece_bytes = 4 << 20;
};
// `arrived` is told of every piece that came from another rank, once, when it is on its way to the
// next one already. Pieces begin at a whole number of piece_bytes behind a border.
Status ring_gather(Communicator& communicator, const RingGather& gather, std::span<std::byte> block,
                   const std::function<void(std::int64_t begin, std::int64_t end)>& arrived,
                   Time deadline, std::string_view what);

}  // namespace surefoot
