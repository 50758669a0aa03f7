// The machines of one attempt, as `surefoot-rsh` finds them: logs/attempt-003/nodes.json.
//
// Written by who starts mpirun, before; holds nothing secret. Format: docs/nodes.md.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/status.h"

namespace surefoot {

struct ListedNode {
  std::string name;      // as mpirun says it
  std::string endpoint;  // of its service
};

struct NodeList {
  Attempt attempt;
  std::string job_id;
  std::filesystem::path keys_file;
  std::filesystem::path log_folder;
  std::vector<ListedNode> nodes;
};
[[nodiscard]] std::string to_text(const NodeList& list);
[[nodiscard]] Result<NodeList> parse_node_list(std::string_view text);

// Pure. What the machine's shell is to run, of the words that mpirun hands to its remote shell.
// They are quoted for a shell already. The user's .profile, which mpirun would have read first
// where his login shell is not bash, is left out: it could change what all workers must have in
// common.
[[nodiscard]] std::string launched_command(const std::vector<std::string>& words);

}  // namespace surefoot
