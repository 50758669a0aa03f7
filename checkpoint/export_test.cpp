// The exported model: names, bytes, hashes, and that the folder is replaced as a whole.
#include "checkpoint/export.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/testing/memory_store.h"
#include "checkpoint/testing/small_state.h"
#include "checkpoint/testing/temporary_folder.h"
#include "common/file.h"

namespace surefoot::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

config::Job gpt_job() {
  config::Job job;
  auto& model = *job.mutable_model();
  model.set_kind(config::Model::gpt);
  model.set_n_layer(2);
  model.set_n_head(4);
  model.set_n_embd(64);
  model.set_block_size(32);
  model.set_vocab_size(256);
  model.set_dropout(0.1);
  return job;
}

struct Tensors {
  Json header;
  std::string payload;
};
Tensors read_model(const fs::path& folder) {
  const std::string text = read_file(folder / "model.safetensors").value();
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  return {Json::parse(text.substr(8, length)), text.substr(8 + length)};
}

TEST(Export, HasParametersAndBuffersUnderTheirNames) {
  const TemporaryFolder folder;
  const SmallState state = small_state(100'000, 1);
  const auto exported = export_model(state.layout, state.bytes, gpt_job(), folder.path() / "final");
  ASSERT_TRUE(exported) << exported.error().message;
  const Tensors model = read_model(folder.path() / "final");
  EXPECT_EQ(model.header["__metadata__"]["format"], "pt");
  ASSERT_EQ(model.header.size(), 5U);  // moments are no part of the model
  std::int64_t bytes = 0;
  for (const SectionSpec& section : state.layout.sections) {
    if (section.name.starts_with("exp_avg")) continue;
    for (const TensorSpec& tensor : section.tensors) {
      const Json& entry = model.header.at(tensor.name);
      EXPECT_EQ(entry["dtype"], std::string(name(section.type)));
      EXPECT_EQ(entry["shape"], Json(tensor.shape));
      const std::int64_t begin = entry["data_offsets"][0];
      const std::int64_t size = entry["data_offsets"][1].get<std::int64_t>() - begin;
      ASSERT_EQ(size, tensor.elements() * size_of(section.type));
      EXPECT_EQ(begin % size_of(section.type), 0);
      EXPECT_EQ(std::memcmp(model.payload.data() + begin,
                            state.bytes.data() + section.offset + tensor.offset,
                            static_cast<std::size_t>(size)),
                0);
      bytes += size;
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(model.payload.size()), bytes);
}

TEST(Export, TellsTheHashesThatSha256sumTells) {
  const TemporaryFolder folder;
  const SmallState state = small_state(1000, 1);
  const auto exported = export_model(state.layout, state.bytes, gpt_job(), folder.path() / "final");
  ASSERT_TRUE(exported);
  EXPECT_EQ(exported->weights_sha256,
            sha256_of_file(folder.path() / "final" / "model.safetensors").value());
  EXPECT_EQ(exported->state_sha256, sha256(state.bytes));
  EXPECT_EQ(exported->folder, folder.path() / "final");
}

TEST(Export, GivesTheSameBytesForTheSameState) {
  const TemporaryFolder folder;
  const SmallState state = small_state(1000, 1);
  const auto first = export_model(state.layout, state.bytes, gpt_job(), folder.path() / "one");
  const auto second = export_model(state.layout, state.bytes, gpt_job(), folder.path() / "two");
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->weights_sha256, second->weights_sha256);
  EXPECT_EQ(read_file(folder.path() / "one" / "config.json").value(),
            read_file(folder.path() / "two" / "config.json").value());
  const SmallState other = small_state(1000, 2);
  EXPECT_NE(
      export_model(other.layout, other.bytes, gpt_job(), folder.path() / "three")->weights_sha256,
      first->weights_sha256);
}

TEST(Export, ReplacesAnEarlierExportAndLeavesNothingBehind) {
  const TemporaryFolder folder;
  const SmallState first = small_state(1000, 1);
  const SmallState second = small_state(1000, 2);
  ASSERT_TRUE(export_model(first.layout, first.bytes, gpt_job(), folder.path() / "final"));
  const auto exported =
      export_model(second.layout, second.bytes, gpt_job(), folder.path() / "final" / "");
  ASSERT_TRUE(exported);
  EXPECT_EQ(sha256_of_file(folder.path() / "final" / "model.safetensors").value(),
            exported->weights_sha256);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    left.push_back(entry.path().filename().string());
  EXPECT_EQ(left, std::vector<std::string>{"final"});
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder.path() / "final"))
    files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 2);
}

