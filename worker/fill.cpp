#include "worker/fill.h"

#include <algorithm>
#include <cstdio>

#include "checkpoint/part.h"
#include "collectives/collectives.h"
#include "common/log.h"

namespace surefoot {
namespace {

constexpr std::string_view kMoving = "the state from another node";

std::vector<int> leaders_of(const std::vector<Place>& places) {
  std::vector<int> leaders;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto node = static_cast<std::size_t>(places[rank].node);
    if (leaders.size() <= node) leaders.resize(node + 1, -1);
    if (places[rank].local_rank == 0) leaders[node] = static_cast<int>(rank);
  }
  return leaders;
}

std::string text_of(const Held& held) {
  return fmt::format("{} {}", held.slot, held.samples);
}
Held held_of(const std::string& text) {
  Held held;
  SUREFOOT_CHECK(std::sscanf(text.c_str(), "%d %ld", &held.slot, &held.samples) == 2);
  return held;
}

std::string_view bytes_of(std::span<const Digest> table) {
  return {reinterpret_cast<const char*>(table.data()), table.size_bytes()};
}

std::span<std::byte> chunk_in(std::span<std::byte> state, std::int64_t chunk) {
  const ByteRange range = chunk_bytes({chunk, chunk + 1}, static_cast<std::int64_t>(state.size()));
  return state.subspan(static_cast<std::size_t>(range.begin),
                       static_cast<std::size_t>(range.size()));
}

}  // namespace

Filler::Filler(Communicator& communicator, const std::vector<Place>& places, Arena& arena,
               NodeCopies& copies, Time deadline)
    : communicator_(communicator),
      arena_(arena),
      copies_(copies),
      deadline_(deadline),
      leaders_(leaders_of(places)),
      node_(static_cast<std::size_t>(places[static_cast<std::size_t>(communicator.rank())].node)) {}

Result<Held> Filler::fill(const Candidate& candidate) {
  held_ = {};
  taken_ = damaged_ = false;
  const Status done = bring(candidate);
  if (done) return held_;
  if (taken_) arena_.discard(held_.slot);
  return done.error();
}

Status Filler::bring(const Candidate& candidate) {
  SUREFOOT_TRY(look(candidate));
  const auto first = std::find(holds_.begin(), holds_.end(), true);
  const int holder = first == holds_.end() ? -1 : static_cast<int>(first - holds_.begin());
  if (holder < 0 && candidate.source == Candidate::Source::kArena)
    return error(Code::kCorrupt, "no node has a good copy of it in its memory");
  if (holder >= 0) {
    SUREFOOT_TRY(prepare(candidate, holder));
  } else {
    SUREFOOT_TRY(read_parts(candidate));
  }
  SUREFOOT_TRY(spread(candidate, holder));
  return share();
}

// Which nodes have this very state already?
Status Filler::look(const Candidate& candidate) {
  Status mine;
  if (leads()) {
    auto own = copies_.verified(candidate);
    if (own) held_ = *own;
    if (!own && own.error().code != Code::kCorrupt) mine = own.error();
  }
  SUREFOOT_TRY(agree(communicator_, mine, deadline_, "a look at each node's memory"));
  SUREFOOT_ASSIGN(const auto all,
                  all_gather(communicator_, text_of(held_), deadline_, "who holds the state"));
  holds_.clear();
  for (const int leader : leaders_) {
    const Held held = held_of(all[static_cast<std::size_t>(leader)]);
    holds_.push_back(held.slot >= 0);
    if (held.slot >= 0) held_.samples = held.samples;
  }
  return {};
}

Status Filler::read_parts(const Candidate& candidate) {
  Status mine;
  if (leads()) {
    auto read = copies_.read_part(candidate, static_cast<int>(node_), nodes());
    if (read) {
      held_ = *read;
      taken_ = nodes() > 1;
    } else {
      mine = read.error();
    }
  }
  return agree(communicator_, mine, deadline_, "reading the checkpoint");
}

// Slots for those that lack it, with the digests of what will come.
Status Filler::prepare(const Candidate& candidate, int holder) {
  if (std::find(holds_.begin(), holds_.end(), false) == holds_.end()) return {};
  const bool gives = leads() && static_cast<int>(node_) == holder;
  const std::string_view mine =
      gives ? bytes_of(arena_.chunk_digests(held_.slot)) : std::string_view();
  SUREFOOT_ASSIGN(const std::string table,
                  broadcast(communicator_, mine, leaders_[static_cast<std::size_t>(holder)],
                            deadline_, "the digests of the state"));
  Status ready;
  if (leads() && !holds_[node_]) {
    auto slot = arena_.await_take(candidate.attempt, candidate.step, -1, deadline_);
    if (slot) {
      held_.slot = *slot;
      taken_ = true;
      const std::span<Digest> own = arena_.chunk_digests(*slot);
      if (table.size() == own.size_bytes())
        std::copy_n(table.data(), table.size(), reinterpret_cast<char*>(own.data()));
      if (table.size() != own.size_bytes() || state_digest(own) != candidate.digest)
        ready = error(Code::kRestart, "digests from node {} arrive damaged", holder);
    } else {
      ready = error(Code::kRestart, "{}", slot.error().message);
    }
  }
  return agree(communicator_, ready, deadline_, "slots for the state");
}

