// The schema itself, and what is made from it: the reader on another schema, JSON Schema, the
// reference page.

#include <gmock/gmock.h>
#include <google/protobuf/dynamic_message.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "common/file.h"
#include "common/test_paths.h"
#include "configs/job_for_test.h"
#include "configs/reader.h"
#include "configs/suggest.h"

namespace surefoot::configs {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::DynamicMessageFactory;
using google::protobuf::FieldDescriptorProto;
using google::protobuf::FileDescriptorProto;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::SizeIs;

TEST(Schema, DocumentsEveryKeyAndItsDefaultsFit) {
  for_each_key(*config::Job::descriptor(), [](const SchemaKey& key) {
    const config::Key& options = key_of(*key.field);
    EXPECT_FALSE(options.doc().empty()) << key.path;
    EXPECT_FALSE(options.required() && !options.default_value().empty()) << key.path;
    // Without a default an absent number would be a 0 that nobody wrote. An absent list is an empty
    // one.
    const bool may_be_absent =
        key.field->cpp_type() == FieldDescriptor::CPPTYPE_STRING || key.field->is_repeated();
    EXPECT_TRUE(options.required() || !options.default_value().empty() || may_be_absent ||
                is_section(*key.field))
        << key.path;
    const bool is_number = key.field->cpp_type() == FieldDescriptor::CPPTYPE_INT32 ||
                           key.field->cpp_type() == FieldDescriptor::CPPTYPE_INT64 ||
                           key.field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE ||
                           is_range(*key.field);
    EXPECT_EQ(options.has_range(), is_number) << key.path;
    for (const std::string& kind : options.only()) {
      const FieldDescriptor* field = kind_field(*key.field->containing_type());
      ASSERT_NE(field, nullptr) << key.path;
      EXPECT_NE(field->enum_type()->FindValueByName(kind), nullptr) << key.path;
    }
  });
}

// A schema of two keys that job.proto has no like of.
class OtherSchema : public testing::Test {
 protected:
  OtherSchema() {
    FileDescriptorProto file;
    file.set_name("other.proto");
    file.set_syntax("proto3");
    auto& message = *file.add_message_type();
    message.set_name("Other");
    add(message, "name", FieldDescriptorProto::TYPE_STRING, false);
    add(message, "flag", FieldDescriptorProto::TYPE_BOOL, false)
        .mutable_options()
        ->MutableExtension(config::key)
        ->set_default_value("true");
    add(message, "words", FieldDescriptorProto::TYPE_STRING, true);
    add(message, "flags", FieldDescriptorProto::TYPE_BOOL, true);
    add(message, "small", FieldDescriptorProto::TYPE_INT32, false);
    type_ = pool_.BuildFile(file)->message_type(0);
    message_.reset(factory_.GetPrototype(type_)->New());
  }
  static FieldDescriptorProto& add(google::protobuf::DescriptorProto& message, const char* name,
                                   FieldDescriptorProto::Type type, bool is_repeated) {
    auto& field = *message.add_field();
    field.set_name(name);
    field.set_number(message.field_size());
    field.set_type(type);
    field.set_label(is_repeated ? FieldDescriptorProto::LABEL_REPEATED
                                : FieldDescriptorProto::LABEL_OPTIONAL);
    return field;
  }
  std::vector<Problem> read(const char* text) {
    message_->Clear();
    Reading reading;
    const YamlTree tree = parse_yaml(text, 0);
    EXPECT_TRUE(tree.root);
    read_message(*tree.root, *message_, reading);
    return reading.problems;
  }
  [[nodiscard]] bool flag() const {
    return message_->GetReflection()->GetBool(*message_, type_->FindFieldByName("flag"));
  }
  [[nodiscard]] std::vector<std::string> words() const {
    std::vector<std::string> out;
    const FieldDescriptor* field = type_->FindFieldByName("words");
    for (int i = 0; i < message_->GetReflection()->FieldSize(*message_, field); ++i)
      out.push_back(scalar_text(*message_, *field, i));
    return out;
  }

