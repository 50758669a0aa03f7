// A slow and obvious training loop beside the real one: one process, every micro-batch's vector
// kept, summed by recursion over the tree, one buffer, no arena. The real programs must end with
// the same bits; and each planted mistake must end with others, or the hash would prove nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "collectives/reducer.h"
#include "collectives/reference.h"
#include "common/digest.h"
#include "configs/job.h"
#include "tests/e2e/jobs.h"
#include "tests/e2e/sandbox.h"
#include "worker/data.h"
#include "worker/model.h"
#include "worker/numerics.h"
#include "worker/optimizer.h"
#include "worker/order.h"
#include "worker/schedule.h"

namespace surefoot::e2e {
namespace {

// What is planted. Each differs from the right thing in a single place of a single step.
struct Mistake {
  bool sample_doubled = false;
  bool seed_off = false;
  bool micro_batches_swapped = false;
  bool ring_order = false;    // left to right instead of the tree
  bool stale_moment = false;  // one moment of one element not updated
  bool step_skipped = false;
};
constexpr std::int64_t kMistakenStep = 7;

std::vector<float> sum_in_order(const std::vector<std::vector<float>>& vectors) {
  std::vector<float> sum = vectors[0];
  for (std::size_t m = 1; m < vectors.size(); ++m) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += vectors[m][i];
  }
  return sum;
}

class ReferenceTrainer {
 public:
  explicit ReferenceTrainer(const config::Job& job) : job_(job), train_(job.train()) {
    SUREFOOT_CHECK(set_up_numerics(job.resources().threads_per_worker()).has_value());
    dataset_ = std::move(open_dataset(job)).value();
    model_ = std::move(make_model(job, *dataset_)).value();
    micro_batches_ = train_.global_batch_size() / train_.micro_batch_size();
  }

  // The state after max_steps, as SHA-256.
  std::string train(const Mistake& mistake) {
    std::vector<std::byte> state(static_cast<std::size_t>(model_->layout().bytes));
    SUREFOOT_CHECK(model_->write_initial_state(state).has_value());
    const SampleOrder order(static_cast<std::uint64_t>(train_.seed()),
                            dataset_->size(Split::kTrain));
    for (std::int64_t k = 1; k <= train_.max_steps(); ++k) {
      const bool here = k == kMistakenStep;
      if (here && mistake.step_skipped) continue;
      state = step(Step{k}, order, state, here ? mistake : Mistake{});
    }
    return sha256(state);
  }

 private:
  std::vector<std::byte> step(Step k, const SampleOrder& order,
                              const std::vector<std::byte>& before, const Mistake& mistake) {
    model_->bind_state(before);
    const auto gradients = static_cast<std::size_t>(model_->gradient_elements());
    const auto buffers = static_cast<std::size_t>(model_->buffer_elements());
    std::vector<std::vector<float>> vectors;
    for (std::int64_t m = 0; m < micro_batches_; ++m) {
      std::vector<std::int64_t> indices(static_cast<std::size_t>(train_.micro_batch_size()));
      micro_batch_samples(order, k, micro_batches_, m, indices);
      if (mistake.sample_doubled && m == 1) indices[1] = indices[0];
      BatchBuffer batch(*dataset_, train_.micro_batch_size());
      SUREFOOT_CHECK(batch.fill(*dataset_, Split::kTrain, indices).has_value());
      std::vector<float> vector(gradients + buffers);
      model_->bind_gradients(std::span(vector).first(gradients));
      const bool off = mistake.seed_off && m == 1;
      const auto seed =
          generator_seed(static_cast<std::uint64_t>(train_.seed()), k, off ? m + 1 : m);
      SUREFOOT_CHECK(model_->micro_batch(batch, seed).has_value());
      if (buffers > 0)
        SUREFOOT_CHECK(
            model_->take_buffer_changes(std::span(vector).subspan(gradients)).has_value());
      vectors.push_back(vector);
    }
    if (mistake.micro_batches_swapped) std::swap(vectors[1], vectors[2]);
    const std::vector<float> sum =
        mistake.ring_order ? sum_in_order(vectors) : reference_sum(vectors);
    return updated(k, before, sum, mistake);
  }

