#include "collectives/ring_gather.h"

#include <algorithm>
#include <array>
#include <utility>

namespace surefoot {
namespace {

// Sizes are known to both ends, so order alone tells the pieces apart.
constexpr int kPieceTag = kFirstReservedTag + 2;
// Receives that are started ahead of the one that is waited for. Sends are started as soon as they
// can be: they cost nothing until they are received, and a limit on them could make a ring of ranks
// wait for each other.
constexpr std::size_t kAhead = 64;

struct Piece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

void append_pieces(const RingGather& gather, std::size_t position, std::vector<Piece>& pieces) {
  for (std::int64_t at = gather.borders[position]; at < gather.borders[position + 1];) {
    const std::int64_t end = std::min(at + gather.piece_bytes, gather.borders[position + 1]);
    pieces.push_back({at, end});
    at = end;
  }
}

}  // namespace

Status ring_gather(Communicator& communicator, const RingGather& gather, std::span<std::byte> block,
                   const std::function<void(std::int64_t begin, std::int64_t end)>& arrived,
                   Time deadline, std::string_view what) {
  const std::size_t ranks = gather.ring.size();
  const auto found = std::find(gather.ring.begin(), gather.ring.end(), communicator.rank());
  SUREFOOT_CHECK(found != gather.ring.end() && gather.borders.size() == ranks + 1);
  SUREFOOT_CHECK(gather.borders.front() == 0 &&
                 gather.borders.back() == static_cast<std::int64_t>(block.size()));
  if (ranks == 1) return {};
  const auto me = static_cast<std::size_t>(found - gather.ring.begin());
  const int next = gather.ring[(me + 1) % ranks];
  const int previous = gather.ring[(me + ranks - 1) % ranks];

  // What comes, in the order in which the previous rank has it: first its own.
  std::vector<Piece> own;
  append_pieces(gather, me, own);
  std::vector<Piece> coming;
  std::size_t passed_on = 0;  // of what comes; the last is what the next rank has had first
  for (std::size_t distance = 1; distance < ranks; ++distance) {
    passed_on = coming.size();
    append_pieces(gather, (me + ranks - distance) % ranks, coming);
  }

  const auto bytes_of = [&](const Piece& piece) {
    return block.subspan(static_cast<std::size_t>(piece.begin),
                         static_cast<std::size_t>(piece.end - piece.begin));
  };
  std::vector<Request> receives;
  std::vector<Request> sends;
  for (std::size_t i = 0; i < std::min(kAhead, coming.size()); ++i)
    receives.push_back(communicator.receive(bytes_of(coming[i]), previous, kPieceTag));
  for (const Piece& piece : own)
    sends.push_back(communicator.send(bytes_of(piece), next, kPieceTag));
  for (std::size_t i = 0; i < coming.size(); ++i) {
    SUREFOOT_TRY(communicator.wait(std::array{receives[i]}, deadline, what));
    if (receives.size() < coming.size()) {
      receives.push_back(
          communicator.receive(bytes_of(coming[receives.size()]), previous, kPieceTag));
    }
    if (i < passed_on) sends.push_back(communicator.send(bytes_of(coming[i]), next, kPieceTag));
    arrived(coming[i].begin, coming[i].end);
  }
  return communicator.wait(sends, deadline, what);
}

}  // namespace surefoot
