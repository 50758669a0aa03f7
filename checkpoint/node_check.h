// Is this node fit for the job? What a service answers to the supervisor's Check: whom it reaches,
// whether its store is that of the others, what the worker's program says of job and processor, and
// what the machine has.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/service.pb.h"
#include "checkpoint/store_side.h"
#include "common/clock.h"

namespace surefoot {

struct NodeTools {
  OpenStore open_store;
  std::vector<std::string> describe;           // ServiceSettings::describe
  std::vector<std::string> look_at_gpus = {};  // ServiceSettings::look_at_gpus
  std::filesystem::path arena_folder;
  std::function<bool()> stop;  // asked now and then: leave at once
};

// Blocks until all is known, `request.seconds` (at most 600) at the longest, but where a file
// system hangs. All parts are begun at once; what has not ended by then is reported as an error,
// and a program that was begun is ended. Leaves nothing behind but the object that was put.
[[nodiscard]] service::CheckReply check_node(const service::Check& request, const NodeTools& tools);

// What programs of two machines must have in common to work together: the version, and those of
// protocol and arena.
[[nodiscard]] std::string build_text();

}  // namespace surefoot
