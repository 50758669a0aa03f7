#include "configs/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

namespace surefoot::configs {
namespace {

// The lines of a text, to turn yaml-cpp's byte columns into characters and to show what stands at a
// place.
class Lines {
 public:
  explicit Lines(std::string_view text) : text_(text) {
    starts_.push_back(0);
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') starts_.push_back(i + 1);
    }
  }
  // Lines and byte columns count from 0 as yaml-cpp's, the result from 1. Goes on from the last
  // call's place in the same line: counting a line of a megabyte from its start for each node would
  // take minutes.
  [[nodiscard]] int column(int line, int byte_column) {
    if (!has(line) || byte_column < 0) return 1;
    if (line != last_line_ || byte_column < last_byte_column_) {
      last_line_ = line;
      last_byte_column_ = 0;
      last_column_ = 1;
    }
    const std::string_view rest = text_.substr(starts_[static_cast<std::size_t>(line)]);
    for (; last_byte_column_ < byte_column; ++last_byte_column_) {
      const auto at = static_cast<std::size_t>(last_byte_column_);
      if (at < rest.size() && (static_cast<unsigned char>(rest[at]) & 0xC0U) != 0x80U)
        ++last_column_;
    }
    return last_column_;
  }
  [[nodiscard]] std::string_view from(int line, int byte_column) const {
    const std::string_view whole = line_text(line);
    return whole.substr(std::min(static_cast<std::size_t>(std::max(byte_column, 0)), whole.size()));
  }
  // The byte column of a tab in the white space that the line begins with.
  [[nodiscard]] std::optional<int> indenting_tab(int line) const {
    const std::string_view whole = line_text(line);
    const std::size_t at = whole.find_first_not_of(' ');
    if (at == std::string_view::npos || whole[at] != '\t') return std::nullopt;
    return static_cast<int>(at);
  }

 private:
  [[nodiscard]] bool has(int line) const {
    return line >= 0 && static_cast<std::size_t>(line) < starts_.size();
  }
  [[nodiscard]] std::string_view line_text(int line) const {
    if (!has(line)) return "";
    const std::string_view rest = text_.substr(starts_[static_cast<std::size_t>(line)]);
    return rest.substr(0, rest.find_first_of("\r\n"));
  }

  std::string_view text_;
  std::vector<std::size_t> starts_;
  int last_line_ = -1;
  int last_byte_column_ = 0;
  int last_column_ = 1;
};

// A YAML exception as a problem.
Problem problem_of(const YAML::Exception& exception, int source, Lines& lines) {
  const YAML::Mark& mark = exception.mark;
  if (mark.is_null()) return {{source, 0, 0}, "", "cannot be read as YAML: " + exception.msg};
  const auto place = [&](int byte_column) {
    return Position{source, mark.line + 1, lines.column(mark.line, byte_column)};
  };
  if (const std::optional<int> tab = lines.indenting_tab(mark.line)) {
    return {place(*tab), "",
            fmt::format("cannot be read as YAML: {}; found a tab, allowed to indent are spaces",
                        exception.msg)};
  }
  const std::string_view rest = lines.from(mark.line, mark.column);
  const std::string at = rest.empty() ? "the end of the line" : quote(rest);
  return {place(mark.column), "",
          fmt::format("cannot be read as YAML: {}, at {}", exception.msg, at)};
}

// Ends the parse: going on could cost without bound, or what follows has no meaning. Caught in
// parse_yaml.
struct Refused {
  Problem problem;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(Lines& lines, int source, std::string_view prefix, std::vector<Problem>& problems)
      : lines_(lines), source_(source), prefix_(prefix), problems_(problems) {}