  DescriptorPool pool_{DescriptorPool::generated_pool()};
  DynamicMessageFactory factory_;
  const Descriptor* type_ = nullptr;
  std::unique_ptr<Message> message_;
};

TEST_F(OtherSchema, ReadsBooleansByYamlsOwnWords) {
  EXPECT_THAT(read("x-a:"), IsEmpty());
  EXPECT_TRUE(flag());
  EXPECT_THAT(read("flag: false"), IsEmpty());
  EXPECT_FALSE(flag());
  EXPECT_THAT(read("flags: [true, False, TRUE]"), IsEmpty());
  for (const char* text :
       {"flag: yes", "flag: 1", "flag: \"true\"", "flag: [true]", "flag:", "flags: [true, on]"})
    EXPECT_THAT(read(text), SizeIs(1)) << text;
}

TEST_F(OtherSchema, ReadsListsOfTextsAndExpandsThem) {
  EXPECT_THAT(read("{name: ada, words: [a, 1, true, '{name}', \"b c\"]}"), IsEmpty());
  EXPECT_THAT(words(), ElementsAre("a", "1", "true", "ada", "b c"));
  EXPECT_THAT(read("words: [a, [b], {c: d}, ~]"), SizeIs(3));
}

TEST_F(OtherSchema, RefusesWhatThirtyTwoBitsCannotHold) {
  EXPECT_THAT(read("small: 2147483647"), IsEmpty());
  EXPECT_THAT(read("small: 2147483648"), SizeIs(1));
  EXPECT_THAT(read("small: -2147483649"), SizeIs(1));
}

TEST(JsonSchema, AllowsTheSchemasKeysAndNoOthers) {
  const auto schema = nlohmann::json::parse(json_schema());
  EXPECT_EQ(schema["$schema"], "http://json-schema.org/draft-07/schema#");
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_THAT(schema["required"], ElementsAre("name", "model", "data", "train"));
  const auto& train = schema["properties"]["train"];
  EXPECT_EQ(train["properties"].size(),
            static_cast<std::size_t>(config::Train::descriptor()->field_count()));
  EXPECT_EQ(train["additionalProperties"], false);
  EXPECT_THAT(train["required"], IsSupersetOf({"max_steps", "optimizer"}));
  EXPECT_EQ(train["properties"]["max_steps"]["minimum"], 1);
  EXPECT_EQ(train["properties"]["optimizer"]["properties"]["lr"]["exclusiveMinimum"], 0);
  EXPECT_EQ(train["properties"]["optimizer"]["properties"]["betas"]["maxItems"], 2);
  EXPECT_THAT(train["properties"]["reduction"]["enum"], ElementsAre("reproducible", "fast"));
  EXPECT_THAT(schema["properties"]["model"]["properties"]["kind"]["enum"],
              testing::Not(testing::Contains("unset")));
  EXPECT_TRUE(schema["properties"]["checkpoint"]["properties"]["interval"].contains("pattern"));
}

TEST(JsonSchema, TiesKeysToTheirKind) {
  const auto model = nlohmann::json::parse(json_schema())["properties"]["model"];
  ASSERT_EQ(model["allOf"].size(), 4U);
  for (const auto& rule : model["allOf"]) {
    const std::string kind = rule["if"]["properties"]["kind"]["const"];
    const bool is_gpt = kind == "gpt";
    EXPECT_EQ(rule["then"]["properties"].contains("n_head"), !is_gpt) << kind;
    EXPECT_EQ(rule["then"].contains("required"), kind == "torchscript") << kind;
  }
}

TEST(ReferencePage, IsTheOneInTheDocs) {
  const Result<std::string> page = read_file(source_folder() / "docs/job-file.md");
  ASSERT_TRUE(page) << page.error().message;
  EXPECT_EQ(*page, reference_page())
      << "make it anew: build/release/bin/surefoot-reference > docs/job-file.md";
}

TEST(ReferencePage, NamesEveryKey) {
  const std::string page = reference_page();
  for_each_key(*config::Job::descriptor(), [&](const SchemaKey& key) {
    EXPECT_THAT(page, HasSubstr(is_section(*key.field) ? "# " + key.path + "\n"
                                                       : "| `" + key.field->name() + "` |"));
  });
}

TEST(DidYouMean, CountsSlipsOfTheKeyboard) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("max_steps", "max_step"), 1U);
  EXPECT_EQ(edit_distance("gtp", "gpt"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
}

TEST(DidYouMean, LooksInTheSectionThenInOtherToolsWordsThenElsewhere) {
  const auto suggest = [](const char* word, const char* path, const Descriptor& message) {
    return suggest_keys(word, path, message, *config::Job::descriptor());
  };
  EXPECT_THAT(suggest("max_stpes", "train", *config::Train::descriptor()),
              ElementsAre("train.max_steps"));
  EXPECT_THAT(suggest("maxSteps", "train", *config::Train::descriptor()),
              ElementsAre("train.max_steps"));
  EXPECT_THAT(suggest("num_workers", "", *config::Job::descriptor()),
              ElementsAre("resources.num_nodes", "resources.workers_per_node"));
  EXPECT_THAT(suggest("batch_size", "train", *config::Train::descriptor()),
              IsSupersetOf({"train.global_batch_size", "train.micro_batch_size"}));
  EXPECT_THAT(suggest("learning_rate", "train.optimizer", *config::Optimizer::descriptor()),
              ElementsAre("train.optimizer.lr"));
  EXPECT_THAT(suggest("grad_clip", "train.optimizer", *config::Optimizer::descriptor()),
              ElementsAre("train.grad_clip"));
  EXPECT_THAT(suggest("hang_time_out", "train", *config::Train::descriptor()),
              ElementsAre("recovery.hang_timeout"));
  EXPECT_THAT(suggest("zzzzzz", "train", *config::Train::descriptor()), IsEmpty());
  EXPECT_THAT(suggest(std::string(100'000, 'a').c_str(), "train", *config::Train::descriptor()),
              IsEmpty());
}

TEST(Utf8, IsTheStandardsAndNothingElse) {
  for (const char* good : {"", "abc", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                           "\xEF\xBF\xBF", "\xF4\x8F\xBF\xBF"})
    EXPECT_TRUE(is_utf8(good));
  for (const char* bad : {"\x80", "\xC3", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80",
                          "\xF4\x90\x80\x80", "\xF8\x88\x80\x80", "a\xE2\x82", "\xC3z"})
    EXPECT_FALSE(is_utf8(bad));
}

}  // namespace
}  // namespace surefoot::configs
