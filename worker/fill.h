// Brings one copy of the state into the arena of every node, from the nearest good source.
//
//   own arena       verified where it lies, nothing moves
//   another's       from the lowest node that holds it along a chain through those that do not
//   the store       node i of N reads part i of N, then the parts go around a ring: each byte is
//                   read from the store once, whatever the number of nodes
//
// Bytes go from slot to slot over MPI, chunk by chunk, no buffer between; each chunk's digest is
// checked where it arrives. A slot that is being filled is WRITING, and its writer is the leader of
// the node's ranks, who has registered (or the node's service, which reads the store): so a later
// attempt waits for its end, as for any writer. READY only when all nodes have everything.
//
// Every rank of the gang makes one Filler and calls fill() alike; local rank 0 of a node ("leader")
// acts for it. An error on one is an error on all. Blocks until `deadline` at the longest.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/arena.h"
#include "checkpoint/restore.h"
#include "collectives/communicator.h"
#include "collectives/reducer.h"
#include "collectives/ring_gather.h"

namespace surefoot {

struct Held {
  int slot = -1;
  std::int64_t samples = 0;
};

// What a node can bring into its own arena; its service does it. Called on leaders only.
class NodeCopies {
 public:
  virtual ~NodeCopies() = default;
  // The READY slot with this very state, every byte verified just now. kCorrupt: there is none.
  [[nodiscard]] virtual Result<Held> verified(const Candidate& candidate) = 0;
  // Takes a slot, notes the digests of all chunks, and reads part `part` of `of` from the store
  // into it, verified. It stays WRITING; with of == 1 it is READY. kCorrupt: this copy is no good.
  [[nodiscard]] virtual Result<Held> read_part(const Candidate& candidate, int part, int of) = 0;
};

class Filler {
 public:
  Filler(Communicator& communicator, const std::vector<Place>& places, Arena& arena,
         NodeCopies& copies, Time deadline);

  // Returns the slot of this rank's node, READY, as it is in every node's arena. kCorrupt: this
  // copy is no good, and nothing of it is left in a slot: choose the next.
  [[nodiscard]] Result<Held> fill(const Candidate& candidate);

 private:
  [[nodiscard]] bool leads() const { return leaders_[node_] == communicator_.rank(); }
  [[nodiscard]] int nodes() const { return static_cast<int>(leaders_.size()); }
  Status look(const Candidate& candidate);
  Status bring(const Candidate& candidate);
  Status read_parts(const Candidate& candidate);
  Status prepare(const Candidate& candidate, int holder);
  Status spread(const Candidate& candidate, int holder);
  [[nodiscard]] RingGather ring(int holder) const;
  Status move_bytes(const RingGather& ring);
  Status check_source(const Candidate& candidate, int holder, const RingGather& ring);
  Status publish(const Candidate& candidate);
  Status share();

  Communicator& communicator_;
  Arena& arena_;
  NodeCopies& copies_;
  Time deadline_;
  std::vector<int> leaders_;  // the rank that leads, by node
  std::size_t node_;          // of this rank
  std::vector<bool> holds_;   // by node: has it READY
  Held held_;                 // of this node
  bool taken_ = false;        // held_.slot is WRITING
  bool damaged_ = false;      // a chunk failed its digest where it arrived
};

}  // namespace surefoot
