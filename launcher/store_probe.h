// The object in the store by which machines prove that they see the same one: put by the first that
// is looked over, looked for by all others, removed when the job or its supervisor ends.
//
// Its name is another one for each supervisor, or what an earlier one has left on a disk would pass
// for the store. It is noted in a file, so that the next supervisor has it removed where this one
// did not come to that. Any thread.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace surefoot {

class StoreProbe {
 public:
  // `note`: the file, <job directory>/probe.
  StoreProbe(std::filesystem::path note, const std::string& job_id);

  [[nodiscard]] const std::string& name() const { return name_; }
  // That of an earlier supervisor, which is to be removed; empty: there is none.
  [[nodiscard]] const std::string& old_name() const { return old_name_; }

  enum class Part { kPut, kFind };
  // What a machine is to do. One at a time is to put it, and must say what came of it; meanwhile
  // the others wait, until `deadline` at the longest (kRetry).
  [[nodiscard]] Result<Part> part(Time deadline);
  // `machine` has put it; empty: it could not, and another one is to try.
  void put_by(const std::string& machine);
  [[nodiscard]] std::string putter() const;

  // Whether it is there; the first who asks is to remove it.
  [[nodiscard]] bool take();

 private:
  std::filesystem::path note_;
  std::string name_;
  std::string old_name_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool putting_ = false;
  std::string putter_;
};

}  // namespace surefoot
