#include "worker/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "worker/float_mode.h"
#include "worker/model_test_util.h"

namespace surefoot {
namespace {

using testing::HasSubstr;
using testing_util::Bench;
using testing_util::job_of;
using testing_util::Outcome;
using testing_util::State;

class BuiltIn : public testing::TestWithParam<config::Model::Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, BuiltIn,
                         testing::Values(config::Model::mlp, config::Model::gpt,
                                         config::Model::resnet),
                         [](const auto& info) { return config::Model::Kind_Name(info.param); });

TEST_P(BuiltIn, EveryParameterGetsAGradientAndTheGapsStayZero) {
  Bench bench(job_of(GetParam()));
  const Outcome outcome = bench.run(1);
  std::vector<bool> in_tensor(outcome.gradients.size());
  for (const TensorSpec& tensor : bench.model->layout().find("parameters")->tensors) {
    const auto at = static_cast<std::size_t>(tensor.offset) / sizeof(float);
    double sum = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.elements()); ++i) {
      sum += std::abs(outcome.gradients[at + i]);
      in_tensor[at + i] = true;
    }
    EXPECT_GT(sum, 0) << tensor.name;
    EXPECT_TRUE(std::isfinite(sum)) << tensor.name;
  }
  for (std::size_t i = 0; i < in_tensor.size(); ++i) {
    if (!in_tensor[i]) {
      ASSERT_EQ(outcome.gradients[i], 0.0f) << i;
    }
  }
}

TEST_P(BuiltIn, GradientsAreThoseOfFiniteDifferencesWithDropoutToo) {
  config::Job job = job_of(GetParam());
  job.mutable_model()->set_dropout(0.3);
  Bench bench(job);
  const Outcome outcome = bench.run(1);
  State moved(bench.model->layout().bytes);
  // Along the gradient's sign the loss changes by step * sum |g|, to first order.
  double expected = 0;
  constexpr float kStep = 1e-4f;
  double losses[2];
  for (const int side : {0, 1}) {
    std::copy(bench.state->bytes().begin(), bench.state->bytes().end(), moved.bytes().begin());
    float* parameters = moved.floats(bench.model->layout(), "parameters");
    for (std::size_t i = 0; i < outcome.gradients.size(); ++i) {
      const float g = outcome.gradients[i];
      const float direction = g > 0 ? 1.0f : g < 0 ? -1.0f : 0.0f;
      parameters[i] += (side == 0 ? kStep : -kStep) * direction;
    }
    bench.model->bind_state(moved.bytes());
    losses[side] = bench.run(1).loss;
  }
  for (const float g : outcome.gradients) expected += 2.0 * kStep * std::abs(g);
  EXPECT_NEAR((losses[0] - losses[1]) / expected, 1.0, 0.03);
}

TEST_P(BuiltIn, BitsAreTheSameForAnyStateAndGradientMemory) {
  Bench bench(job_of(GetParam()));
  const Outcome first = bench.run(7);
  State copy(bench.model->layout().bytes);
  std::copy(bench.state->bytes().begin(), bench.state->bytes().end(), copy.bytes().begin());
  copy.seal();
  for (int round = 0; round < 3; ++round) {
    bench.model->bind_state(round % 2 == 0 ? copy.bytes() : bench.state->bytes());
    EXPECT_TRUE(first == bench.run(7)) << round;
  }
  Bench other(job_of(GetParam()));
  EXPECT_TRUE(first == other.run(7));
  EXPECT_TRUE(check_repeatable(*bench.model, *bench.batch, nullptr, now()));
}

TEST_P(BuiltIn, GradientsAreAddedToWhatIsThere) {
  Bench bench(job_of(GetParam()));
  const Outcome once = bench.run(3);
  std::vector<float> twice(once.gradients.size());
  bench.model->bind_gradients(twice);
  ASSERT_TRUE(bench.micro_batch(3));
  ASSERT_TRUE(bench.micro_batch(3));
  for (std::size_t i = 0; i < twice.size(); ++i) ASSERT_EQ(twice[i], 2 * once.gradients[i]);
}

TEST_P(BuiltIn, DropoutFollowsTheSeedOnly) {
  Bench bench(job_of(GetParam()));
  EXPECT_TRUE(bench.run(1) == bench.run(1));
  EXPECT_NE(bench.run(1).loss, bench.run(2).loss);
  config::Job job = job_of(GetParam());
  job.mutable_model()->set_dropout(0);
  Bench without(job);
  EXPECT_EQ(without.run(1).loss, without.run(2).loss);
}

