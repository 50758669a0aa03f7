// Is the store of a job there, and can it be written? Puts an object of its own, as a new machine's
// service does (checkpoint/node_check.h), reads it back, puts it again, which must be refused, and
// removes it.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/store.h"
#include "launcher/doctor/finding.h"

namespace surefoot::doctor {

struct StoreFacts {
  std::string url;
  std::string fault;   // what failed; empty: nothing
  bool retry = false;  // it may pass
  bool twice = false;  // a second object of one name was taken
  double put_seconds = 0;
  double get_seconds = 0;
};
// Blocks on the store, where it heeds deadlines until `deadline` at the longest, and for removing
// until `last`. Leaves nothing behind.
[[nodiscard]] StoreFacts probe_store(Store& store, Time deadline, Time last);
// Pure. "store".
[[nodiscard]] Finding check_store(const StoreFacts& facts);

// Remembers which folders above and including `folder` are missing, and removes those again that
// are empty.
class MadeFolders {
 public:
  explicit MadeFolders(const std::filesystem::path& folder);
  ~MadeFolders();
  MadeFolders(const MadeFolders&) = delete;

 private:
  std::vector<std::filesystem::path> missing_;  // the deepest first
};

}  // namespace surefoot::doctor
