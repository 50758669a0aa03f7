// The user's own modules: what is accepted and trained, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "common/test_paths.h"
#include "worker/model_test_util.h"
#include "worker/torch_compat.h"

namespace surefoot {
namespace {

using testing::HasSubstr;
using testing_util::Bench;
using testing_util::job_of;
using testing_util::Outcome;
using testing_util::State;

class TorchScript : public testing::Test {
 protected:
  TorchScript() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "surefoot-module-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    begin();
  }
  ~TorchScript() override { std::filesystem::remove_all(folder_); }

  // A module without forward.
  void begin() {
    module_ = torch::jit::Module("Module");
    at::manual_seed(3);
    module_.register_attribute("training", c10::BoolType::get(), true);
    add("weight", at::randn({4, 192}) * 0.1);
    add("bias", at::zeros({4}));
  }
  void add(const std::string& name, const at::Tensor& value, bool trained = true) {
    module_.register_parameter(name, value.clone().set_requires_grad(trained), false);
  }
  // Samples are [3, 8, 8] in four classes.
  config::Job job(const std::string& body) {
    const std::string path = (folder_ / "module.pt").string();
    module_.define("def forward(self, inputs, targets):\n" + body);
    module_.save(path);
    config::Job job = job_of(config::Model::torchscript);
    job.mutable_model()->set_path(path);
    return job;
  }
  std::string refusal(const std::string& body) { return Bench(job(body)).failure; }
  // What the first micro-batch fails with.
  std::string failure(const std::string& body) {
    Bench bench(job(body));
    EXPECT_EQ(bench.failure, "");
    std::vector<float> gradients(static_cast<std::size_t>(bench.model->gradient_elements()));
    bench.model->bind_gradients(gradients);
    const Result<double> loss = bench.micro_batch(1);
    if (loss) return "";
    EXPECT_EQ(loss.error().code, Code::kInvalid);
    return loss.error().message;
  }

  std::filesystem::path folder_;
  torch::jit::Module module_{"Module"};
};

constexpr char kLinear[] = R"(
    x = torch.linear(torch.flatten(inputs, 1), self.weight, self.bias)
    return torch.cross_entropy_loss(x, targets)
)";

std::vector<std::string> names(const Model& model, std::string_view section) {
  std::vector<std::string> all;
  if (const SectionSpec* found = model.layout().find(section)) {
    for (const TensorSpec& tensor : found->tensors) all.push_back(tensor.name);
  }
  return all;
}

TEST_F(TorchScript, ItsParametersAreTrainedFromTheValuesInTheFile) {
  Bench bench(job(kLinear));
  ASSERT_EQ(bench.failure, "");
  EXPECT_EQ(names(*bench.model, "parameters"), (std::vector<std::string>{"weight", "bias"}));
  const at::Tensor weight = module_.attr("weight").toTensor();
  EXPECT_EQ(std::memcmp(bench.state->bytes().data(), weight.data_ptr(), 4 * 192 * sizeof(float)),
            0);
  EXPECT_TRUE(bench.run(1) == bench.run(1));
  EXPECT_TRUE(check_repeatable(*bench.model, *bench.batch, nullptr, now()));
  EXPECT_LT(testing_util::train(bench, 100), 0.5);
  // The initial state can still be written when the module's own tensors point elsewhere.
  State again(bench.model->layout().bytes);
  ASSERT_TRUE(bench.model->write_initial_state(again.bytes()));
  EXPECT_TRUE(std::ranges::equal(again.bytes(), bench.state->bytes()));
}