TEST_P(BuiltIn, EachGradientIsReportedReadyOnceAndIsFinalThen) {
  Bench bench(job_of(GetParam()));
  std::vector<float> gradients(static_cast<std::size_t>(bench.model->gradient_elements()));
  std::vector<std::pair<ElementRange, std::vector<float>>> reported;
  bench.model->on_gradient_ready([&](ElementRange r) {
    reported.push_back({r, {gradients.begin() + r.begin, gradients.begin() + r.end}});
  });
  bench.model->bind_gradients(gradients);
  ASSERT_TRUE(bench.micro_batch(1));
  std::set<std::int64_t> begins;
  for (const auto& [range, values] : reported) {
    EXPECT_TRUE(begins.insert(range.begin).second);
    EXPECT_TRUE(
        Outcome::same(values, {gradients.begin() + range.begin, gradients.begin() + range.end}));
  }
  EXPECT_EQ(begins.size(), bench.model->layout().find("parameters")->tensors.size());
  std::int64_t covered = 0;
  for (const auto& entry : reported) covered += entry.first.end - entry.first.begin;
  EXPECT_EQ(covered, bench.model->gradient_elements());
  // Backward runs from the end of the network to its start.
  EXPECT_GT(reported.front().first.begin, reported.back().first.begin);
}

TEST_P(BuiltIn, EvaluationIsRepeatableAndLeavesTrainingAlone) {
  Bench bench(job_of(GetParam()));
  const Outcome before = bench.run(5);
  const Result<EvaluationSums> first = bench.model->evaluate(*bench.batch);
  const Result<EvaluationSums> second = bench.model->evaluate(*bench.batch);
  ASSERT_TRUE(first);
  ASSERT_TRUE(second);
  EXPECT_EQ(first->loss_sum, second->loss_sum);
  EXPECT_EQ(first->samples, 8);
  EXPECT_EQ(first->answers, 8 * bench.dataset->target().elements());
  EXPECT_LE(first->right, first->answers);
  EXPECT_TRUE(before == bench.run(5));
}

TEST_P(BuiltIn, InitialStateIsAFunctionOfTheSeed) {
  Bench a(job_of(GetParam()));
  Bench b(job_of(GetParam()));
  config::Job job = job_of(GetParam());
  job.mutable_train()->set_seed(2);
  Bench c(job);
  const auto same = [](Bench& x, Bench& y) {
    return std::ranges::equal(x.state->bytes(), y.state->bytes());
  };
  EXPECT_TRUE(same(a, b));
  EXPECT_FALSE(same(a, c));
  // Also after the model has been in use.
  State again(a.model->layout().bytes);
  ASSERT_TRUE(a.model->write_initial_state(again.bytes()));
  EXPECT_TRUE(std::ranges::equal(again.bytes(), b.state->bytes()));
}

TEST_P(BuiltIn, Learns) {
  Bench bench(job_of(GetParam()));
  const double first = bench.run(0).loss;
  EXPECT_LT(testing_util::train(bench, 150), 0.5 * first);
}

TEST_P(BuiltIn, TellsItsSize) {
  Bench bench(job_of(GetParam()));
  std::int64_t count = 0;
  std::int64_t decayed = 0;
  for (const TensorSpec& tensor : bench.model->layout().find("parameters")->tensors) {
    count += tensor.elements();
    if (tensor.shape.size() >= 2) decayed += tensor.elements();
  }
  EXPECT_EQ(bench.model->parameter_count(), count);
  std::int64_t in_ranges = 0;
  for (const ElementRange& range : bench.model->decayed()) in_ranges += range.end - range.begin;
  EXPECT_EQ(in_ranges, decayed);
  EXPECT_GT(bench.model->flops_per_sample(), 6.0 * 1000);
}

TEST(Gpt, HasHuggingFacesNamesAndShapesAndOneEntryForTheTiedWeight) {
  Bench bench(job_of(config::Model::gpt));
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const TensorSpec& tensor : bench.model->layout().find("parameters")->tensors)
    shapes[tensor.name] = tensor.shape;
  EXPECT_EQ(shapes.size(), 2u + 2u * 12u + 2u);
  EXPECT_EQ(shapes["transformer.wte.weight"], (std::vector<std::int64_t>{256, 32}));
  EXPECT_EQ(shapes["transformer.wpe.weight"], (std::vector<std::int64_t>{16, 32}));
  EXPECT_EQ(shapes["transformer.h.1.attn.c_attn.weight"], (std::vector<std::int64_t>{32, 96}));
  EXPECT_EQ(shapes["transformer.h.0.attn.c_proj.bias"], (std::vector<std::int64_t>{32}));
  EXPECT_EQ(shapes["transformer.h.0.mlp.c_fc.weight"], (std::vector<std::int64_t>{32, 128}));
  EXPECT_EQ(shapes["transformer.h.0.mlp.c_proj.weight"], (std::vector<std::int64_t>{128, 32}));
  EXPECT_EQ(shapes["transformer.h.0.ln_2.weight"], (std::vector<std::int64_t>{32}));
  EXPECT_EQ(shapes["transformer.ln_f.bias"], (std::vector<std::int64_t>{32}));
}

