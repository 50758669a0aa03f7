// Shared by the tests of models: jobs, and a state in memory that nobody may write.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "worker/data.h"
#include "worker/model.h"
#include "worker/numerics.h"

namespace surefoot::testing_util {

inline config::Job job_of(config::Model::Kind kind) {
  config::Job job;
  config::Model& model = *job.mutable_model();
  model.set_kind(kind);
  model.set_dropout(0.1);
  model.set_n_layer(2);
  model.set_n_head(2);
  model.set_n_embd(32);
  model.set_block_size(16);
  model.set_vocab_size(256);
  model.add_hidden(24);
  model.set_width(4);
  model.set_blocks(1);
  config::Data& data = *job.mutable_data();
  data.set_kind(config::Data::synthetic);
  data.set_samples(64);
  data.set_classes(4);
  for (const int extent : {3, 8, 8}) data.add_shape(extent);
  config::Train& train = *job.mutable_train();
  train.set_seed(1);
  train.mutable_optimizer()->set_kind(config::Optimizer::adamw);
  train.mutable_optimizer()->set_lr(1e-2);
  train.mutable_optimizer()->add_betas(0.9);
  train.mutable_optimizer()->add_betas(0.99);
  train.mutable_optimizer()->set_eps(1e-8);
  return job;
}

// A whole state on pages of its own. After seal() a write to it ends the process.
class State {
 public:
  explicit State(std::int64_t bytes) : size_(static_cast<std::size_t>(bytes)) {
    void* base = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SUREFOOT_CHECK(base != MAP_FAILED);
    base_ = static_cast<std::byte*>(base);
  }
  ~State() { ::munmap(base_, size_); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  void seal() { SUREFOOT_CHECK(::mprotect(base_, size_, PROT_READ) == 0); }
  [[nodiscard]] std::span<std::byte> bytes() { return {base_, size_}; }
  [[nodiscard]] float* floats(const StateLayout& layout, std::string_view section) {
    return reinterpret_cast<float*>(base_ + layout.find(section)->offset);
  }

 private:
  std::byte* base_;
  std::size_t size_;
};

struct Outcome {
  double loss = 0;
  std::vector<float> gradients;
  std::vector<float> changes;
  bool operator==(const Outcome& other) const {
    return loss == other.loss && same(gradients, other.gradients) && same(changes, other.changes);
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
};

// A model with its data, a sealed state of step 0, and one batch.
struct Bench {
  explicit Bench(const config::Job& of, std::int64_t samples = 8) : job(of) {
    auto opened = open_dataset(job);
    SUREFOOT_CHECK(opened.has_value());
    dataset = std::move(opened).value();
    auto made = make_model(job, *dataset);
    if (!made) {
      failure = made.error().message;
      return;
    }
    model = std::move(made).value();
    state = std::make_unique<State>(model->layout().bytes);
    const Status written = model->write_initial_state(state->bytes());
    SUREFOOT_CHECK(written.has_value());
    state->seal();
    model->bind_state(state->bytes());
    batch = std::make_unique<BatchBuffer>(*dataset, samples);
    fill(0);
  }
  void fill(std::int64_t first) {
    std::vector<std::int64_t> indices;
    const auto capacity =
        static_cast<std::int64_t>(batch->inputs().size()) / dataset->input().bytes();
    for (std::int64_t i = 0; i < capacity; ++i)
      indices.push_back((first + i) % dataset->size(Split::kTrain));
    const Status filled = batch->fill(*dataset, Split::kTrain, indices);
    SUREFOOT_CHECK(filled.has_value());
  }
  Result<double> micro_batch(std::uint64_t seed) {
    SUREFOOT_TRY(model->micro_batch(*batch, seed));
    SUREFOOT_ASSIGN(const auto losses, model->take_losses());
    return losses.at(0);
  }
  Outcome run(std::uint64_t seed) {
    Outcome outcome;
    outcome.gradients.resize(static_cast<std::size_t>(model->gradient_elements()));
    outcome.changes.resize(static_cast<std::size_t>(model->buffer_elements()));
    model->bind_gradients(outcome.gradients);
    const Result<double> loss = micro_batch(seed);
    EXPECT_TRUE(loss) << (loss ? "" : loss.error().message);
    if (loss) outcome.loss = *loss;
    const Status taken = model->take_buffer_changes(outcome.changes);
    EXPECT_TRUE(taken) << (taken ? "" : taken.error().message);
    return outcome;
  }

  config::Job job;
  std::unique_ptr<Dataset> dataset;
  std::unique_ptr<Model> model;
  std::unique_ptr<State> state;
  std::unique_ptr<BatchBuffer> batch;
  std::string failure;
};

// Trains on single micro-batches, in two states in turn as the arena's slots are used. The mean
// loss of the last ten steps.
double train(Bench& bench, int steps);

}  // namespace surefoot::testing_util
