// Whether the newest snapshot that any of some machines holds is in the store, when they are asked
// one after the other. Pure.
#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "common/ids.h"
#include "common/status.h"

namespace surefoot {

// What one machine has answered.
struct Flushed {
  Step ready{std::numeric_limits<std::int64_t>::max()};  // that it holds; at first: not known
  Status stored;  // of that step; done too where the store was known to have it or a newer one
};

class Flushing {
 public:
  void note(const Flushed& machine) {
    if (machine.stored) {
      stored_ = std::max(stored_, machine.ready);
    } else {
      missed_ = std::max(missed_, machine.ready);
      if (failed_.empty()) failed_ = machine.stored.error().message;
    }
  }
  // Who holds no newer one need not be asked to store it.
  [[nodiscard]] Step stored() const { return stored_; }
  // Empty: the newest is stored. Else why that cannot be said.
  [[nodiscard]] std::string failure() const {
    const bool newest = stored_.value >= 0 && stored_ >= missed_;
    return newest ? std::string() : failed_;
  }

 private:
  Step stored_{-1};
  Step missed_{-1};
  std::string failed_;  // the first
};

}  // namespace surefoot