  [[nodiscard]] NodePtr root() const { return root_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    auto node = std::make_shared<Node>();
    node->where = position(mark);
    // yaml-cpp places a missing value at whatever comes next.
    if (!open_.empty() && open_.back().key) node->where = open_.back().key->where;
    finish(std::move(node), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end())
      refuse(position(mark), "an alias must not stand inside the node that it names");
    count(found->second->size, position(mark));
    attach(found->second, position(mark), /*is_key_allowed=*/true);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    auto node = std::make_shared<Node>();
    node->type = Node::Type::kScalar;
    node->where = position(mark);
    node->text = value;
    node->is_quoted = tag == "!" || tag == "tag:yaml.org,2002:str";
    check_tag(tag, node->where);
    finish(std::move(node), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Node::Type::kList, mark, tag, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Node::Type::kMap, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Key {
    std::string text;
    Position where;
    bool is_merge = false;
  };
  struct Open {
    std::shared_ptr<Node> node;
    YAML::anchor_t anchor = 0;
    std::optional<Key> key;     // of a map: read, its value not yet
    std::vector<Entry> merges;  // of a map: what stands under `<<`
    bool is_key = false;        // a list or map in the place of a key: dropped when it closes
  };

  [[nodiscard]] Position position(const YAML::Mark& mark) const {
    return {source_, mark.line + 1, lines_.column(mark.line, mark.column)};
  }
  [[nodiscard]] std::string path() const {
    std::string path = prefix_;
    for (const Open& open : open_) {
      if (open.key) {
        path = join_key(path, open.key->text);
      } else if (open.node->type == Node::Type::kList) {
        path += fmt::format("[{}]", open.node->items.size());
      }
    }
    return path;
  }
  void problem(Position where, std::string key, std::string message) {
    problems_.push_back({where, std::move(key), std::move(message)});
  }
  [[noreturn]] void refuse(Position where, std::string message) {
    throw Refused{{where, path(), std::move(message)}};
  }

  void count(std::size_t nodes, Position where) {
    count_ += nodes;
    if (count_ > kMaxNodes) {
      refuse(where, fmt::format("here the file passes {} nodes (aliases count as what they stand "
                                "for); allowed are at most {}",
                                kMaxNodes, kMaxNodes));
    }
  }
  void check_tag(const std::string& tag, Position where) {
    static constexpr std::string_view kCore = "tag:yaml.org,2002:";
    if (tag.empty() || tag == "?" || tag == "!") return;
    if (tag.starts_with(kCore)) {
      const std::string_view type = std::string_view(tag).substr(kCore.size());
      for (const std::string_view known : {"str", "int", "float", "bool", "null", "map", "seq"}) {
        if (type == known) return;
      }
    }
    problem(
        where, path(),
        fmt::format(
            "found the tag {}, allowed are YAML's own: !!str, !!int, !!float, !!bool, !!map, !!seq",
            quote(tag)));
  }

  void open(Node::Type type, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    Open open;
    open.node = std::make_shared<Node>();
    open.node->type = type;
    open.node->where = position(mark);
    open.anchor = anchor;
    check_tag(tag, open.node->where);
    count(1, open.node->where);
    if (open_.size() >= kMaxDepth)
      refuse(open.node->where, fmt::format("nested deeper than {} levels", kMaxDepth));
    open.is_key =
        !open_.empty() && open_.back().node->type == Node::Type::kMap && !open_.back().key;
    open_.push_back(std::move(open));
  }
  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    if (done.node->type == Node::Type::kMap) resolve_merges(done);
    measure(*done.node);
    if (done.anchor != 0) anchors_[done.anchor] = done.node;
    attach(done.node, done.node->where, /*is_key_allowed=*/false);
  }
  void finish(std::shared_ptr<Node> node, YAML::anchor_t anchor) {
    count(1, node->where);
    if (anchor != 0) anchors_[anchor] = node;
    const Position where = node->where;
    attach(std::move(node), where, /*is_key_allowed=*/true);
  }

  void attach(NodePtr node, Position where, bool is_key_allowed) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    if (node->depth + open_.size() > kMaxDepth)
      refuse(where, fmt::format("nested deeper than {} levels", kMaxDepth));
    Open& parent = open_.back();
    if (parent.node->type == Node::Type::kList) {
      parent.node->items.push_back(std::move(node));
    } else if (!parent.key) {
      take_key(parent, *node, where, is_key_allowed);
    } else {
      take_value(parent, std::move(node));
    }
  }
  void take_key(Open& map, const Node& node, Position where, bool is_allowed) {
    if (!is_allowed || node.type != Node::Type::kScalar) {
      problem(where, path(), fmt::format("found {} as a key, allowed is a word", describe(node)));
      map.key = Key{"", where, false};
      return;
    }
    map.key = Key{node.text, where, node.text == "<<" && !node.is_quoted};
  }
  void take_value(Open& map, NodePtr value) {
    Key key = *std::exchange(map.key, std::nullopt);
    std::vector<Entry>& entries = key.is_merge ? map.merges : map.node->entries;
    for (const Entry& entry : entries) {
      if (entry.key != key.text) continue;
      problem(key.where, join_key(path(), key.text),
              fmt::format("found a second time, allowed is once; the first is in line {}",
                          entry.where.line));
      return;
    }
    if (key.text.empty()) return;  // reported as no word
    entries.push_back({std::move(key.text), key.where, std::move(value)});
  }

  void resolve_merges(Open& map) {
    for (const Entry& merge : map.merges) {
      if (merge.value->type == Node::Type::kMap) {
        take_entries(*map.node, *merge.value);
        continue;
      }
      const auto is_map = [](const NodePtr& item) { return item->type == Node::Type::kMap; };
      const std::vector<NodePtr>& items = merge.value->items;
      if (merge.value->type != Node::Type::kList ||
          !std::all_of(items.begin(), items.end(), is_map)) {
        problem(merge.where, join_key(path(), "<<"),
                fmt::format("found {}, allowed is the alias of a map, or a list of them",
                            describe(*merge.value)));
        continue;
      }
      for (const NodePtr& item : items) take_entries(*map.node, *item);
    }
  }
  static void take_entries(Node& into, const Node& from) {
    for (const Entry& entry : from.entries) {
      if (into.find(entry.key) == nullptr) into.entries.push_back(entry);
    }
  }
  static void measure(Node& node) {
    const auto add = [&node](const Node& child) {
      node.size += child.size;
      node.depth = std::max(node.depth, child.depth + 1);
    };
    for (const NodePtr& item : node.items) add(*item);
    for (const Entry& entry : node.entries) {
      ++node.size;
      add(*entry.value);
    }
  }

