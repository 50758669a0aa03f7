#include "configs/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "configs/expand.h"
#include "configs/suggest.h"
#include "configs/units.h"

namespace surefoot::configs {
namespace {

// Keys that only hold anchors for the rest of the file.
constexpr std::string_view kAnchorPrefix = "x-";

class Reader {
 public:
  Reader(const Descriptor& root, Reading& reading) : root_(root), reading_(reading) {}

  void read_section(const Node& node, Message& message, const std::string& path);

 private:
  void report(Position where, const std::string& key, std::string message) {
    reading_.problems.push_back({where, key, std::move(message)});
  }
  void check_keys(const Node& node, const Message& message, const std::string& path);
  void read_kind(const Node& node, Message& message, const std::string& path);
  void read_key(const Node& node, Message& message, const FieldDescriptor& field,
                const std::string& path);
  void read_field(const Node& node, Message& message, const FieldDescriptor& field,
                  const std::string& key);
  void read_list(const Node& node, Message& message, const FieldDescriptor& field,
                 const std::string& key);
  // Sets the field, or adds an item to it. The error's message is the problem's.
  Status read_value(const Node& node, Message& message, const FieldDescriptor& field);
  Status read_integer(const Node& node, Message& message, const FieldDescriptor& field);
  Status read_double(const Node& node, Message& message, const FieldDescriptor& field);
  Status read_bool(const Node& node, Message& message, const FieldDescriptor& field);
  Status read_enum(const Node& node, Message& message, const FieldDescriptor& field);
  Status read_text(const Node& node, Message& message, const FieldDescriptor& field);
  Status read_range(const Node& node, Message& message, const FieldDescriptor& field);

