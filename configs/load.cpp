#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <system_error>
#include <tuple>

#include "common/file.h"
#include "configs/job.h"
#include "configs/job_checks.h"
#include "configs/reader.h"
#include "configs/suggest.h"

namespace surefoot {
namespace {

using namespace configs;

// The text of a job file. The error's message says why there is none.
Result<std::string> read_job_text(const std::filesystem::path& file) {
  std::error_code code;
  const auto status = std::filesystem::status(file, code);
  if (status.type() == std::filesystem::file_type::not_found)
    return error(Code::kInvalid, "found no such file, allowed is a job file");
  // A pipe or a device could be endless.
  if (status.type() != std::filesystem::file_type::regular) {
    return error(Code::kInvalid, "found {}, allowed is a regular file",
                 status.type() == std::filesystem::file_type::directory
                     ? "a folder"
                     : "something that is no file");
  }
  const auto size = std::filesystem::file_size(file, code);
  if (!code && size > kMaxFileBytes)
    return error(Code::kInvalid, "found a file of {} bytes, allowed are at most {}", size,
                 kMaxFileBytes);
  return read_file(file);
}

// A copy of `node` in which the value at path[index...] is `value`; maps on the way are made. Null:
// something on the way is neither a map nor absent.
NodePtr with_value(const NodePtr& node, const std::vector<std::string>& path, std::size_t index,
                   const NodePtr& value, Position where) {
  if (index == path.size()) return value;
  if (node && node->type != Node::Type::kMap && node->type != Node::Type::kNull) return nullptr;
  auto copy = node ? std::make_shared<Node>(*node) : std::make_shared<Node>();
  copy->type = Node::Type::kMap;
  if (!node) copy->where = where;
  auto entry = std::find_if(copy->entries.begin(), copy->entries.end(),
                            [&](const Entry& e) { return e.key == path[index]; });
  if (entry == copy->entries.end())
    entry = copy->entries.insert(copy->entries.end(), Entry{path[index], where, nullptr});
  // A fault of the new value is the option's, one of a value that stays the file's.
  if (index + 1 == path.size()) entry->where = where;
  entry->value = with_value(entry->value, path, index + 1, value, where);
  return entry->value ? copy : nullptr;
}

struct Set {
  std::string label;  // "--set train.max_steps=50", in place of a file name
  std::vector<std::string> path;
  NodePtr value;  // null: cannot be read
};

Set parse_set(const std::string& text, int source, std::vector<Problem>& problems) {
  Set set;
  set.label = "--set " + printable(text, 200);
  const std::size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  for (std::size_t start = 0; start <= key.size();) {
    const std::size_t end = std::min(key.find('.', start), key.size());
    set.path.push_back(key.substr(start, end - start));
    start = end + 1;
  }
  const bool is_key = std::none_of(set.path.begin(), set.path.end(),
                                   [](const std::string& part) { return part.empty(); });
  if (equals == std::string::npos || !is_key) {
    problems.push_back(
        {{source, 0, 0},
         key,
         fmt::format("found {}, allowed is KEY=VALUE, such as train.max_steps=50", quote(text))});
    return set;
  }
  YamlTree tree = parse_yaml(text.substr(equals + 1), source, key);
  set.value = tree.root;
  for (Problem& problem : tree.problems) {
    if (problem.key.empty()) problem.key = key;
    problems.push_back(std::move(problem));
  }
  return set;
}

void apply(const Set& set, int source, YamlTree& tree, std::vector<Problem>& problems) {
  if (!tree.root || !set.value) return;
  if (NodePtr root = with_value(tree.root, set.path, 0, set.value, {source, 0, 0})) {
    tree.root = std::move(root);
    return;
  }
  problems.push_back({{source, 0, 0},
                      fmt::format("{}", fmt::join(set.path, ".")),
                      "found a key below one that holds a value, allowed are the keys of a map"});
}

// In the order of the file, then of the options.
std::vector<Fault> to_faults(std::vector<Problem> problems, const std::string& file,
                             const std::vector<Set>& sets) {
  std::stable_sort(problems.begin(), problems.end(), [](const Problem& a, const Problem& b) {
    const auto order = [](const Problem& p) {
      return std::tuple(p.where.source, p.where.line == 0, p.where.line, p.where.column);
    };
    return order(a) < order(b);
  });
  std::vector<Fault> faults;
  for (Problem& problem : problems) {
    const bool is_set = problem.where.source > 0;
    Fault fault;
    fault.file = is_set ? sets[static_cast<std::size_t>(problem.where.source - 1)].label : file;
    fault.line = is_set ? 0 : problem.where.line;
    fault.column = is_set ? 0 : problem.where.column;
    fault.key = std::move(problem.key);
    fault.message = std::move(problem.message);
    faults.push_back(std::move(fault));
  }
  return faults;
}

void read_tree(const Node& root, bool check_files, LoadedJob& job, Reading& reading) {
  reading.folder = job.file.parent_path();
  if (root.type != Node::Type::kMap) {
    reading.problems.push_back(
        {root.where, "",
         fmt::format("found {}, allowed is a map with the keys {}",
                     root.type == Node::Type::kNull ? "an empty file" : describe(root),
                     fmt::join(key_names(*config::Job::descriptor()), ", "))});
    return;
  }
  read_message(root, job.job, reading);
  fill_num_nodes(job.job, reading);
  check_combinations(job.job, reading);
  if (check_files) check_data_files(job.job, reading);
}

}  // namespace

std::string Fault::text() const {
  std::string out = file;
  if (line > 0) out += fmt::format(":{}", line);
  if (line > 0 && column > 0) out += fmt::format(":{}", column);
  out += ": ";
  if (!key.empty()) out += key + ": ";
  return out + message;
}

LoadOutcome load_job(const std::filesystem::path& file, const LoadOptions& options) {
  LoadOutcome outcome;
  std::error_code code;
  outcome.job.file = std::filesystem::absolute(file, code).lexically_normal();
  const Result<std::string> text = read_job_text(file);
  if (!text) {
    outcome.faults.push_back({file.string(), 0, 0, "", text.error().message});
    return outcome;
  }
  YamlTree tree = parse_yaml(*text, 0);
  Reading reading;
  reading.problems = std::move(tree.problems);
  std::vector<Set> sets;
  for (const std::string& set : options.sets) {
    const int source = static_cast<int>(sets.size()) + 1;
    sets.push_back(parse_set(set, source, reading.problems));
    apply(sets.back(), source, tree, reading.problems);
  }
  if (tree.root) read_tree(*tree.root, options.check_files, outcome.job, reading);
  outcome.faults = to_faults(std::move(reading.problems), file.string(), sets);
  return outcome;
}

}  // namespace surefoot