// Nodes that hold everything stay out of it, but for the one that gives.
RingGather Filler::ring(int holder) const {
  RingGather gather;
  gather.piece_bytes = kChunkBytes;
  gather.borders = {0};
  const auto bytes = static_cast<std::int64_t>(arena_.spec().state_bytes);
  const std::int64_t chunks = (bytes + kChunkBytes - 1) / kChunkBytes;
  if (holder >= 0) {
    gather.ring = {leaders_[static_cast<std::size_t>(holder)]};
    gather.borders.push_back(bytes);
  }
  for (int node = 0; node < nodes(); ++node) {
    if (holds_[static_cast<std::size_t>(node)]) continue;
    gather.ring.push_back(leaders_[static_cast<std::size_t>(node)]);
    gather.borders.push_back(
        holder >= 0 ? bytes : chunk_bytes(part_chunks(chunks, node, nodes()), bytes).end);
  }
  return gather;
}

Status Filler::spread(const Candidate& candidate, int holder) {
  const RingGather gather = ring(holder);
  if (gather.ring.size() < 2) return {};
  const Time begun = now();
  const bool takes_part =
      std::find(gather.ring.begin(), gather.ring.end(), communicator_.rank()) != gather.ring.end();
  // An error of the communicator ends the attempt; there is nobody to agree with.
  if (takes_part) SUREFOOT_TRY(move_bytes(gather));
  const Status arrived =
      damaged_ ? Status(error(Code::kCorrupt, "a chunk fails its digest where it arrives"))
               : Status();
  const Status all = agree(communicator_, arrived, deadline_, kMoving);
  if (all && communicator_.rank() == 0) {
    const double took = seconds(now() - begun);
    const std::string source =
        holder >= 0 ? fmt::format("the memory of node {}", holder) : "parts read from the store";
    spdlog::info("{} nodes filled from {}: {:.1f} MB in {:.3f} s",
                 gather.ring.size() - (holder >= 0 ? 1 : 0), source,
                 static_cast<double>(arena_.spec().state_bytes) / 1e6, took);
  }
  if (all) return publish(candidate);
  if (all.error().code != Code::kCorrupt) return all;
  SUREFOOT_TRY(agree(communicator_, check_source(candidate, holder, gather), deadline_,
                     "another look at the source"));
  // A good copy is not given up because a wire or somebody's memory is bad.
  return error(Code::kRestart, "{}, but is good where it comes from", all.error().message);
}

Status Filler::move_bytes(const RingGather& gather) {
  const std::span<std::byte> state = arena_.bytes(held_.slot);
  const std::span<const Digest> table = arena_.chunk_digests(held_.slot);
  return ring_gather(
      communicator_, gather, state,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t chunk = begin / kChunkBytes; chunk * kChunkBytes < end; ++chunk) {
          const bool good =
              digest(chunk_in(state, chunk)) == table[static_cast<std::size_t>(chunk)];
          damaged_ = damaged_ || !good;
        }
      },
      deadline_, kMoving);
}

// Has what this node gave changed since it was verified?
Status Filler::check_source(const Candidate& candidate, int holder, const RingGather& gather) {
  if (!leads()) return {};
  if (holder >= 0) {
    if (static_cast<int>(node_) != holder) return {};
    auto again = copies_.verified(candidate);
    return again ? Status() : Status(again.error());
  }
  const std::span<std::byte> state = arena_.bytes(held_.slot);
  for (std::int64_t chunk = gather.borders[node_] / kChunkBytes;
       chunk * kChunkBytes < gather.borders[node_ + 1]; ++chunk) {
    if (digest(chunk_in(state, chunk)) !=
        arena_.chunk_digests(held_.slot)[static_cast<std::size_t>(chunk)])
      return error(Code::kCorrupt, "chunk {} has changed after it was read", chunk);
  }
  return {};
}

Status Filler::publish(const Candidate& candidate) {
  Status mine;
  if (taken_) {
    mine = arena_.publish(held_.slot, candidate.attempt, candidate.step, held_.samples, false);
    if (mine) taken_ = false;
  }
  return agree(communicator_, mine, deadline_, "the restored state");
}

// What the leader of a node knows of its slot, all ranks of that node must know.
Status Filler::share() {
  SUREFOOT_ASSIGN(const auto all,
                  all_gather(communicator_, text_of(held_), deadline_, "the restored slots"));
  held_ = held_of(all[static_cast<std::size_t>(leaders_[node_])]);
  return {};
}

}  // namespace surefoot
