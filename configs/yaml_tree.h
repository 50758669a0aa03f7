// YAML text as an immutable tree that knows where each node stands.
//
// The tree is made from yaml-cpp's events rather than its Node: a Node hides duplicate keys and
// whether a scalar was quoted, and is expanded before anyone can count. Here an alias shares the
// node it names, so a file whose aliases multiply costs no more memory than its text; its size
// after expansion is counted, and refused beyond kMaxNodes.
//
// Merge keys (`<<`) are resolved: the map's own keys win, then the merged maps in their order.
// Merged entries keep the position where they were written. yaml-cpp is used in yaml_tree.cpp only;
// its exceptions end there. Pure: no I/O, no globals.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace surefoot::configs {

inline constexpr std::size_t kMaxFileBytes = 1'000'000;
inline constexpr std::size_t kMaxNodes =
    10'000;  // scalars, keys, lists and maps, each alias counted as what it stands for
inline constexpr std::size_t kMaxDepth =
    64;  // job.proto needs 4; deep nesting would only exhaust the stack

struct Position {
  int source = 0;  // 0: the file; i > 0: the i-th --set
  int line = 0;    // from 1; 0: nowhere in particular
  int column = 0;  // from 1, in characters
};

// What is wrong with some place of the input.
struct Problem {
  Position where;
  std::string key;  // "train.optimizer.lr", "" for the whole file
  std::string message;
};

struct Node;
using NodePtr = std::shared_ptr<const Node>;

struct Entry {
  std::string key;
  Position where;  // of the key
  NodePtr value;
};

struct Node {
  enum class Type { kNull, kScalar, kList, kMap };
  Type type = Type::kNull;
  Position where;
  std::string text;            // kScalar
  bool is_quoted = false;      // kScalar: quoted, a block, or tagged !!str: text and never a number
  std::vector<NodePtr> items;  // kList
  std::vector<Entry> entries;  // kMap: no key twice
  std::size_t size = 1;        // nodes, after expansion
  std::size_t depth = 1;       // levels, after expansion

  [[nodiscard]] const Entry* find(std::string_view key) const;
};

struct YamlTree {
  NodePtr root;                   // null: cannot be read at all; kNull: empty
  std::vector<Problem> problems;  // duplicate keys and the like; the tree is usable all the same
};

// Reads one document. `source` goes into every position; `prefix` before every key of a problem.
[[nodiscard]] YamlTree parse_yaml(std::string_view text, int source, std::string_view prefix = "");

// A plain scalar, as if it had been read.
[[nodiscard]] NodePtr plain_scalar(std::string text);

// What stands there, for messages: `"abc"`, `a list`, `nothing`. Long and unprintable text is cut
// and escaped.
[[nodiscard]] std::string describe(const Node& node);
// One line for a message: control characters escaped, cut after `longest` bytes.
[[nodiscard]] std::string printable(std::string_view text, std::size_t longest = 60);
// The same in double quotes.
[[nodiscard]] std::string quote(std::string_view text);

[[nodiscard]] bool is_utf8(std::string_view text);
// "a.b" from "a" and "b", "b" from "" and "b".
[[nodiscard]] std::string join_key(std::string_view parent, std::string_view key);

}  // namespace surefoot::configs
