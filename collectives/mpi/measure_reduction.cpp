// How fast do the ranks of this machine sum their gradients, here and now? For `surefoot doctor`.
//
//   mpirun -np 2 surefoot-reduction
//
// Times the reproducible reduction as the workers of one machine do it (connect_tree_reducer), with
// a vector of kBytes and a micro-batch for each rank, for half a second at most. Rank 0 prints
// {"ranks": 2, "bytes": 16777216, "seconds": 0.0042}: the median of the slowest rank's times.
// Leaves with 1 when the ranks do not reach each other within kDeadline.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "collectives/mpi/mpi_communicator.h"
#include "collectives/reducer.h"

namespace surefoot {
namespace {

constexpr auto kDeadline = std::chrono::seconds(10);
constexpr std::int64_t kBytes = 16 << 20;  // several buckets, and more than a cache has; arbitrary
constexpr int kWarmUps = 2;
constexpr int kMost = 50;
constexpr Duration kLongest = std::chrono::milliseconds(500);

Result<double> time_of_step(Reducer& reducer) {
  reducer.begin_step();
  const std::span<float> gradient = reducer.begin_micro_batch();
  std::fill(gradient.begin(), gradient.end(), 1.0F);
  MPI_Barrier(MPI_COMM_WORLD);
  const Time begin = now();
  reducer.end_micro_batch();
  SUREFOOT_ASSIGN([[maybe_unused]] const ReducedStep step,
                  reducer.finish({}, std::array{1.0}, now() + kDeadline));
  const double mine = seconds(now() - begin);
  double slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

Status measure(MpiCommunicator& communicator) {
  const int ranks = communicator.size();
  ReducerOptions options;
  options.gradient_elements = kBytes / static_cast<std::int64_t>(sizeof(float));
  options.micro_batches = ranks;
  for (int rank = 0; rank < ranks; ++rank) options.places.push_back({0, rank, ranks});
  SUREFOOT_ASSIGN(const auto reducer,
                  connect_tree_reducer(communicator, options, now() + kDeadline));
  std::vector<double> times;
  double spent = 0;
  // All ranks know the same times, so all end after the same one.
  for (int i = -kWarmUps; i < kMost && spent < seconds(kLongest); ++i) {
    SUREFOOT_ASSIGN(const double time, time_of_step(*reducer));
    spent += time;
    if (i >= 0) times.push_back(time);
  }
  // A machine so slow that the warm-ups took it all is measured all the same.
  if (times.empty()) times.push_back(spent / kWarmUps);
  std::sort(times.begin(), times.end());
  if (communicator.rank() == 0) {
    std::printf("{\"ranks\": %d, \"bytes\": %lld, \"seconds\": %.9f}\n", ranks,
                static_cast<long long>(kBytes), times[times.size() / 2]);
    std::fflush(stdout);
  }
  return {};
}

Status run() {
  SUREFOOT_ASSIGN(const auto communicator, MpiCommunicator::open(now() + kDeadline));
  SUREFOOT_TRY(measure(*communicator));
  return communicator->close(now() + kDeadline);
}

}  // namespace
}  // namespace surefoot

int main() {
  const surefoot::Status done = surefoot::run();
  if (!done) std::fprintf(stderr, "surefoot-reduction: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
