// JSON Schema draft-07 of a job file, for editors (yaml-language-server, VS Code): `surefoot
// validate --schema`.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "configs/job.h"
#include "configs/schema.h"
#include "configs/units.h"

namespace surefoot {
namespace {

using namespace configs;
using Json = nlohmann::ordered_json;  // keys in the order of job.proto

Json bound(const FieldDescriptor& field, double value) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE
             ? Json(value)
             : Json(static_cast<std::int64_t>(value));
}

Json number_schema(const FieldDescriptor& field) {
  const config::Key& key = key_of(field);
  Json schema = {
      {"type", field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE ? "number" : "integer"}};
  if (key.has_range()) {
    schema[key.above_min() ? "exclusiveMinimum" : "minimum"] = bound(field, key.min());
    schema[key.below_max() ? "exclusiveMaximum" : "maximum"] = bound(field, key.max());
  }
  if (key.unit() == config::DURATION) schema = {{"type", "string"}, {"pattern", kDurationPattern}};
  if (key.unit() == config::BYTES) schema = {{"type", "string"}, {"pattern", kSizePattern}};
  if (key.unlimited()) return {{"anyOf", {std::move(schema), {{"const", "unlimited"}}}}};
  return schema;
}

Json item_schema(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return {{"type", "boolean"}};
    case FieldDescriptor::CPPTYPE_ENUM:
      return {{"enum", enum_names(*field.enum_type())}};
    // Words such as 123 need no quotes in a job file.
    case FieldDescriptor::CPPTYPE_STRING:
      return {{"type", {"string", "number", "boolean"}}, {"minLength", 1}};
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return {{"anyOf",
               {number_schema(field), {{"type", "string"}, {"pattern", "^[0-9]+(:[0-9]+)?$"}}}}};
    default:
      return number_schema(field);
  }
}

Json default_value(const FieldDescriptor& field) {
  const std::string& text = key_of(field).default_value();
  const bool is_text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING ||
                       field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM;
  if (!is_text && Json::accept(text)) return Json::parse(text);
  return text;
}

Json section_schema(const Descriptor& message);

Json key_schema(const FieldDescriptor& field) {
  const config::Key& key = key_of(field);
  Json schema;
  if (is_section(field)) {
    schema = section_schema(*field.message_type());
  } else if (field.is_repeated()) {
    schema = {{"type", "array"}, {"items", item_schema(field)}};
    if (key.max_count() > 0) {
      schema["minItems"] = key.min_count();
      schema["maxItems"] = key.max_count();
    }
  } else {
    schema = item_schema(field);
  }
  schema["description"] = key.doc();
  if (!key.default_value().empty()) schema["default"] = default_value(field);
  return schema;
}

// Which keys a kind forbids and requires beyond the others.
Json rule_of_kind(const Descriptor& message, const FieldDescriptor& kind, const std::string& name) {
  Json forbidden = Json::object();
  Json required = Json::array();
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    if (!applies(field, name)) forbidden[field.name()] = false;
    if (applies(field, name) && key_of(field).required() && !key_of(field).only().empty())
      required.push_back(field.name());
  }
  Json condition = {{"properties", {{"kind", {{"const", name}}}}}};
  // Where the kind has a default, a map without it is of that kind.
  if (key_of(kind).default_value() != name) condition["required"] = {"kind"};
  Json rule = {{"if", std::move(condition)}, {"then", Json::object()}};
  if (!forbidden.empty()) rule["then"]["properties"] = std::move(forbidden);
  if (!required.empty()) rule["then"]["required"] = std::move(required);
  return rule;
}

Json section_schema(const Descriptor& message) {
  Json schema = {
      {"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  Json required = Json::array();
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    schema["properties"][field.name()] = key_schema(field);
    if (key_of(field).required() && key_of(field).only().empty()) required.push_back(field.name());
  }
  if (!required.empty()) schema["required"] = std::move(required);
  const FieldDescriptor* kind = kind_field(message);
  if (kind == nullptr) return schema;
  for (const std::string& name : enum_names(*kind->enum_type())) {
    Json rule = rule_of_kind(message, *kind, name);
    if (!rule["then"].empty()) schema["allOf"].push_back(std::move(rule));
  }
  return schema;
}

}  // namespace

std::string json_schema() {
  Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                 {"title", "Surefoot job file"}};
  schema.update(section_schema(*config::Job::descriptor()));
  schema["patternProperties"] = {{"^x-", {{"description", "Not read; a place for anchors."}}}};
  return schema.dump(2) + "\n";
}

}  // namespace surefoot