TEST_F(TorchScript, BuffersMoveWhetherWrittenInPlaceOrReplaced) {
  module_.register_buffer("in_place", at::zeros({2}));
  module_.register_buffer("replaced", at::zeros({2}));
  module_.register_buffer("counter", at::zeros({}, at::kLong));
  Bench bench(job(std::string(R"(
    self.in_place.add_(torch.mean(inputs))
    self.replaced = self.replaced * 0.5 + torch.mean(inputs) + torch.sum(self.bias) + 1.0
    self.counter.add_(1)
)") + kLinear));
  ASSERT_EQ(bench.failure, "");
  EXPECT_EQ(names(*bench.model, "buffers.F32"), (std::vector<std::string>{"in_place", "replaced"}));
  EXPECT_EQ(names(*bench.model, "buffers.I64"), (std::vector<std::string>{"counter"}));
  const Outcome first = bench.run(1);
  EXPECT_NE(first.changes[0], 0.0f);
  EXPECT_EQ(first.changes[0], first.changes[1]);
  EXPECT_NE(first.changes[16], 0.0f);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(first == bench.run(1));
  const auto evaluated = bench.model->evaluate(*bench.batch);
  ASSERT_TRUE(evaluated);
  EXPECT_EQ(evaluated->answers, 0);
  EXPECT_TRUE(first == bench.run(1));
}

TEST_F(TorchScript, AFrozenParameterIsPartOfTheStateAndNeverMoves) {
  add("frozen", at::full({5}, 0.1f), false);
  Bench bench(job(std::string("\n    inputs = inputs * self.frozen[2]\n") + kLinear));
  ASSERT_EQ(bench.failure, "");
  EXPECT_EQ(names(*bench.model, "buffers.F32"), (std::vector<std::string>{"frozen"}));
  EXPECT_EQ(bench.state->floats(bench.model->layout(), "buffers.F32")[4], 0.1f);
  EXPECT_EQ(bench.run(1).changes, std::vector<float>(16));
}

TEST_F(TorchScript, ATiedWeightIsOneEntryWithTheSumOfItsGradients) {
  const at::Tensor tied = module_.attr("weight").toTensor();
  module_.register_parameter("again", tied, false);
  Bench bench(job(R"(
    x = torch.linear(torch.flatten(inputs, 1), self.weight, self.bias)
    y = torch.linear(torch.flatten(inputs, 1), self.again)
    return torch.cross_entropy_loss(x + y, targets)
)"));
  ASSERT_EQ(bench.failure, "");
  EXPECT_EQ(names(*bench.model, "parameters"), (std::vector<std::string>{"weight", "bias"}));
  int reported = 0;
  bench.model->on_gradient_ready([&](ElementRange) { ++reported; });
  const Outcome outcome = bench.run(1);
  EXPECT_EQ(reported, 2);
  EXPECT_NE(outcome.gradients[0], 0.0f);
  EXPECT_LT(testing_util::train(bench, 100), 0.5);
}

TEST_F(TorchScript, AParameterOutsideTheLossHasGradientZeroAndIsNotReported) {
  add("unused", at::ones({7}));
  Bench bench(job(kLinear));
  ASSERT_EQ(bench.failure, "");
  int reported = 0;
  bench.model->on_gradient_ready([&](ElementRange) { ++reported; });
  const Outcome outcome = bench.run(1);
  EXPECT_EQ(reported, 2);
  const std::int64_t at = bench.model->layout().find("parameters")->tensors[2].offset / 4;
  for (std::int64_t i = 0; i < 7; ++i)
    EXPECT_EQ(outcome.gradients[static_cast<std::size_t>(at + i)], 0.0f);
}

TEST_F(TorchScript, DropoutFollowsTheSeedAndIsOffInEvaluation) {
  Bench bench(
      job(std::string("\n    inputs = torch.dropout(inputs, 0.5, self.training)\n") + kLinear));
  ASSERT_EQ(bench.failure, "");
  EXPECT_TRUE(bench.run(1) == bench.run(1));
  EXPECT_NE(bench.run(1).loss, bench.run(2).loss);
  EXPECT_EQ(bench.model->evaluate(*bench.batch)->loss_sum,
            bench.model->evaluate(*bench.batch)->loss_sum);
}

TEST_F(TorchScript, ABufferOfAnotherTypeThatDependsOnTheDataIsRefusedByName) {
  module_.register_buffer("seen", at::zeros({}, at::kLong));
  Bench bench(job(std::string("\n    self.seen.add_(torch.sum(targets))\n") + kLinear));
  ASSERT_EQ(bench.failure, "");
  const auto sum_of_targets = [&] {
    std::vector<std::int64_t> targets(8);
    std::memcpy(targets.data(), bench.batch->targets().data(), 8 * sizeof(std::int64_t));
    return std::accumulate(targets.begin(), targets.end(), std::int64_t{0});
  };
  bench.run(1);
  const std::int64_t first = sum_of_targets();
  for (int i = 1; sum_of_targets() == first; ++i) bench.fill(i);
  std::vector<float> gradients(static_cast<std::size_t>(bench.model->gradient_elements()));
  std::vector<float> changes(static_cast<std::size_t>(bench.model->buffer_elements()));
  bench.model->bind_gradients(gradients);
  ASSERT_TRUE(bench.micro_batch(2));
  ASSERT_TRUE(bench.model->take_buffer_changes(changes));
  const auto digest = bench.model->other_buffers_digest();
  ASSERT_FALSE(digest);
  EXPECT_EQ(digest.error().code, Code::kInvalid);
  EXPECT_THAT(digest.error().message, HasSubstr("buffer seen"));
}

// On a device each of these waits for all that was enqueued.
TEST_F(TorchScript, NothingIsReadBackBetweenTheMicroBatchesOfAStep) {
  module_.register_buffer("count", at::zeros({}, at::kLong));
  module_.register_buffer("mean", at::zeros({4}));
  Bench bench(job(std::string("\n    self.count.add_(1)\n") + kLinear));
  ASSERT_EQ(bench.failure, "");
  static std::vector<std::string> called;
  std::vector<float> gradients(static_cast<std::size_t>(bench.model->gradient_elements()));
  std::vector<float> changes(static_cast<std::size_t>(bench.model->buffer_elements()));
  bench.model->bind_gradients(gradients);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(bench.micro_batch(1));
    const auto watch = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          called.emplace_back(function.name());
          return nullptr;
        }));
    const Status taken = bench.model->take_buffer_changes(changes);
    at::removeCallback(watch);
    ASSERT_TRUE(taken);
  }
  EXPECT_THAT(called, testing::Contains("aten::copy_")) << "it was looked at";
  for (const char* blocks : {"aten::to", "aten::_to_copy", "aten::item", "aten::nonzero"})
    EXPECT_THAT(called, testing::Not(testing::Contains(blocks)));
  EXPECT_TRUE(bench.model->other_buffers_digest());
}

