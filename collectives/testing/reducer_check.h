// Drives a reducer through whole steps with made-up gradients and compares with the slow reference,
// bit by bit. For tests.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "collectives/local/local_communicator.h"
#include "collectives/reducer.h"
#include "collectives/reduction_tree.h"
#include "collectives/testing/device_access.h"
#include "collectives/testing/places.h"

namespace surefoot::testing {

struct StepNumbers {
  std::int64_t gradient_elements = 0;
  std::int64_t buffer_elements = 0;
  int micro_batches = 1;
  std::uint64_t seed = 1;
  bool special_values = false;  // infinities, NaN, denormals, zeros of both signs among them
  NumberFormat communicate_in = NumberFormat::kFp32;
};

// What all ranks put in, and what must come out. Does not depend on the number of ranks.
struct Expected {
  explicit Expected(const StepNumbers& numbers);
  StepNumbers numbers;
  std::vector<std::vector<float>> vectors;  // by micro-batch, as begin_micro_batch lays them out
  std::vector<double> losses;
  std::vector<float> sum;
  double loss_sum = 0;
  double square_sum = 0;
};

// Those of the micro-batches `own`.
[[nodiscard]] std::span<const double> losses_of(const Expected& expected, const TreeNode& own);

[[nodiscard]] ReducerOptions options_for(const StepNumbers& numbers, std::vector<Place> places,
                                         std::int64_t bucket_elements);

// Same class (both NaN) or the same bits.
[[nodiscard]] bool same(float a, float b);
[[nodiscard]] bool same(double a, double b);

// One step on this rank: pieces become ready in an order drawn from `seed`. Reports differences
// through GoogleTest. The reducer's memory is reached by `access`.
void check_step(Reducer& reducer, int rank, int ranks, const Expected& expected, std::uint64_t seed,
                DeviceAccess& access);
// The same where the memory is this process's.
void check_step(Reducer& reducer, int rank, int ranks, const Expected& expected,
                std::uint64_t seed);

// Runs `body` once for every rank, each on a thread of its own, and joins them.
void on_all_ranks(int ranks, const std::function<void(LocalGang&, Communicator&)>& body);

inline constexpr auto kLongEnough = std::chrono::seconds(60);

}  // namespace surefoot::testing
