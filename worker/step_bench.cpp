// What keeping every step costs: whole steps of a GPT of 10.9 million parameters (125 MiB of state)
// on one thread, alternately with a snapshot (update into the next slot of an arena, digest, READY)
// and without (update in place, in ordinary memory). Their order changes from pair to pair, so a
// machine that grows slower favours neither. For the README's figures, never a test.
//
//   step_bench [PAIRS] [MICRO_BATCHES]     default 10 pairs of steps of 4 micro-batches of 4 x 128
//   tokens
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/snapshot.h"
#include "worker/model_test_util.h"
#include "worker/optimizer.h"

namespace surefoot {
namespace {

using testing_util::Bench;
using testing_util::State;

constexpr std::int64_t kSamples = 4;

config::Job gpt_job() {
  config::Job job = testing_util::job_of(config::Model::gpt);
  job.mutable_model()->set_n_layer(6);
  job.mutable_model()->set_n_head(6);
  job.mutable_model()->set_n_embd(384);
  job.mutable_model()->set_block_size(128);
  return job;
}

OptimizerState reading(const StateLayout& layout, std::span<const std::byte> state) {
  const auto at = [&](std::string_view section) {
    return reinterpret_cast<const float*>(state.data() + layout.find(section)->offset);
  };
  return {at("parameters"), {at("exp_avg"), at("exp_avg_sq")}};
}
MutableOptimizerState writing(const StateLayout& layout, std::span<std::byte> state) {
  const auto at = [&](std::string_view section) {
    return reinterpret_cast<float*>(state.data() + layout.find(section)->offset);
  };
  return {at("parameters"), {at("exp_avg"), at("exp_avg_sq")}};
}

struct Times {
  std::vector<double> step;
  std::vector<double> after_gradient;  // update and, where there is one, snapshot
  static double median(std::vector<double> of) {
    std::nth_element(of.begin(), of.begin() + of.size() / 2, of.end());
    return of[of.size() / 2];
  }
  static double best(const std::vector<double>& of) { return *std::ranges::min_element(of); }
};

class Steps {
 public:
  Steps(Arena& arena, Bench& bench, int micro_batches)
      : bench_(bench),
        micro_batches_(micro_batches),
        optimizer_(bench.job.train().optimizer(), bench.model->decayed()),
        snapshotter_(arena, Attempt{1}, 0, 1),
        plain_(bench.model->layout().bytes),
        gradients_(static_cast<std::size_t>(bench.model->gradient_elements())) {
    SUREFOOT_CHECK(bench.model->write_initial_state(plain_.bytes()).has_value());
    SUREFOOT_CHECK(snapshotter_.begin(Step{0}, deadline()).has_value());
    std::ranges::copy(plain_.bytes(), snapshotter_.write_bytes().begin());
    SUREFOOT_CHECK(snapshotter_.commit(0, false, {}, deadline()).has_value());
  }

  void run(Step step, bool snapshot, Times& times) {
    Model& model = *bench_.model;
    model.bind_state(snapshot ? snapshotter_.read_bytes() : plain_.bytes());
    const Time start = now();
    if (snapshot) SUREFOOT_CHECK(snapshotter_.begin(step, deadline()).has_value());
    std::ranges::fill(gradients_, 0.0f);
    model.bind_gradients(gradients_);
    for (int m = 0; m < micro_batches_; ++m)
      SUREFOOT_CHECK(bench_.micro_batch(static_cast<std::uint64_t>(m)).has_value());
    const Time computed = now();
    StepScalars scalars{step, 1e-3, 1.0 / micro_batches_};
    const ElementRange all{0, model.gradient_elements()};
    const StateLayout& layout = model.layout();
    if (snapshot) {
      optimizer_.update(all, reading(layout, snapshotter_.read_bytes()),
                        writing(layout, snapshotter_.write_bytes()), gradients_.data(), scalars);
      SUREFOOT_CHECK(snapshotter_.commit(step.value, false, {}, deadline()).has_value());
    } else {
      optimizer_.update(all, reading(layout, plain_.bytes()), writing(layout, plain_.bytes()),
                        gradients_.data(), scalars);
    }
    times.step.push_back(seconds(now() - start));
    times.after_gradient.push_back(seconds(now() - computed));
  }

 private:
  static Time deadline() { return now() + std::chrono::minutes(1); }

  Bench& bench_;
  int micro_batches_;
  Optimizer optimizer_;
  Snapshotter snapshotter_;
  State plain_;
  std::vector<float> gradients_;
};

int run(int pairs, int micro_batches) {
  SUREFOOT_CHECK(set_up_numerics(1).has_value());
  Bench bench(gpt_job(), kSamples);
  SUREFOOT_CHECK(bench.failure.empty());
  std::string folder = "/dev/shm/surefoot-bench-XXXXXX";
  SUREFOOT_CHECK(::mkdtemp(folder.data()) != nullptr);
  const std::filesystem::path path = folder + "/surefoot-bench";
  std::filesystem::create_directory(path);
  ArenaSpec spec;
  spec.job_id = "bench";
  spec.state_bytes = bench.model->layout().bytes;
  auto arena = Arena::create(path, spec);
  std::filesystem::remove_all(folder);  // the mapping stays
  if (!arena) {
    fmt::print(stderr, "{}\n", arena.error().message);
    return 1;
  }
  (*arena)->set_gang({1, 1, 0, 1});
  Steps steps(**arena, bench, micro_batches);
  Times unused;
  Times with;
  Times without;
  Step step{0};
  for (int pair = 0; pair < pairs + 1; ++pair) {
    step = step.next();
    for (const bool snapshot : {pair % 2 == 0, pair % 2 != 0})
      steps.run(step, snapshot, pair == 0 ? unused : snapshot ? with : without);
  }
  fmt::print("{:.1f} MiB of state, {} pairs of steps of {} tokens\n",
             static_cast<double>(spec.state_bytes) / (1 << 20), pairs,
             kSamples * 128 * micro_batches);
  fmt::print("                 median ms   best ms   of it update and snapshot, median ms\n");
  const auto line = [](const char* name, const Times& times) {
    fmt::print("{:<17}{:9.1f} {:9.1f} {:9.1f}\n", name, 1e3 * Times::median(times.step),
               1e3 * Times::best(times.step), 1e3 * Times::median(times.after_gradient));
  };
  line("with snapshots", with);
  line("without", without);
  const double added = Times::median(with.after_gradient) - Times::median(without.after_gradient);
  fmt::print(
      "ratio {:.4f} of medians, {:.4f} of best; exposed by a snapshot {:.1f} ms, {:.2f} % of a "
      "step\n",
      Times::median(with.step) / Times::median(without.step),
      Times::best(with.step) / Times::best(without.step), 1e3 * added,
      100 * added / Times::median(without.step));
  return 0;
}

}  // namespace
}  // namespace surefoot

int main(int argc, char** argv) {
  return surefoot::run(argc > 1 ? std::atoi(argv[1]) : 10, argc > 2 ? std::atoi(argv[2]) : 8);
}
