// How fast is the reproducible reduction? Against MPI_Allreduce on the same ranks, interleaved in
// one run, as a ratio.
//
//   mpirun -np 2 reduction_bench [MiB] [repetitions] [bucket MiB]
//
// Each repetition times once: a memcpy of the vector on all ranks at once (the limit of the
// memory), MPI_Allreduce in place, the tree with the ranks of one node sharing the state, and the
// tree with every rank on a node of its own, so that each needs the whole sum. A time is that of
// the slowest rank. The tree's times include the norm, the losses and the control word, of which
// MPI_Allreduce has none.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "collectives/aligned_buffer.h"
#include "collectives/mpi/mpi_communicator.h"
#include "collectives/reducer.h"
#include "collectives/testing/places.h"

namespace surefoot {
namespace {

constexpr auto kDeadline = std::chrono::minutes(1);

void require(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::abort();
}

// Seconds of the slowest rank from a common start.
double time_of(const std::function<void()>& work) {
  MPI_Barrier(MPI_COMM_WORLD);
  const Time begin = now();
  work();
  const double mine = seconds(now() - begin);
  double slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

double time_of_reduction(Reducer& reducer) {
  reducer.begin_step();
  const std::span<float> gradient = reducer.begin_micro_batch();
  std::fill(gradient.begin(), gradient.end(), 1.0F);
  return time_of([&] {
    reducer.end_micro_batch();
    const auto step = reducer.finish({}, std::array{1.0}, now() + kDeadline);
    if (!step) require(step.error());
  });
}

struct Row {
  std::string name;
  double bytes_per_rank;  // sent
  std::vector<double> seconds;
};

void print(std::vector<Row>& rows, double vector_bytes) {
  std::printf("%-34s %9s %9s %12s %14s\n", "", "median ms", "best ms", "MiB sent", "x Allreduce");
  const auto median = [](Row& row) {
    std::sort(row.seconds.begin(), row.seconds.end());
    return row.seconds[row.seconds.size() / 2];
  };
  const double reference = median(rows[1]);
  for (Row& row : rows) {
    const double middle = median(row);
    std::printf("%-34s %9.2f %9.2f %12.1f %14.2f\n", row.name.c_str(), middle * 1e3,
                row.seconds.front() * 1e3, row.bytes_per_rank / (1 << 20), reference / middle);
  }
  std::printf("memory: %.1f GB/s read and written per rank, all at once\n",
              2 * vector_bytes / median(rows[0]) / 1e9);
}

void run(MpiCommunicator& communicator, std::int64_t elements, int repetitions,
         std::int64_t bucket_elements) {
  const int ranks = communicator.size();
  ReducerOptions options{.gradient_elements = elements,
                         .micro_batches = ranks,
                         .bucket_elements = bucket_elements,
                         .places = testing::places(ranks, ranks)};
  auto connected = connect_tree_reducer(communicator, options, now() + kDeadline);
  if (!connected) require(connected.error());
  const auto messages = make_tree_reducer(communicator, options);
  options.places = testing::places(ranks, 1);
  const auto full = make_tree_reducer(communicator, options);
  const AlignedBuffer from(elements);
  const AlignedBuffer to(elements);

  const double bytes = static_cast<double>(elements) * sizeof(float);
  const double others = static_cast<double>(ranks - 1) / ranks;
  std::vector<Row> rows{{"memcpy, no exchange", 0, {}},
                        {"MPI_Allreduce", 2 * others * bytes, {}},
                        {"tree, one node", 0, {}},
                        {"tree, one node, by messages", others * bytes, {}},
                        {"tree, each rank a node of its own", 2 * others * bytes, {}}};
  constexpr int kWarmUps = 2;
  for (int repetition = -kWarmUps; repetition < repetitions; ++repetition) {
    const std::array<double, 5> times{
        time_of([&] {
          std::memcpy(to.data(), from.data(), static_cast<std::size_t>(elements) * sizeof(float));
        }),
        time_of([&] {
          MPI_Allreduce(MPI_IN_PLACE, to.data(), static_cast<int>(elements), MPI_FLOAT, MPI_SUM,
                        MPI_COMM_WORLD);
        }),
        time_of_reduction(**connected), time_of_reduction(*messages), time_of_reduction(*full)};
    for (std::size_t i = 0; repetition >= 0 && i < rows.size(); ++i)
      rows[i].seconds.push_back(times[i]);
  }
  if (communicator.rank() == 0) {
    std::printf("%d ranks, %.0f MiB of fp32, buckets of %.1f MiB, %d repetitions\n", ranks,
                bytes / (1 << 20), static_cast<double>(bucket_elements) * sizeof(float) / (1 << 20),
                repetitions);
    print(rows, bytes);
  }
}

}  // namespace
}  // namespace surefoot

int main(int argc, char** argv) {
  using namespace surefoot;
  const auto argument = [&](int index, double otherwise) {
    return argc > index ? std::atof(argv[index]) : otherwise;
  };
  auto communicator = MpiCommunicator::open(now() + kDeadline);
  if (!communicator) require(communicator.error());
  const double elements_per_mib = (1 << 20) / sizeof(float);
  run(**communicator, static_cast<std::int64_t>(argument(1, 64) * elements_per_mib),
      static_cast<int>(argument(2, 15)),
      static_cast<std::int64_t>(argument(3, 2) * elements_per_mib));
  require((*communicator)->close(now() + kDeadline));
  return 0;
}