TEST(Gpt, KnowsNothingAtTheStart) {
  Bench bench(job_of(config::Model::gpt));
  EXPECT_NEAR(bench.run(1).loss, std::log(256.0), 0.1);
}

TEST(Gpt, NoTokenSeesThoseAfterIt) {
  config::Job job = job_of(config::Model::gpt);
  job.mutable_model()->set_dropout(0);
  // A row of wpe gets its gradient from the losses at its own place and later. With the last inputs
  // changed, the loss of a batch changes...
  Bench bench(job, 1);
  const auto loss_of = [&](const std::vector<std::int64_t>& inputs,
                           const std::vector<std::int64_t>& targets) {
    std::memcpy(const_cast<std::byte*>(bench.batch->inputs().data()), inputs.data(),
                inputs.size() * 8);
    std::memcpy(const_cast<std::byte*>(bench.batch->targets().data()), targets.data(),
                targets.size() * 8);
    return bench.run(1).loss;
  };
  // ... but only by what is predicted from the last place on: with -100 (ignored) as targets there,
  // it must not.
  std::vector<std::int64_t> inputs(16, 65);
  std::vector<std::int64_t> targets(16, 66);
  const double whole = loss_of(inputs, targets);
  std::vector<std::int64_t> changed = inputs;
  changed[15] = 200;
  EXPECT_NE(loss_of(changed, targets), whole);
  targets[15] = -100;
  EXPECT_EQ(loss_of(changed, targets), loss_of(inputs, targets));
  changed[3] = 200;
  EXPECT_NE(loss_of(changed, targets), loss_of(inputs, targets));
}

TEST(ResNet, EveryMicroBatchStartsFromTheBuffersOfTheStepsStart) {
  Bench bench(job_of(config::Model::resnet));
  const Outcome first = bench.run(1);
  bench.fill(20);
  const Outcome between = bench.run(2);
  bench.fill(0);
  EXPECT_TRUE(first == bench.run(1));
  EXPECT_FALSE(first == between);
  const SectionSpec* floats = bench.model->layout().find("buffers.F32");
  ASSERT_NE(floats, nullptr);
  EXPECT_EQ(floats->tensors.front().name, "bn1.running_mean");
  // running_mean starts at 0 and moves by a tenth of the batch's mean.
  double moved = 0;
  for (const float change : first.changes) moved += std::abs(change);
  EXPECT_GT(moved, 0);
}

TEST(ResNet, CountsBatchesOnceAStep) {
  Bench bench(job_of(config::Model::resnet));
  bench.run(1);
  const auto first = bench.model->other_buffers_digest();
  bench.run(2);
  const auto second = bench.model->other_buffers_digest();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*second, *first);
  State next(bench.model->layout().bytes);
  bench.model->store_other_buffers(next.bytes());
  const SectionSpec* counters = bench.model->layout().find("buffers.I64");
  ASSERT_NE(counters, nullptr);
  for (const TensorSpec& tensor : counters->tensors) {
    std::int64_t count = 0;
    std::memcpy(&count, next.bytes().data() + counters->offset + tensor.offset, sizeof count);
    EXPECT_EQ(count, 1) << tensor.name;
  }
  EXPECT_THAT(bench.model->other_buffers().front(), HasSubstr("bn1.num_batches_tracked="));
}

TEST(Models, AreRefusedForDataTheyCannotUse) {
  config::Job words = job_of(config::Model::gpt);
  auto tokens = open_dataset(words);
  config::Job pictures = job_of(config::Model::mlp);
  auto values = open_dataset(pictures);
  ASSERT_TRUE(tokens && values);
  for (const auto& [job, dataset] :
       {std::pair(pictures, tokens->get()), std::pair(words, values->get()),
        std::pair(job_of(config::Model::resnet), tokens->get())}) {
    const auto model = make_model(job, *dataset);
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().code, Code::kInvalid);
    EXPECT_THAT(model.error().message, HasSubstr("needs data of kind"));
  }
  words.mutable_model()->set_n_head(3);
  EXPECT_THAT(make_model(words, **tokens).error().message,
              HasSubstr("it must divide model.n_embd 32"));
}

TEST(Numerics, AreSetAndNamed) {
  EXPECT_TRUE(check_float_mode());
  const std::string id = numerics_id();
  for (const char* part : {"surefoot ", "libtorch ", "threads 1"}) EXPECT_THAT(id, HasSubstr(part));
  EXPECT_EQ(id, numerics_id());
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
