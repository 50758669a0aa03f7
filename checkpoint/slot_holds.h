// Which slots of an arena are kept for work in hand, beside the pin that makes a slot a checkpoint
// to be written: an arena has one pin a slot, so whoever comes last takes it back.
//
// One thread.
#pragma once

#include <map>

#include "checkpoint/arena.h"

namespace surefoot {

class SlotHolds {
 public:
  // Pins the slot, any number of times. False: it is not READY.
  bool hold(Arena& arena, int slot) {
    const SlotInfo info = arena.slot(slot);
    if (!arena.pin(slot)) return false;
    const auto found = holds_.find(slot);
    if (found != holds_.end() && found->second.is(info.attempt, info.step)) {
      ++found->second.count;
    } else {
      holds_[slot] = {info.attempt, info.step, info.pinned, 1};
    }
    return true;
  }
  // One hold less; the last one takes the pin back, unless the slot is a checkpoint that is still
  // to be written.
  void let_go(Arena& arena, int slot, Attempt attempt, Step step) {
    const auto found = holds_.find(slot);
    if (found == holds_.end() || !found->second.is(attempt, step)) return;
    if (--found->second.count > 0) return;
    const bool wanted = found->second.wanted;
    holds_.erase(found);
    if (!wanted) arena.unpin(slot);
  }
  // The slot is no longer wanted as a checkpoint. Its pin goes, or stays for those who hold it.
  void release(Arena& arena, int slot) {
    const auto found = holds_.find(slot);
    if (found == holds_.end()) return arena.unpin(slot);
    found->second.wanted = false;
  }
  // The copy is bad: nobody is to use it, whoever holds it.
  void discard(Arena& arena, int slot) {
    holds_.erase(slot);
    arena.discard(slot);
  }
  [[nodiscard]] bool contains(int slot) const { return holds_.contains(slot); }
  void clear() { holds_.clear(); }

 private:
  struct Hold {
    Attempt attempt;
    Step step;
    bool wanted = false;  // a checkpoint to be written
    int count = 0;
    [[nodiscard]] bool is(Attempt a, Step s) const { return attempt == a && step == s; }
  };
  std::map<int, Hold> holds_;
};

}  // namespace surefoot
