#include "configs/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "configs/units.h"

namespace surefoot::configs {
namespace {

void visit_keys(const Descriptor& message, const std::string& path,
                const std::function<void(const SchemaKey&)>& visit) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const SchemaKey key{join_key(path, field.name()), &field};
    visit(key);
    if (is_section(field)) visit_keys(*field.message_type(), key.path, visit);
  }
}

// "from 1 to 1000", "above 0, at most 10".
std::string bounds(const FieldDescriptor& field) {
  const config::Key& key = key_of(field);
  if (!key.has_range()) return "";
  const std::string min = format_bound(field, key.min());
  const std::string max = format_bound(field, key.max());
  if (key.above_min())
    return fmt::format(" above {}, {} {}", min, key.below_max() ? "below" : "at most", max);
  if (key.below_max()) return fmt::format(" from {} on, below {}", min, max);
  return fmt::format(" from {} to {}", min, max);
}

std::string allowed_number(const FieldDescriptor& field) {
  switch (key_of(field).unit()) {
    case config::DURATION:
      return "a duration" + bounds(field) + ", such as 30s or 5m";
    case config::BYTES:
      return "a size" + bounds(field) + ", such as 512KiB or 64MiB";
    default:
      break;
  }
  if (key_of(field).has_range() && key_of(field).min() == key_of(field).max())
    return format_bound(field, key_of(field).min());
  return (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE ? "a number" : "a whole number") +
         bounds(field);
}

std::string integer_text(const FieldDescriptor& field, std::int64_t value) {
  const config::Key& key = key_of(field);
  if (key.unlimited() && value == -1) return "unlimited";
  if (key.unit() == config::DURATION) return format_duration(value);
  if (key.unit() == config::BYTES) return format_size(value);
  return fmt::format("{}", value);
}

}  // namespace

const config::Key& key_of(const FieldDescriptor& field) {
  return field.options().GetExtension(config::key);
}

bool is_range(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field.message_type() == config::Range::descriptor();
}
bool is_section(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !is_range(field);
}

std::vector<std::string> key_names(const Descriptor& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.field_count(); ++i) names.push_back(message.field(i)->name());
  return names;
}

std::vector<std::string> enum_names(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->name() != "unset") names.push_back(type.value(i)->name());
  }
  return names;
}

const FieldDescriptor* kind_field(const Descriptor& message) {
  const FieldDescriptor* field = message.FindFieldByName("kind");
  return field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM ? field : nullptr;
}

std::string chosen_kind(const Message& message) {
  const FieldDescriptor* field = kind_field(*message.GetDescriptor());
  if (field == nullptr) return "";
  const std::string& name = message.GetReflection()->GetEnum(message, field)->name();
  return name == "unset" ? "" : name;
}

bool applies(const FieldDescriptor& field, std::string_view kind) {
  const auto& only = key_of(field).only();
  return kind.empty() || only.empty() || std::find(only.begin(), only.end(), kind) != only.end();
}

bool is_aka(const FieldDescriptor& field, std::string_view word) {
  const auto& aka = key_of(field).aka();
  return std::find(aka.begin(), aka.end(), word) != aka.end();
}

void for_each_key(const Descriptor& root, const std::function<void(const SchemaKey&)>& visit) {
  visit_keys(root, "", visit);
}

std::string allowed_item(const FieldDescriptor& field) {
  const std::string unlimited = key_of(field).unlimited() ? ", or unlimited" : "";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return fmt::format("{}{}", enum_names(*field.enum_type()).size() > 1 ? "one of " : "",
                         fmt::join(enum_names(*field.enum_type()), ", "));
    case FieldDescriptor::CPPTYPE_STRING:
      return key_of(field).unit() == config::PATH ? "a path" : "a text";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (is_range(field))
        return key_of(field).max() > key_of(field).min()
                   ? allowed_number(field) + ", or a range MIN:MAX of them"
                   : allowed_number(field);
      return fmt::format("a map with the keys {}",
                         fmt::join(key_names(*field.message_type()), ", "));
    default:
      return allowed_number(field) + unlimited;
  }
}

std::string allowed(const FieldDescriptor& field) {
  if (!field.is_repeated()) return allowed_item(field);
  const config::Key& key = key_of(field);
  const std::string count =
      key.max_count() == 0 ? ""
      : key.min_count() == key.max_count()
          ? fmt::format(" of {} items", key.max_count())
          : fmt::format(" of {} to {} items", key.min_count(), key.max_count());
  return fmt::format("a list{}, each {}", count, allowed_item(field));
}

std::string format_bound(const FieldDescriptor& field, double bound) {
  switch (key_of(field).unit()) {
    case config::DURATION:
      return format_duration(static_cast<std::int64_t>(bound));
    case config::BYTES:
      return format_size(static_cast<std::int64_t>(bound));
    default:
      break;
  }
  std::string text = format_number(bound);
  std::erase(text, '+');  // 1e12
  return text;
}

NodePtr default_node(const FieldDescriptor& field) {
  const std::string& text = key_of(field).default_value();
  if (text.empty()) return nullptr;
  if (!field.is_repeated()) return plain_scalar(text);
  YamlTree tree = parse_yaml(text, 0);
  SUREFOOT_CHECK(tree.root && tree.problems.empty());
  return tree.root;
}

std::string scalar_text(const Message& message, const FieldDescriptor& field, int index) {
  const auto& reflection = *message.GetReflection();
  const bool is_item = index >= 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return integer_text(field, is_item ? reflection.GetRepeatedInt32(message, &field, index)
                                         : reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return integer_text(field, is_item ? reflection.GetRepeatedInt64(message, &field, index)
                                         : reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return format_number(is_item ? reflection.GetRepeatedDouble(message, &field, index)
                                   : reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return (is_item ? reflection.GetRepeatedBool(message, &field, index)
                      : reflection.GetBool(message, &field))
                 ? "true"
                 : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return (is_item ? reflection.GetRepeatedEnum(message, &field, index)
                      : reflection.GetEnum(message, &field))
          ->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return is_item ? reflection.GetRepeatedString(message, &field, index)
                     : reflection.GetString(message, &field);
    default:
      break;
  }
  SUREFOOT_CHECK(is_range(field) && !is_item);
  const auto& range = static_cast<const config::Range&>(reflection.GetMessage(message, &field));
  return range.min() == range.max() ? fmt::format("{}", range.min())
                                    : fmt::format("{}:{}", range.min(), range.max());
}

}  // namespace surefoot::configs