TEST(Export, NeverReplacesAFolderWithOtherFiles) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "models");
  std::ofstream(folder.path() / "models" / "thesis.tex") << "precious";
  const SmallState state = small_state(10, 1);
  const auto exported =
      export_model(state.layout, state.bytes, gpt_job(), folder.path() / "models");
  ASSERT_FALSE(exported);
  EXPECT_EQ(exported.error().code, Code::kInvalid);
  EXPECT_TRUE(fs::exists(folder.path() / "models" / "thesis.tex"));
}

TEST(Export, OfAStoredCheckpointIsTheSame) {
  const TemporaryFolder folder;
  const SmallState state = small_state(100'000, 1);
  const auto direct = export_model(state.layout, state.bytes, gpt_job(), folder.path() / "direct");
  MemoryStore store;
  CheckpointStore checkpoints(store, "0123456789abcdef");
  for (int part = 0; part < 2; ++part) {
    ASSERT_TRUE(
        checkpoints.store_part(identity_of(state, 10, 1), part, 2, state.bytes, state.digests, {}));
  }
  ASSERT_EQ(checkpoints.try_publish(Step{10}, Attempt{1}, 0, 2, std::nullopt, {}).outcome,
            PublishOutcome::kPublished);
  const auto manifest = checkpoints.read_manifest(Step{10}, {});
  ASSERT_TRUE(manifest);
  const auto stored =
      export_checkpoint(checkpoints, *manifest, gpt_job(), folder.path() / "a" / "stored", {});
  ASSERT_TRUE(stored) << stored.error().message;
  EXPECT_EQ(stored->weights_sha256, direct->weights_sha256);
  EXPECT_EQ(stored->state_sha256, direct->state_sha256);
  // A damaged one leaves the earlier export as it is.
  store.bytes(part_name(Step{10}, Attempt{1}, 1, 2)).back() ^= std::byte{1};
  const auto damaged =
      export_checkpoint(checkpoints, *manifest, gpt_job(), folder.path() / "a" / "stored", {});
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, Code::kCorrupt);
  EXPECT_EQ(sha256_of_file(folder.path() / "a" / "stored" / "model.safetensors").value(),
            direct->weights_sha256);
}

TEST(Export, ConfigOfAGptIsHuggingFaces) {
  const Json config = Json::parse(model_config(gpt_job().model()));
  EXPECT_EQ(config["model_type"], "gpt2");
  EXPECT_EQ(config["architectures"], Json::array({"GPT2LMHeadModel"}));
  EXPECT_EQ(config["n_positions"], 32);
  EXPECT_EQ(config["n_layer"], 2);
  EXPECT_EQ(config["n_head"], 4);
  EXPECT_EQ(config["n_embd"], 64);
  EXPECT_EQ(config["vocab_size"], 256);
  EXPECT_EQ(config["resid_pdrop"], 0.1);
  EXPECT_EQ(config["layer_norm_epsilon"], 1e-5);
  EXPECT_EQ(config["activation_function"], "gelu_new");
  EXPECT_EQ(config["tie_word_embeddings"], true);
}

TEST(Export, ConfigOfOtherModelsHasTheKeysOfTheirKind) {
  config::Model mlp;
  mlp.set_kind(config::Model::mlp);
  mlp.add_hidden(256);
  mlp.add_hidden(128);
  EXPECT_EQ(Json::parse(model_config(mlp)),
            Json::parse(R"({"kind":"mlp","dropout":0.0,"hidden":[256,128]})"));
  config::Model script;
  script.set_kind(config::Model::torchscript);
  script.set_path("/home/somebody/model.pt");
  EXPECT_EQ(
      Json::parse(model_config(script)),
      Json::parse(R"({"block_size":0,"kind":"torchscript","path":"model.pt","vocab_size":0})"));
}

}  // namespace
}  // namespace surefoot::testing
