// Run by mpirun, on a machine with a GPU: the contract of a DeviceStream on NCCL, the reduction and
// the kernels against the host, on as many ranks as there are. With --kill: rank 1 is killed in the
// middle of a step, and the others must leave.
#include "collectives/nccl/nccl_stream.h"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "collectives/device_stream_contract.h"
#include "collectives/mpi/mpi_communicator.h"
#include "collectives/nccl/nccl_host_id.h"
#include "collectives/nccl/testing/cuda_access.h"

namespace surefoot {
namespace {

constexpr auto kStart = std::chrono::seconds(120);

// Everything that a rank of this program has.
MpiCommunicator* world = nullptr;
NcclStream* device = nullptr;
testing::CudaAccess* memory = nullptr;

struct World {
  static std::vector<int> sizes() { return {world->size()}; }
  static void run(int, const std::function<void(DeviceRank&)>& body) {
    DeviceRank rank{*world, *device, *memory};
    body(rank);
    // A failure on one rank is one on all, and the next test begins together.
    const bool failed = ::testing::Test::HasFailure();
    const Status status =
        agree(*world, failed ? Status(error(Code::kInvalid, "failed, see its output")) : Status(),
              now() + testing::kLongEnough, "the end of the test");
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Nccl, DeviceStreamContract, World);

// Any bits: denormals, NaN, infinities and all magnitudes among them.
std::vector<float> any_bits(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    auto bits = static_cast<std::uint32_t>(random() >> 32);
    if (random() % 8 == 0) bits &= 0x807FFFFFU;   // a denormal
    if (random() % 64 == 0) bits |= 0x7F800000U;  // infinity or NaN
    value = std::bit_cast<float>(bits);
  }
  return values;
}

class Kernels : public ::testing::Test {
 protected:
  static constexpr std::size_t kCount = 64 * kBlockElements;
  template <class T>
  static T* put(const std::vector<T>& values) {
    auto taken = device->allocate(MemoryOf::kDevice,
                                  static_cast<std::int64_t>(values.size() * sizeof(T)), "a test");
    EXPECT_TRUE(taken.has_value()) << taken.error().message;
    const std::span<T> span(static_cast<T*>(*taken), values.size());
    memory->write(span, std::span<const T>(values));
    device->order(Queue::kComputation, Queue::kExchange);
    return span.data();
  }
  template <class T>
  static std::vector<T> get(const T* from, std::size_t count) {
    const Status done = device->wait(now() + testing::kLongEnough, "a kernel");
    EXPECT_TRUE(done.has_value()) << done.error().message;
    return memory->read(std::span<const T>(from, count));
  }
};

TEST_F(Kernels, AddLikeTheHostAndLikeFloat64RoundedOnce) {
  const std::vector<float> left = any_bits(kCount, 1), right = any_bits(kCount, 2);
  for (NumberFormat format : {NumberFormat::kFp32, NumberFormat::kBf16}) {
    float* const sum = put(left);
    device->enqueue(Queue::kExchange,
                    AddUp{{sum, put(right)}, static_cast<std::int64_t>(kCount), format});
    const std::vector<float> got = get(sum, kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_TRUE(testing::same(got[i], kernel::node(left[i], right[i], format)))
          << left[i] << " + " << right[i] << " gave " << got[i];
      if (format != NumberFormat::kFp32) continue;
      const double exact = static_cast<double>(left[i]) + static_cast<double>(right[i]);
      ASSERT_TRUE(testing::same(got[i], static_cast<float>(exact)));
    }
  }
}

TEST_F(Kernels, PackAndUnpackLikeTheHost) {
  const std::vector<float> values = any_bits(kCount, 3);
  float* const from = put(values);
  kernel::Bf16* const packed = put(std::vector<kernel::Bf16>(kCount));
  const auto count = static_cast<std::int64_t>(kCount);
  device->enqueue(Queue::kExchange, Pack{from, packed, count});
  device->enqueue(Queue::kExchange, Unpack{packed, from, count});
  const std::vector<kernel::Bf16> got = get(packed, kCount);
  const std::vector<float> wide = get(from, kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(got[i], kernel::to_bf16(values[i])) << values[i];
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]),
              std::bit_cast<std::uint32_t>(kernel::from_bf16(got[i])));
  }
}

// Sums of squares of blocks whose values are finite: the host's vectors, the same bits; and near to
// what long double gives.
TEST_F(Kernels, SumSquaresLikeTheHost) {
  std::vector<float> values = any_bits(kCount, 4);
  for (float& value : values) {
    if (!std::isfinite(value)) value = 1.0F;
  }
  float* const sum = put(values);
  double* const squares = put(std::vector<double>(kCount / kBlockElements));
  const auto tree =
      device->prepare({.roots = {{sum, NumberFormat::kFp32, true}}, .additions_after = {0}});
  ASSERT_TRUE(tree.has_value());
  device->enqueue(Queue::kExchange, FinishTree{*tree, 0, static_cast<std::int64_t>(kCount), sum,
                                               NumberFormat::kFp32, squares});
  const std::vector<double> got = get(squares, kCount / kBlockElements);
  for (std::size_t block = 0; block < got.size(); ++block) {
    const std::span<const float> here =
        std::span<const float>(values).subspan(block * kBlockElements, kBlockElements);
    ASSERT_TRUE(testing::same(got[block], square_sum(here)));
    long double exact = 0;
    for (float value : here) exact += static_cast<long double>(value) * value;
    ASSERT_NEAR(got[block] / static_cast<double>(exact), 1.0, 1e-12);
  }
}