  std::vector<std::byte> updated(Step k, const std::vector<std::byte>& before,
                                 const std::vector<float>& sum, const Mistake& mistake) {
    const StateLayout& layout = model_->layout();
    const std::int64_t gradients = model_->gradient_elements();
    const std::int64_t buffers = model_->buffer_elements();
    std::vector<std::byte> after(before.size());
    const auto at = [&](auto& state, std::string_view section) {
      return state.data() + layout.find(section)->offset;
    };
    const auto names = Optimizer::moment_names(train_.optimizer());
    OptimizerState from;
    MutableOptimizerState to;
    from.parameters = reinterpret_cast<const float*>(at(before, "parameters"));
    to.parameters = reinterpret_cast<float*>(at(after, "parameters"));
    for (std::size_t i = 0; i < names.size(); ++i) {
      from.moments[i] = reinterpret_cast<const float*>(at(before, names[i]));
      to.moments[i] = reinterpret_cast<float*>(at(after, names[i]));
    }
    StepScalars scalars;
    scalars.step = k;
    scalars.learning_rate = Schedule::of(train_).learning_rate(k);
    const double norm = gradient_norm(
        square_sum(std::span(sum).first(static_cast<std::size_t>(gradients))), micro_batches_);
    scalars.gradient_scale = gradient_scale(norm, train_.grad_clip(), micro_batches_);
    Optimizer(train_.optimizer(), model_->decayed())
        .update({0, gradients}, from, to, sum.data(), scalars);
    if (mistake.stale_moment) to.moments[0][5] = from.moments[0][5];
    model_->store_other_buffers(after);
    if (buffers > 0) {
      const auto count = static_cast<std::size_t>(buffers);
      apply_buffer_change({reinterpret_cast<const float*>(at(before, "buffers.F32")), count},
                          std::span(sum).subspan(static_cast<std::size_t>(gradients)),
                          micro_batches_,
                          {reinterpret_cast<float*>(at(after, "buffers.F32")), count});
    }
    return after;
  }

  const config::Job& job_;
  const config::Train& train_;
  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<Model> model_;
  std::int64_t micro_batches_ = 0;
};

config::Job loaded(const Sandbox& sandbox) {
  LoadOutcome outcome = load_job(sandbox.job_file(), {});
  SUREFOOT_CHECK(outcome.faults.empty());
  return outcome.job.job;
}

class TrainingReference : public testing::TestWithParam<const std::string*> {};

TEST_P(TrainingReference, EndsWithTheBitsOfTheRealPrograms) {
  Sandbox sandbox(*GetParam());
  const std::vector<std::string> few = {"--set", "train.max_steps=12", "--set",
                                        "resources.workers_per_node=3"};
  const RunResult real = sandbox.run(few);
  ASSERT_EQ(real.exit_code, 0) << real.output;
  LoadOutcome outcome = load_job(sandbox.job_file(), {.sets = {"train.max_steps=12"}});
  ASSERT_TRUE(outcome.faults.empty());
  EXPECT_EQ(ReferenceTrainer(outcome.job.job).train({}), real.text("state_sha256"));
}

INSTANTIATE_TEST_SUITE_P(Jobs, TrainingReference, testing::Values(&kQuick, &kFashionMnist),
                         [](const auto& info) {
                           return info.param == &kQuick ? "Quick" : "FashionMnist";
                         });

TEST(TrainingReference, EveryPlantedMistakeChangesTheHash) {
  Sandbox sandbox(kQuick);
  const config::Job job = loaded(sandbox);
  ReferenceTrainer trainer(job);
  const std::string right = trainer.train({});
  EXPECT_EQ(trainer.train({}), right);
  EXPECT_NE(trainer.train({.sample_doubled = true}), right);
  EXPECT_NE(trainer.train({.seed_off = true}), right);
  EXPECT_NE(trainer.train({.micro_batches_swapped = true}), right);
  EXPECT_NE(trainer.train({.ring_order = true}), right);
  EXPECT_NE(trainer.train({.stale_moment = true}), right);
  EXPECT_NE(trainer.train({.step_skipped = true}), right);
}

}  // namespace
}  // namespace surefoot::e2e