  Lines& lines_;
  int source_;
  std::string prefix_;
  std::vector<Problem>& problems_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, NodePtr> anchors_;
  std::size_t count_ = 0;
  NodePtr root_;
};

NodePtr empty_node(int source) {
  auto node = std::make_shared<Node>();
  node->where.source = source;
  return node;
}

// Faults of the text that yaml-cpp would accept, or read as something else.
std::optional<Problem> unreadable(std::string_view text, int source) {
  if (text.size() > kMaxFileBytes) {
    return Problem{
        {source, 0, 0},
        "",
        fmt::format("the file has {} bytes, allowed are at most {}", text.size(), kMaxFileBytes)};
  }
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    const int line = 1 + static_cast<int>(std::count(
                             text.begin(), text.begin() + static_cast<std::ptrdiff_t>(nul), '\n'));
    return Problem{{source, line, 1},
                   "",
                   "found a zero byte, allowed is a text in UTF-8; this looks like a binary file"};
  }
  if (!is_utf8(text)) {
    int line = 1;
    for (std::size_t start = 0; start < text.size(); ++line) {
      const std::size_t end = std::min(text.find('\n', start), text.size());
      if (!is_utf8(text.substr(start, end - start))) break;
      start = end + 1;
    }
    return Problem{
        {source, line, 1}, "", "found bytes that are not UTF-8, allowed is a text in UTF-8"};
  }
  return std::nullopt;
}

}  // namespace

const Entry* Node::find(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

YamlTree parse_yaml(std::string_view text, int source, std::string_view prefix) {
  static constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  YamlTree tree;
  if (std::optional<Problem> problem = unreadable(text, source)) {
    tree.problems.push_back(std::move(*problem));
    return tree;
  }
  Lines lines(text);
  TreeBuilder builder(lines, source, prefix, tree.problems);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    tree.root = builder.root() ? builder.root() : empty_node(source);
    std::vector<Problem> ignored;
    TreeBuilder second(lines, source, prefix, ignored);
    if (parser.HandleNextDocument(second) && second.root()) {
      tree.problems.push_back(
          {second.root()->where, "", "found a second document (after ---), allowed is one"});
    }
  } catch (const Refused& refused) {
    tree.root = nullptr;
    tree.problems = {refused.problem};
  } catch (const YAML::Exception& exception) {
    tree.root = nullptr;
    tree.problems = {problem_of(exception, source, lines)};
  } catch (const std::exception& exception) {
    tree.root = nullptr;
    tree.problems = {
        {{source, 0, 0}, "", fmt::format("cannot be read as YAML: {}", exception.what())}};
  }
  return tree;
}

NodePtr plain_scalar(std::string text) {
  auto node = std::make_shared<Node>();
  node->type = Node::Type::kScalar;
  node->text = std::move(text);
  return node;
}

std::string printable(std::string_view text, std::size_t longest) {
  std::string out;
  for (const char c : text.substr(0, longest)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  if (text.size() <= longest) return out;
  // A character cut in two would make the message unreadable.
  for (int i = 0; i < 3 && !is_utf8(out); ++i) out.pop_back();
  return out + "...";
}

std::string quote(std::string_view text) {
  return '"' + printable(text) + '"';
}

std::string describe(const Node& node) {
  switch (node.type) {
    case Node::Type::kNull:
      return "nothing";
    case Node::Type::kList:
      return "a list";
    case Node::Type::kMap:
      return "a map";
    case Node::Type::kScalar:
      break;
  }
  return quote(node.text);
}

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) {
      return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U;
    };
    const unsigned first = byte(i);
    const std::size_t length = first < 0x80                    ? 1
                               : first >= 0xC2 && first < 0xE0 ? 2
                               : first >= 0xE0 && first < 0xF0 ? 3
                               : first >= 0xF0 && first < 0xF5 ? 4
                                                               : 0;
    if (length == 0) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xC0U) != 0x80U) return false;
    }
    // Overlong forms, surrogates, and beyond U+10FFFF.
    const unsigned second = byte(i + 1);
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) ||
        (first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90))
      return false;
    i += length;
  }
  return true;
}

std::string join_key(std::string_view parent, std::string_view key) {
  return parent.empty() ? std::string(key) : fmt::format("{}.{}", parent, key);
}

}  // namespace surefoot::configs
