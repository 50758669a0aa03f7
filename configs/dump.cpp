// The canonical job file: all keys that apply, in the order of the schema, block style, texts in
// double quotes where needed.

#include <fmt/format.h>

#include <algorithm>

#include "configs/expand.h"
#include "configs/job.h"
#include "configs/schema.h"

namespace surefoot {
namespace {

using namespace configs;

// Words that YAML readers, ours or others, would not take for a text.
bool is_plain_word(std::string_view text) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == '/';
  };
  const bool is_word = !text.empty() &&
                       (text.front() == '/' || (text.front() >= 'a' && text.front() <= 'z') ||
                        (text.front() >= 'A' && text.front() <= 'Z')) &&
                       std::all_of(text.begin(), text.end(), is_allowed);
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  for (const std::string_view special :
       {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}) {
    if (lower == special) return false;
  }
  return is_word;
}

std::string yaml_text(std::string_view value) {
  const std::string escaped = escape(value);
  if (is_plain_word(escaped)) return escaped;
  std::string out = "\"";
  for (const char c : escaped) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string yaml_value(const Message& message, const FieldDescriptor& field) {
  const bool is_text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  if (!field.is_repeated()) {
    const std::string text = scalar_text(message, field);
    return is_text ? yaml_text(text) : text;
  }
  std::string out = "[";
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
    const std::string text = scalar_text(message, field, i);
    out += (i > 0 ? ", " : "") + (is_text ? yaml_text(text) : text);
  }
  return out + "]";
}

// An empty text is no text: there is no other way to write that a key was left out.
bool is_absent(const Message& message, const FieldDescriptor& field) {
  return !field.is_repeated() && field.cpp_type() == FieldDescriptor::CPPTYPE_STRING &&
         message.GetReflection()->GetString(message, &field).empty();
}

void dump(const Message& message, const std::string& indent, std::string& out) {
  const std::string kind = chosen_kind(message);
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (!applies(field, kind) || is_absent(message, field)) continue;
    if (is_section(field)) {
      out += fmt::format("{}{}:\n", indent, field.name());
      dump(message.GetReflection()->GetMessage(message, &field), indent + "  ", out);
    } else {
      out += fmt::format("{}{}: {}\n", indent, field.name(), yaml_value(message, field));
    }
  }
}

}  // namespace

std::string to_yaml(const config::Job& job) {
  std::string out;
  dump(job, "", out);
  return out;
}

}  // namespace surefoot