// The same bits from the same numbers, run after run.
TEST(NcclReduction, GivesTheSameBitsAgainAndTheFastOneTheSameUpToRounding) {
  World::run(0, [](DeviceRank& rank) {
    const int ranks = rank.communicator.size();
    const int me = rank.communicator.rank();
    const testing::Expected expected(
        {.gradient_elements = 1'000'003, .buffer_elements = 70, .micro_batches = 9, .seed = 8});
    const ReducerOptions options =
        testing::options_for(expected.numbers, testing::places(ranks, ranks), 1 << 18);
    const auto soon = [] { return now() + testing::kLongEnough; };
    const auto tree = make_device_reducer(rank.communicator, rank.stream, options, soon());
    ASSERT_TRUE(tree.has_value()) << tree.error().message;
    for (std::uint64_t step = 0; step < 5; ++step)
      testing::check_step(**tree, me, ranks, expected, step, rank.access);
    const auto fast = make_fast_device_reducer(rank.communicator, rank.stream, options, soon());
    ASSERT_TRUE(fast.has_value()) << fast.error().message;
    const TreeNode own = micro_batches_of(me, ranks, 9);
    (*fast)->begin_step();
    for (int m = own.begin; m < own.end; ++m) {
      rank.access.write((*fast)->begin_micro_batch(),
                        std::span<const float>(expected.vectors[static_cast<std::size_t>(m)]));
      (*fast)->end_micro_batch();
    }
    const auto step = (*fast)->finish({}, losses_of(expected, own), soon());
    ASSERT_TRUE(step.has_value()) << step.error().message;
    EXPECT_NEAR(step->square_sum, expected.square_sum, 1e-4 * expected.square_sum);
  });
}

// A rank that is killed: the others' finish() or their watch must end them in time, whatever state
// the device is in.
int leave_after_a_kill() {
  constexpr auto kDeadline = std::chrono::seconds(30);
  const int me = world->rank();
  const int ranks = world->size();
  const testing::StepNumbers numbers{.gradient_elements = 5'000'000, .micro_batches = ranks};
  const auto reducer = make_device_reducer(
      *world, *device, testing::options_for(numbers, testing::places(ranks, ranks), 1),
      now() + kStart);
  if (!reducer) return std::fprintf(stderr, "%s\n", reducer.error().message.c_str()), 1;
  const std::vector<double> losses(1);
  for (int step = 0; step < 3; ++step) {
    (*reducer)->begin_step();
    (void)(*reducer)->begin_micro_batch();
    if (step == 2 && me == 1) {
      (*reducer)->ready({2'500'000, 5'000'000});
      raise(SIGKILL);
    }
    const Time begun = now();
    (*reducer)->end_micro_batch();
    const auto finished = (*reducer)->finish({}, losses, begun + kDeadline);
    if (finished) continue;
    const bool in_time = now() < begun + kDeadline + std::chrono::seconds(1);
    std::printf("rank %d left %s after %.1f s: %s\n", me, in_time ? "in time" : "too late",
                seconds(now() - begun), finished.error().message.c_str());
    std::fflush(stdout);
    _exit(0);
  }
  std::printf("rank %d finished a step without rank 1\n", me);
  return 1;
}

int local_rank() {
  const char* const text = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  return text == nullptr ? 0 : std::atoi(text);
}

int fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  return 1;
}

int run(bool kill) {
  int devices = 0;
  if (const cudaError_t answer = cudaGetDeviceCount(&devices);
      answer != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "no GPU: %s\n", cudaGetErrorString(answer));
    return 1;
  }
  auto opened = MpiCommunicator::open(now() + kStart);
  if (!opened) return fail(opened.error());
  world = opened->get();
  set_nccl_host_id({.node = 0, .local_rank = local_rank(), .local_size = world->size()}, devices);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  NcclOptions options;
  options.device = local_rank() % devices;
  if (cudaSetDevice(options.device) != cudaSuccess) return 1;
  testing::CudaAccess access;
  memory = &access;
  options.computation = access.stream();
  options.on_failure = [](const std::string& reason) {
    std::printf("rank %d left in time, by its watch: %s\n", local_rank(), reason.c_str());
    std::fflush(stdout);
    _exit(75);
  };
  auto stream = NcclStream::open(*world, options, now() + kStart);
  if (!stream) return fail(stream.error());
  device = stream->get();
  if (kill) return leave_after_a_kill();
  int failed = RUN_ALL_TESTS();
  if (const Status closed = device->close(now() + kStart); !closed) failed = fail(closed.error());
  if (const Status closed = world->close(now() + kStart); !closed) failed = fail(closed.error());
  return failed;
}

}  // namespace
}  // namespace surefoot

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return surefoot::run(argc > 1 && std::string_view(argv[1]) == "--kill");
}