// As libtorch's interpreter passes them on: as text, their types are lost.
TEST_F(TorchScript, FullMemoryOfAGpuAndOneThatFailsAreNoFaultsOfTheModule) {
  const auto code_of = [this](const std::string& message) {
    begin();
    Bench bench(job("\n    assert inputs.dim() == 0, \"" + message + "\"\n" + kLinear));
    EXPECT_EQ(bench.failure, "");
    std::vector<float> gradients(static_cast<std::size_t>(bench.model->gradient_elements()));
    bench.model->bind_gradients(gradients);
    const Result<double> loss = bench.micro_batch(1);
    EXPECT_FALSE(loss);
    return loss ? Code::kRetry : loss.error().code;
  };
  for (const char* full :
       {"CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"})
    EXPECT_EQ(code_of(full), Code::kNoSpace) << full;
  EXPECT_EQ(code_of("CUDA error: an illegal memory access was encountered"), Code::kRestart);
}

TEST_F(TorchScript, AModuleWithoutReproducibleGradientsIsFound) {
  module_.register_attribute("calls", c10::ListType::ofFloats(), c10::List<double>({1.0}));
  Bench bench(
      job(std::string(
              "\n    self.calls[0] = self.calls[0] + 1.0\n    inputs = inputs * self.calls[0]\n") +
          kLinear));
  ASSERT_EQ(bench.failure, "");
  const Status status = check_repeatable(*bench.model, *bench.batch, nullptr, now());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kInvalid);
  EXPECT_THAT(status.error().message, HasSubstr("weight"));
}