  const Descriptor& root_;
  Reading& reading_;
  // Where the name is missing or wrong, which is a problem of its own, {name} becomes this.
  std::string job_name_ = "name";
};

Error wrong(const Node& node, const FieldDescriptor& field) {
  return error(Code::kInvalid, "found {}{}, allowed is {}", node.is_quoted ? "the text " : "",
               describe(node), allowed_item(field));
}
Error wrong(const Error& found, const FieldDescriptor& field) {
  return error(Code::kInvalid, "{}; allowed is {}", found.message, allowed_item(field));
}

// Numbers are plain scalars: "4" in quotes is a text.
bool is_plain(const Node& node) {
  return node.type == Node::Type::kScalar && !node.is_quoted;
}

bool is_within(const config::Key& key, double value) {
  if (!key.has_range()) return true;
  if (key.above_min() ? value <= key.min() : value < key.min()) return false;
  return key.below_max() ? value < key.max() : value <= key.max();
}

Result<std::int64_t> parse_with_unit_of(const config::Key& key, std::string_view text) {
  if (key.unlimited() && text == "unlimited") return -1;
  switch (key.unit()) {
    case config::DURATION:
      return parse_duration(text);
    case config::BYTES:
      return parse_size(text);
    default:
      return parse_integer(text);
  }
}

void Reader::read_section(const Node& node, Message& message, const std::string& path) {
  check_keys(node, message, path);
  read_kind(node, message, path);
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (&field != kind_field(*message.GetDescriptor())) read_key(node, message, field, path);
  }
}

void Reader::check_keys(const Node& node, const Message& message, const std::string& path) {
  const Descriptor& type = *message.GetDescriptor();
  for (const Entry& entry : node.entries) {
    if (type.FindFieldByName(entry.key) != nullptr) continue;
    if (path.empty() && entry.key.starts_with(kAnchorPrefix)) continue;
    report(entry.where, join_key(path, entry.key),
           fmt::format("found an unknown key, allowed {}{} are {}{}",
                       path.empty() ? "at the top" : "in ", path, fmt::join(key_names(type), ", "),
                       did_you_mean(suggest_keys(entry.key, path, type, root_))));
  }
}

// First, since it decides which other keys apply.
void Reader::read_kind(const Node& node, Message& message, const std::string& path) {
  if (const FieldDescriptor* field = kind_field(*message.GetDescriptor()))
    read_key(node, message, *field, path);
}

void Reader::read_key(const Node& node, Message& message, const FieldDescriptor& field,
                      const std::string& path) {
  const std::string key = join_key(path, field.name());
  const std::string kind =
      &field == kind_field(*message.GetDescriptor()) ? "" : chosen_kind(message);
  if (const Entry* entry = node.find(field.name())) {
    reading_.found[key] = entry->where;
    if (!applies(field, kind)) {
      report(entry->where, key,
             fmt::format("found a key that means nothing with {}: {}, allowed is it with {}",
                         join_key(path, "kind"), kind, fmt::join(key_of(field).only(), ", ")));
      return;
    }
    read_field(*entry->value, message, field, key);
    return;
  }
  const bool is_unclear =
      !key_of(field).only().empty() && kind.empty();  // that the kind is missing has been said
  if (is_unclear || !applies(field, kind)) return;
  if (key_of(field).required()) {
    report(reading_.place_of(path), key,
           fmt::format("found nothing, but it is required; allowed is {}", allowed(field)));
  } else if (is_section(field)) {
    read_section(Node{}, *message.GetReflection()->MutableMessage(&message, &field), key);
  } else if (const NodePtr node_of_default = default_node(field)) {
    const std::size_t before = reading_.problems.size();
    read_field(*node_of_default, message, field, key);
    SUREFOOT_CHECK(reading_.problems.size() == before);  // the schema's own defaults fit
  }
}

void Reader::read_field(const Node& node, Message& message, const FieldDescriptor& field,
                        const std::string& key) {
  if (is_section(field)) {
    // A section all of whose keys are commented out is as good as none.
    if (node.type != Node::Type::kMap && node.type != Node::Type::kNull) {
      report(node.where, key, wrong(node, field).message);
      return;
    }
    read_section(node, *message.GetReflection()->MutableMessage(&message, &field), key);
    return;
  }
  if (field.is_repeated()) {
    read_list(node, message, field, key);
    return;
  }
  if (const Status read = read_value(node, message, field); !read)
    report(node.where, key, read.error().message);
}

void Reader::read_list(const Node& node, Message& message, const FieldDescriptor& field,
                       const std::string& key) {
  if (node.type != Node::Type::kList) {
    report(node.where, key, fmt::format("found {}, allowed is {}", describe(node), allowed(field)));
    return;
  }
  const config::Key& options = key_of(field);
  const int count = static_cast<int>(node.items.size());
  if (options.max_count() > 0 && (count < options.min_count() || count > options.max_count())) {
    report(node.where, key,
           fmt::format("found a list of {} items, allowed is {}", count, allowed(field)));
  }
  for (int i = 0; i < count; ++i) {
    const Node& item = *node.items[static_cast<std::size_t>(i)];
    if (const Status read = read_value(item, message, field); !read)
      report(item.where, fmt::format("{}[{}]", key, i), read.error().message);
  }
}

Status Reader::read_value(const Node& node, Message& message, const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
      return read_integer(node, message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return read_double(node, message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return read_bool(node, message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return read_enum(node, message, field);
    case FieldDescriptor::CPPTYPE_STRING:
      return read_text(node, message, field);
    default:
      break;
  }
  SUREFOOT_CHECK(is_range(field) && !field.is_repeated());  // job.proto uses no other type
  return read_range(node, message, field);
}

Status Reader::read_integer(const Node& node, Message& message, const FieldDescriptor& field) {
  if (!is_plain(node)) return wrong(node, field);
  const config::Key& key = key_of(field);
  const Result<std::int64_t> value = parse_with_unit_of(key, node.text);
  if (!value) return wrong(value.error(), field);
  const bool is_unlimited = key.unlimited() && node.text == "unlimited";
  if (!is_unlimited && !is_within(key, static_cast<double>(*value))) return wrong(node, field);
  const auto& reflection = *message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
    field.is_repeated() ? reflection.AddInt64(&message, &field, *value)
                        : reflection.SetInt64(&message, &field, *value);
    return {};
  }
  const auto narrow = static_cast<std::int32_t>(*value);
  if (narrow != *value) return wrong(node, field);
  field.is_repeated() ? reflection.AddInt32(&message, &field, narrow)
                      : reflection.SetInt32(&message, &field, narrow);
  return {};
}

Status Reader::read_double(const Node& node, Message& message, const FieldDescriptor& field) {
  if (!is_plain(node)) return wrong(node, field);
  Result<double> value = parse_number(node.text);
  if (!value) return wrong(value.error(), field);
  if (!is_within(key_of(field), *value)) return wrong(node, field);
  // -0.0 is 0 to every check, but another text in the training identity.
  if (*value == 0) *value = 0;
  const auto& reflection = *message.GetReflection();
  field.is_repeated() ? reflection.AddDouble(&message, &field, *value)
                      : reflection.SetDouble(&message, &field, *value);
  return {};
}

Status Reader::read_bool(const Node& node, Message& message, const FieldDescriptor& field) {
  const bool is_true = node.text == "true" || node.text == "True" || node.text == "TRUE";
  const bool is_false = node.text == "false" || node.text == "False" || node.text == "FALSE";
  if (!is_plain(node) || (!is_true && !is_false)) return wrong(node, field);
  const auto& reflection = *message.GetReflection();
  field.is_repeated() ? reflection.AddBool(&message, &field, is_true)
                      : reflection.SetBool(&message, &field, is_true);
  return {};
}

Status Reader::read_enum(const Node& node, Message& message, const FieldDescriptor& field) {
  const std::vector<std::string> names = enum_names(*field.enum_type());
  if (node.type != Node::Type::kScalar ||
      std::find(names.begin(), names.end(), node.text) == names.end()) {
    Error fault = wrong(node, field);
    fault.message += did_you_mean(near_words(node.text, names));
    return fault;
  }
  const auto* value = field.enum_type()->FindValueByName(node.text);
  const auto& reflection = *message.GetReflection();
  field.is_repeated() ? reflection.AddEnum(&message, &field, value)
                      : reflection.SetEnum(&message, &field, value);
  return {};
}

Status Reader::read_text(const Node& node, Message& message, const FieldDescriptor& field) {
  if (node.type != Node::Type::kScalar) return wrong(node, field);
  // The name is the first field, so that the others can be expanded with it.
  const bool is_name = field.name() == "name" && field.containing_type() == &root_;
  SUREFOOT_ASSIGN(std::string text, expand(node.text, is_name ? "" : job_name_));
  if (is_name) job_name_ = text;
  if (key_of(field).unit() == config::PATH)
    text = (reading_.folder / text).lexically_normal().string();
  const auto& reflection = *message.GetReflection();
  field.is_repeated() ? reflection.AddString(&message, &field, std::move(text))
                      : reflection.SetString(&message, &field, std::move(text));
  return {};
}

Status Reader::read_range(const Node& node, Message& message, const FieldDescriptor& field) {
  if (node.type != Node::Type::kScalar) return wrong(node, field);
  const std::string_view text = node.text;
  const std::size_t colon = text.find(':');
  const Result<std::int64_t> min = parse_integer(text.substr(0, colon));
  const Result<std::int64_t> max =
      colon == std::string_view::npos ? min : parse_integer(text.substr(colon + 1));
  if (!min || !max) return wrong(node, field);
  for (const std::int64_t value : {*min, *max}) {
    if (!is_within(key_of(field), static_cast<double>(value)) ||
        value != static_cast<std::int32_t>(value))
      return wrong(node, field);
  }
  if (*min > *max)
    return error(Code::kInvalid, "found {}, allowed is MIN:MAX with MIN at most MAX",
                 describe(node));
  auto& range =
      static_cast<config::Range&>(*message.GetReflection()->MutableMessage(&message, &field));
  range.set_min(static_cast<std::int32_t>(*min));
  range.set_max(static_cast<std::int32_t>(*max));
  return {};
}

// Whether `key` is `section` or in it ("a.b.c", "a.b[1]" in "a.b").
bool is_in(std::string_view key, std::string_view section) {
  return key.starts_with(section) &&
         (key.size() == section.size() || key[section.size()] == '.' || key[section.size()] == '[');
}

}  // namespace

bool Reading::has_problem(std::string_view key) const {
  return std::any_of(problems.begin(), problems.end(), [&](const Problem& problem) {
    return problem.key.empty() || is_in(problem.key, key) || is_in(key, problem.key);
  });
}

Position Reading::place_of(std::string_view key) const {
  while (!key.empty()) {
    if (const auto place = found.find(std::string(key)); place != found.end()) return place->second;
    const std::size_t dot = key.rfind('.');
    key = key.substr(0, dot == std::string_view::npos ? 0 : dot);
  }
  return {};
}

void read_message(const Node& root, Message& message, Reading& reading) {
  Reader(*message.GetDescriptor(), reading).read_section(root, message, "");
}

}  // namespace surefoot::configs
