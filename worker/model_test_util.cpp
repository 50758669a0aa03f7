#include "worker/model_test_util.h"

#include "worker/optimizer.h"

namespace surefoot::testing_util {
namespace {

OptimizerState read(State& state, const StateLayout& layout) {
  return {state.floats(layout, "parameters"),
          {state.floats(layout, "exp_avg"), state.floats(layout, "exp_avg_sq")}};
}
MutableOptimizerState write(State& state, const StateLayout& layout) {
  return {state.floats(layout, "parameters"),
          {state.floats(layout, "exp_avg"), state.floats(layout, "exp_avg_sq")}};
}

}  // namespace

double train(Bench& bench, int steps) {
  Model& model = *bench.model;
  const StateLayout& layout = model.layout();
  State slots[2] = {State(layout.bytes), State(layout.bytes)};
  const auto initial = bench.state->bytes();
  std::copy(initial.begin(), initial.end(), slots[0].bytes().begin());
  const Optimizer optimizer(bench.job.train().optimizer(), model.decayed());
  double last = 0;
  for (int k = 1; k <= steps; ++k) {
    State& from = slots[(k + 1) % 2];
    State& to = slots[k % 2];
    model.bind_state(from.bytes());
    bench.fill(k * 8);
    const Outcome outcome = bench.run(static_cast<std::uint64_t>(k));
    optimizer.update({0, model.gradient_elements()}, read(from, layout), write(to, layout),
                     outcome.gradients.data(), {Step{k}, bench.job.train().optimizer().lr(), 1.0});
    if (const SectionSpec* floats = layout.find("buffers.F32")) {
      const auto count = static_cast<std::size_t>(model.buffer_elements());
      apply_buffer_change({from.floats(layout, floats->name), count}, outcome.changes, 1,
                          {to.floats(layout, floats->name), count});
    }
    model.store_other_buffers(to.bytes());
    if (k > steps - 10) last += outcome.loss / 10;
  }
  model.bind_state(bench.state->bytes());
  return last;
}

}  // namespace surefoot::testing_util
