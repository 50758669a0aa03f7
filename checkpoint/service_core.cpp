#include "checkpoint/service_core.h"

#include <algorithm>

#include "configs/job.h"

namespace surefoot {
namespace {

// What differs, in words; empty lines on either side mean that nobody knows.
std::string changes(const std::vector<std::string>& was, const std::vector<std::string>& is) {
  if (was.empty() || is.empty()) return "(which ones is not known)";
  return fmt::format("{}", fmt::join(differences(was, is), "; "));
}

Error other_model(std::string_view where) {
  return error(Code::kInvalid,
               "the model or optimizer of this job has changed: the state in {} has another "
               "layout. Use the old keys, another name, or --fresh to begin anew",
               where);
}

Error other_keys(std::string_view where, const std::vector<std::string>& was,
                 const std::vector<std::string>& is) {
  return error(Code::kInvalid,
               "training keys of this job have changed since the state in {} was made: {}. Use the "
               "old ones, --accept-changes to go on with the new, or --fresh to begin anew",
               where, changes(was, is));
}

}  // namespace

CheckpointDecision decide_checkpoint(const CheckpointFacts& facts) {
  if (!facts.store_seen) return {false, "it is not known yet what the store has"};
  if (facts.busy) return {false, "the last checkpoint is still being written"};
  if (facts.now < facts.not_before) return {false, "the store failed a moment ago"};
  if (!facts.newest) return {true, "there is no checkpoint yet"};
  if (facts.now - *facts.newest >= facts.interval)
    return {true, "the interval since the last checkpoint has passed"};
  return {false, "the last checkpoint is younger than the interval"};
}

Duration pause_before_try(int number) {
  constexpr Duration kLongest = std::chrono::seconds(30);
  if (number <= 1) return Duration::zero();
  if (number > 6) return kLongest;
  return std::min<Duration>(kLongest, std::chrono::seconds(1 << (number - 2)));
}

Result<HelloDecision> decide_hello(const HelloFacts& facts) {
  const HelloFacts::Gang& gang = facts.gang;
  const HelloFacts::Memory& memory = facts.memory;
  const HelloFacts::Stored& stored = facts.stored;
  if (gang.attempt.value != 0 && gang.attempt < memory.last_attempt) {
    return error(Code::kStale, "attempt {} is older than attempt {}, which has run on this node",
                 gang.attempt, memory.last_attempt);
  }
  HelloDecision decision;
  decision.attempt = gang.attempt.value != 0
                         ? gang.attempt
                         : std::max(memory.last_attempt, stored.last_attempt).next();
  if (stored.there && stored.layout != gang.layout) return other_model("the store");
  const bool store_changed = stored.there && stored.training_hash != gang.training_hash;
  if (store_changed) {
    // The keys of a checkpoint made before changes were accepted stay different: the arena knows
    // that they were, as long as it lives.
    const bool accepted = memory.there && !memory.damaged && memory.holds_work &&
                          memory.training_hash == gang.training_hash;
    if (!gang.accept_changes && !accepted)
      return other_keys("the store", stored.training_lines, gang.training_lines);
    decision.changed_keys = differences(stored.training_lines, gang.training_lines);
  }
  const auto make = [&](std::string_view reason) {
    decision.arena = ArenaAction::kMake;
    decision.reason = reason;
    return decision;
  };
  if (!memory.there) return make("there is no arena yet");
  if (memory.damaged) return make("the header of the arena is damaged: nothing in it can be used");
  const bool changed = memory.training_hash != gang.training_hash;
  if (memory.layout != gang.layout) {
    if (memory.holds_work) return other_model("memory");
    return make("the arena is of another model and holds no finished step");
  }
  if (!changed) {
    decision.reason = "the arena is this job's";
    return decision;
  }
  if (!memory.holds_work) return make("training keys have changed before the first step");
  if (!gang.accept_changes) return other_keys("memory", memory.training_lines, gang.training_lines);
  decision.arena = ArenaAction::kUseWithNewHash;
  decision.reason = "changed training keys were accepted";
  decision.changed_keys = differences(memory.training_lines, gang.training_lines);
  return decision;
}

Duration store_patience(Step in_memory, Step known) {
  const bool only_caution = in_memory > Step{0} && in_memory >= known;
  return only_caution ? std::chrono::seconds(2) : std::chrono::seconds(60);
}

std::vector<Candidate> arena_candidates(std::span<const SlotInfo> slots, int node) {
  std::vector<Candidate> candidates;
  for (const SlotInfo& slot : slots) {
    if (slot.state != SlotState::kReady) continue;
    candidates.push_back({Candidate::Source::kArena, slot.step, slot.attempt, slot.digest, node});
  }
  return candidates;
}

LifeDecision decide_life(const LifeFacts& facts) {
  const bool gang = facts.workers || facts.gang_expected || facts.launched;
  if (gang && facts.supervised &&
      facts.now - std::max(facts.last_supervisor, facts.last_step) >= facts.lease)
    return {LifeAction::kEndGang,
            "no supervisor has been heard and no step was finished for recovery.lease"};
  if (facts.workers || facts.gang_expected) {
    const bool orphaned =
        facts.supervised && facts.now - facts.last_supervisor >= facts.supervisor_timeout;
    if (orphaned && !facts.drain_asked)
      return {LifeAction::kAskDrain, "no supervisor has been heard for supervisor_timeout"};
    return {LifeAction::kGoOn, "workers are at work"};
  }
  if (facts.finished && !facts.supervised && !facts.launched)
    return {LifeAction::kFree, "the job is done and its workers are gone"};
  const bool may_flush = facts.unflushed && facts.now >= facts.flush_not_before;
  const bool expired = facts.now - facts.last_visit >= facts.arena_ttl;
  if (facts.unflushed && !facts.finished && (facts.flush_wanted || expired)) {
    const Time due = facts.last_visit + (facts.flush_wanted ? Duration::zero() : facts.arena_ttl);
    if (facts.now < due + facts.flush_turn)
      return {LifeAction::kGoOn, "another node of the gang comes first to store the step"};
    if (may_flush)
      return {LifeAction::kFlush, "nobody is at work and the newest step is not in the store"};
    return {LifeAction::kGoOn, "the store failed a moment ago: the memory stays"};
  }
  if (facts.launched) return {LifeAction::kGoOn, "what was launched here runs"};
  if (expired) return {LifeAction::kFree, "nobody has come for arena_ttl"};
  return {LifeAction::kGoOn, "somebody may come back"};
}

}  // namespace surefoot
