// What job.proto's options say about a key, in the form that reader, dump, JSON Schema and
// reference page share.
//
// Everything works on descriptors, so a key added to job.proto needs no code here. Pure;
// descriptors live as long as the program.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "configs/job.pb.h"
#include "configs/yaml_tree.h"

namespace surefoot::configs {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

[[nodiscard]] const config::Key& key_of(const FieldDescriptor& field);

[[nodiscard]] bool is_range(
    const FieldDescriptor& field);  // of message type config.Range, written `4` or `1:4`
[[nodiscard]] bool is_section(const FieldDescriptor& field);  // any other message: a map

// The names of a message's keys, in the order of the schema.
[[nodiscard]] std::vector<std::string> key_names(const Descriptor& message);
// The names a user may write: all but `unset`.
[[nodiscard]] std::vector<std::string> enum_names(const EnumDescriptor& type);

// The enum field named `kind`, on which `only` depends; null where a message has none.
[[nodiscard]] const FieldDescriptor* kind_field(const Descriptor& message);
// The chosen kind; empty: none chosen, or the message has none.
[[nodiscard]] std::string chosen_kind(const Message& message);
// Whether a key means anything with this kind. With an empty kind everything does.
[[nodiscard]] bool applies(const FieldDescriptor& field, std::string_view kind);

// Whether other tools call the key so.
[[nodiscard]] bool is_aka(const FieldDescriptor& field, std::string_view word);

struct SchemaKey {
  std::string path;  // "train.optimizer.lr"
  const FieldDescriptor* field;
};
// Every key, sections before what is in them.
void for_each_key(const Descriptor& root, const std::function<void(const SchemaKey&)>& visit);

// What may be written there: "a whole number from 1 to 1000", "one of mlp, gpt". `allowed_item` of
// one item of a list.
[[nodiscard]] std::string allowed(const FieldDescriptor& field);
[[nodiscard]] std::string allowed_item(const FieldDescriptor& field);
// A bound (min, max) in the key's unit: "5m", "64MiB", "0.5".
[[nodiscard]] std::string format_bound(const FieldDescriptor& field, double bound);

// The default as a YAML node: its schema text parsed; null where there is none.
[[nodiscard]] NodePtr default_node(const FieldDescriptor& field);

// The value of a field (item `index` of a list) as it is written in a job file, unquoted: "5m",
// "1:4", "adamw".
[[nodiscard]] std::string scalar_text(const Message& message, const FieldDescriptor& field,
                                      int index = -1);

}  // namespace surefoot::configs
