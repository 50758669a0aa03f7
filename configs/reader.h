// From a YAML tree to a message, driven by the message's descriptor.
//
// Reports every value that does not fit and goes on, so that one run shows all faults of a file.
// Keys that are absent get their defaults, in absent sections too; keys that do not apply to the
// chosen kind stay zero. Checks single values; combinations are in job_checks.h.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "configs/schema.h"
#include "configs/yaml_tree.h"

namespace surefoot::configs {

struct Reading {
  std::filesystem::path folder;           // absolute; where relative paths start
  std::map<std::string, Position> found;  // where each key that the file has stands
  std::vector<Problem> problems;

  // Whether a key, or something in it, or the section around it, has a problem: its value then
  // means nothing.
  [[nodiscard]] bool has_problem(std::string_view key) const;
  // Where a key stands; for an absent one its section.
  [[nodiscard]] Position place_of(std::string_view key) const;
};

// Fills `message` from `root`, whose map starts the keys. `message` must be empty. A string field
// `name` of the message is the job's name.
void read_message(const Node& root, Message& message, Reading& reading);

}  // namespace surefoot::configs
