// How fast models and the update are on this machine, on one thread: model_bench. For the README's
// figures, never a test.
#include <benchmark/benchmark.h>

#include "worker/model_test_util.h"
#include "worker/optimizer.h"

namespace surefoot {
namespace {

using testing_util::Bench;
using testing_util::job_of;

void micro_batches(benchmark::State& state, const config::Job& job, std::int64_t samples,
                   std::int64_t units_a_sample) {
  Bench bench(job, samples);
  std::vector<float> gradients(static_cast<std::size_t>(bench.model->gradient_elements()));
  bench.model->bind_gradients(gradients);
  std::uint64_t seed = 0;
  for (auto _ : state) {
    const auto loss = bench.micro_batch(++seed);
    if (!loss) state.SkipWithError(loss.error().message.c_str());
  }
  const double count = static_cast<double>(state.iterations() * samples);
  state.counters["units/s"] =
      benchmark::Counter(count * static_cast<double>(units_a_sample), benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(count * bench.model->flops_per_sample() * 1e-9,
                                                 benchmark::Counter::kIsRate);
}

// The model of examples/dictionary-gpt; units are tokens.
void gpt(benchmark::State& state) {
  config::Job job = job_of(config::Model::gpt);
  job.mutable_model()->set_n_layer(4);
  job.mutable_model()->set_n_head(4);
  job.mutable_model()->set_n_embd(128);
  job.mutable_model()->set_block_size(128);
  job.mutable_model()->set_dropout(static_cast<double>(state.range(0)) / 100);
  micro_batches(state, job, 4, 128);
}
BENCHMARK(gpt)->Arg(0)->Arg(10)->ArgName("dropout_percent")->Unit(benchmark::kMillisecond);

// The model of examples/fashion-mnist; units are pictures.
void resnet(benchmark::State& state) {
  config::Job job = job_of(config::Model::resnet);
  job.mutable_model()->set_width(16);
  job.mutable_data()->set_classes(10);
  job.mutable_data()->clear_shape();
  for (const int extent : {1, 28, 28}) job.mutable_data()->add_shape(extent);
  micro_batches(state, job, 16, 1);
}
BENCHMARK(resnet)->Unit(benchmark::kMillisecond);

void update(benchmark::State& state, const config::Optimizer& options, std::int64_t arrays) {
  constexpr std::int64_t kCount = 8 << 20;
  std::vector<std::vector<float>> memory(7, std::vector<float>(kCount, 0.5f));
  const Optimizer optimizer(options, {{0, kCount}});
  for (auto _ : state) {
    optimizer.update({0, kCount}, {memory[0].data(), {memory[1].data(), memory[2].data()}},
                     {memory[3].data(), {memory[4].data(), memory[5].data()}}, memory[6].data(),
                     {Step{9}, 1e-3, 0.1});
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kCount * arrays *
                          static_cast<std::int64_t>(sizeof(float)));
}
void adamw(benchmark::State& state) {
  update(state, job_of(config::Model::mlp).train().optimizer(), 7);
}
BENCHMARK(adamw)->Unit(benchmark::kMillisecond);
void sgd(benchmark::State& state) {
  config::Optimizer options;
  options.set_kind(config::Optimizer::sgd);
  options.set_momentum(0.9);
  update(state, options, 5);
}
BENCHMARK(sgd)->Unit(benchmark::kMillisecond);
void memcpy_of_the_same_size(benchmark::State& state) {
  const std::vector<float> from(8 << 20, 1.0f);
  std::vector<float> to(8 << 20);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 2 *
                          static_cast<std::int64_t>(from.size() * sizeof(float)));
}
BENCHMARK(memcpy_of_the_same_size)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace surefoot

int main(int argc, char** argv) {
  const surefoot::Status status = surefoot::set_up_numerics(1);
  if (!status) return std::fprintf(stderr, "%s\n", status.error().message.c_str()), 1;
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