TEST_F(TorchScript, ANumberThatMovesIsRefusedByName) {
  module_.register_attribute("calls", c10::IntType::get(), 0);
  EXPECT_THAT(failure(std::string("\n    self.calls = self.calls + 1\n") + kLinear),
              HasSubstr("attribute calls"));
}

TEST_F(TorchScript, ABufferOfAnotherFloatTypeIsRefusedByName) {
  module_.register_buffer("wide", at::zeros({2}, at::kDouble));
  EXPECT_THAT(refusal(kLinear), HasSubstr("wide has type Double"));
}

TEST_F(TorchScript, WhatIsNoLossIsRefused) {
  EXPECT_THAT(failure("\n    return torch.flatten(inputs, 1)\n"),
              HasSubstr("must return the loss"));
}

TEST_F(TorchScript, ALossWithoutParametersIsRefused) {
  EXPECT_THAT(failure("\n    return torch.mean(inputs)\n"),
              HasSubstr("does not depend on any parameter"));
}

TEST_F(TorchScript, AnErrorInForwardIsTold) {
  EXPECT_THAT(failure("\n    return torch.mean(torch.linear(inputs, self.weight))\n"),
              HasSubstr("forward and backward: "));
}

TEST_F(TorchScript, AFileThatIsNoModuleIsRefusedByPath) {
  config::Job broken = job(kLinear);
  const std::string path = broken.model().path();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_THAT(Bench(broken).failure, HasSubstr(path));
  std::ofstream(path) << "garbage";
  EXPECT_THAT(Bench(broken).failure, HasSubstr(path));
  std::filesystem::remove(path);
  EXPECT_THAT(Bench(broken).failure, HasSubstr(path));
}

TEST_F(TorchScript, AModuleWithNothingToTrainIsRefused) {
  torch::jit::Module empty("Empty");
  empty.define("def forward(self, inputs, targets):\n    return torch.mean(inputs)\n");
  const std::string path = (folder_ / "empty.pt").string();
  empty.save(path);
  config::Job job = job_of(config::Model::torchscript);
  job.mutable_model()->set_path(path);
  EXPECT_THAT(Bench(job).failure, HasSubstr("nothing to train"));
}

TEST_F(TorchScript, TheModuleOfTheExampleTrains) {
  const std::string path = (folder_ / "example.pt").string();
  const std::string program = (programs_folder() / "surefoot-make-module").string();
  ASSERT_EQ(std::system((program + " " + path).c_str()), 0);
  config::Job job = job_of(config::Model::torchscript);
  job.mutable_model()->set_path(path);
  job.mutable_data()->set_classes(10);
  job.mutable_data()->clear_shape();
  for (const int extent : {1, 28, 28}) job.mutable_data()->add_shape(extent);
  Bench bench(job);
  ASSERT_EQ(bench.failure, "");
  EXPECT_EQ(names(*bench.model, "buffers.F32"),
            (std::vector<std::string>{"norm_mean", "norm_var"}));
  EXPECT_TRUE(check_repeatable(*bench.model, *bench.batch, nullptr, now()));
  const double first = bench.run(0).loss;
  EXPECT_LT(testing_util::train(bench, 60), 0.5 * first);
}

}  // namespace
}  // namespace surefoot

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const surefoot::Status status = surefoot::set_up_numerics(1);
  if (!status) {
    std::fprintf(stderr, "%s\n", status.error().message.c_str());
    return 1;
  }
  return RUN_ALL_TESTS();
}
