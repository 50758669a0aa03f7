// What a checkpoint service decides: when to ask for a checkpoint, what a new gang may do with what
// is there, what can be offered to it, and when the service ends.
//
// Pure: no clock, I/O, threads or logging. Service (service.h) gathers the facts and performs the
// decisions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/arena.h"
#include "checkpoint/restore.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/ids.h"
#include "common/status.h"

namespace surefoot {

// ---- when ----

struct CheckpointFacts {
  Time now;
  Duration interval{};         // checkpoint.interval
  bool store_seen = false;     // it is known what the store has
  bool busy = false;           // a set is still being written
  std::optional<Time> newest;  // when the newest checkpoint, durable or in hand, was made
  Time not_before{};           // back-off after a set that could not be written
};
struct CheckpointDecision {
  bool ask = false;
  std::string_view reason;  // one static sentence
};
// The first checkpoint is made right after step 1, so that a store that does not work is known at
// once; then one every interval.
[[nodiscard]] CheckpointDecision decide_checkpoint(const CheckpointFacts& facts);

// Pause before the nth try (from 1): 0, 1 s, 2 s, 4 s ... at most 30 s. Arbitrary, but a store that
// comes back is found within half a minute.
[[nodiscard]] Duration pause_before_try(int number);

// ---- a new gang ----

struct HelloFacts {
  struct Gang {
    Attempt attempt;  // 0: to be chosen
    Digest layout;
    Digest training_hash;
    std::vector<std::string> training_lines;
    bool accept_changes = false;
  };
  struct Memory {  // the arena
    bool there = false;
    bool damaged = false;  // its header fails: nothing in it can be used
    Digest layout;
    Digest training_hash;
    std::vector<std::string> training_lines;  // of the gang before; may be empty
    Attempt last_attempt;
    bool holds_work = false;  // a READY slot of step 1 or later
    Step newest;              // READY; 0: none
  };
  struct Stored {  // the newest readable manifest
    bool there = false;
    Digest layout;
    Digest training_hash;
    std::vector<std::string> training_lines;
    Step step;
    Attempt last_attempt;  // of any object
  };
  Gang gang;
  Memory memory;
  Stored stored;
};
enum class ArenaAction {
  kUse,             // as it is
  kUseWithNewHash,  // changed training keys were accepted
  kMake,            // there is none, or nothing in it is worth anything
};
struct HelloDecision {
  Attempt attempt;
  ArenaAction arena = ArenaAction::kUse;
  std::string_view reason;                // one static sentence
  std::vector<std::string> changed_keys;  // accepted: "train.seed: was 1, is 2"
};
// kStale: the attempt is older than one that has run here. kInvalid: what is there is of another
// model, or made with other training keys; the message lists them and what the user can do.
[[nodiscard]] Result<HelloDecision> decide_hello(const HelloFacts& facts);

// How long a hello waits for a store that does not answer. Short only where memory holds everything
// that anybody knows of: a node that was away would else lead the job back to what it has.
[[nodiscard]] Duration store_patience(Step in_memory, Step known);

// READY slots as candidates of this node; those of step 0 too.
[[nodiscard]] std::vector<Candidate> arena_candidates(std::span<const SlotInfo> slots, int node);

// ---- how long the service lives ----

struct LifeFacts {
  Time now;
  bool workers = false;        // a registered worker lives
  bool launched = false;       // something that was launched for the supervisor runs
  bool gang_expected = false;  // a hello came a moment ago: workers will come
  bool supervised = false;
  bool finished = false;      // the last step is stored and exported
  bool unflushed = false;     // the newest READY step is not in the store
  bool flush_wanted = false;  // somebody has said that the machine or the supervisor goes
  bool drain_asked = false;
  Time last_visit{};        // of anybody who wants something
  Time last_supervisor{};   // when it was heard
  Time last_step{};         // when a step was finished here
  Time flush_not_before{};  // back-off after a failed flush
  Duration flush_turn{};    // how long others of the gang come first, deadline.h
  Duration lease{};
  Duration arena_ttl{};
  Duration supervisor_timeout{};
};
enum class LifeAction { kGoOn, kEndGang, kAskDrain, kFlush, kFree };
struct LifeDecision {
  LifeAction action = LifeAction::kGoOn;
  std::string_view reason;  // one static sentence
};
// Nothing is freed that is not in the store, unless the job is finished.
//
// Rule (stale gang): a gang with a supervisor is ended when neither that was heard nor a step was
// finished for `lease`: then this node is cut off, and the job goes on without it, or nothing goes
// on here at all. As long as steps go on, others hear this node, and the supervisor may come back:
// that is supervisor_timeout's. A start, a restore or an evaluation that takes longer than the
// lease is ended too when nobody watches: nothing is lost by it, as the newest step is READY, and
// nobody could tell it from a gang that hangs.
[[nodiscard]] LifeDecision decide_life(const LifeFacts& facts);

}  // namespace surefoot
