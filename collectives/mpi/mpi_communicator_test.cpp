// Run by mpirun: the contract, on as many ranks as there are.
#include "collectives/mpi/mpi_communicator.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <thread>

#include "collectives/communicator_contract.h"
#include "collectives/device_stream_contract.h"
#include "collectives/reduction_tree.h"
#include "collectives/testing/host_access.h"

namespace {
long allocations = 0;  // of this program; MPI and its malloc are not counted
}  // namespace

// Not inlined, or g++ takes the pair for mismatched.
__attribute__((noinline)) void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  std::abort();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept {
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace surefoot {
namespace {

MpiCommunicator* world = nullptr;

struct World {
  static std::vector<int> sizes() { return {world->size()}; }
  static void run(int, const std::function<void(Communicator&)>& body) {
    body(*world);
    // A failure on one rank is one on all, and the next test begins together.
    const bool failed = ::testing::Test::HasFailure();
    const Status status =
        agree(*world, failed ? Status(error(Code::kInvalid, "failed, see its output")) : Status(),
              now() + testing::kLongEnough, "the end of the test");
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, CommunicatorContract, World);

// The double of a device goes over processes, too: the worker's tests need it.
struct WorldOfDevices {
  static std::vector<int> sizes() { return World::sizes(); }
  static void run(int, const std::function<void(DeviceRank&)>& body) {
    World::run(0, [&](Communicator& communicator) {
      testing::HostStream stream(communicator);
      testing::HostStreamAccess access(stream);
      DeviceRank rank{communicator, stream, access};
      body(rank);
    });
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(HostStreamOverMpi, DeviceStreamContract, WorldOfDevices);

// The state letter of a process: 'T' when it is stopped.
char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t end_of_name = text.rfind(')');
  return end_of_name == std::string::npos ? '?' : text[end_of_name + 2];
}

TEST(MpiCommunicator, NamesAStoppedProcessThatMpiNeverNotices) {
  World::run(0, [](Communicator& communicator) {
    if (communicator.size() < 2) return;
    const auto pids =
        all_gather(communicator, std::to_string(getpid()), now() + testing::kLongEnough, "pids");
    ASSERT_TRUE(pids.has_value());
    int value = 5;
    const auto bytes = std::as_writable_bytes(std::span(&value, 1));
    if (communicator.rank() == 1) {
      raise(SIGSTOP);
      ASSERT_TRUE(communicator
                      .wait(std::array{communicator.send(bytes, 0, 1)},
                            now() + testing::kLongEnough, "rank 0")
                      .has_value());
    }
    if (communicator.rank() != 0) return;
    const pid_t stopped = std::stoi((*pids)[1]);
    const std::array request{communicator.receive(bytes, 1, 1)};
    const Time deadline = now() + testing::kLongEnough;
    while (state_of(stopped) != 'T' && now() < deadline) std::this_thread::yield();
    const Status late =
        communicator.wait(request, now() + std::chrono::milliseconds(20), "a value");
    EXPECT_EQ(kill(stopped, SIGCONT), 0);
    ASSERT_FALSE(late.has_value());
    EXPECT_NE(late.error().message.find("rank 1"), std::string::npos) << late.error().message;
    ASSERT_TRUE(communicator.wait(request, now() + testing::kLongEnough, "a value").has_value());
  });
}

TEST(MpiCommunicator, AllocatesNothingInAStepOnceAFewHavePassed) {
  const testing::StepNumbers numbers{.gradient_elements = 200000, .micro_batches = 9};
  World::run(0, [&](Communicator& communicator) {
    const int ranks = communicator.size();
    const auto reducer = make_tree_reducer(
        communicator, testing::options_for(numbers, testing::places(ranks, 1), 1));
    const TreeNode own = micro_batches_of(communicator.rank(), ranks, numbers.micro_batches);
    const std::vector<double> losses(static_cast<std::size_t>(own.end - own.begin), 1.0);
    long before = 0;
    for (int step = 0; step < 6; ++step) {
      if (step == 3) before = allocations;
      reducer->begin_step();
      for (int m = own.begin; m < own.end; ++m) {
        reducer->begin_micro_batch()[0] = 1;
        reducer->ready({100000, 200000});
        reducer->end_micro_batch();
      }
      ASSERT_TRUE(reducer->finish({}, losses, now() + testing::kLongEnough).has_value());
    }
    EXPECT_EQ(allocations - before, 0);
  });
}

}  // namespace
}  // namespace surefoot

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // The argument is the longest message in bytes: a small one tests splitting without messages of
  // gigabytes.
  surefoot::MpiOptions options;
  if (argc > 1) options.max_message_bytes = std::atoll(argv[1]);
  auto opened =
      surefoot::MpiCommunicator::open(surefoot::now() + std::chrono::seconds(60), options);
  if (!opened) {
    std::fprintf(stderr, "%s\n", opened.error().message.c_str());
    return 1;
  }
  surefoot::world = opened->get();
  int failed = RUN_ALL_TESTS();
  const surefoot::Status closed =
      surefoot::world->close(surefoot::now() + std::chrono::seconds(60));
  if (!closed) {
    std::fprintf(stderr, "%s\n", closed.error().message.c_str());
    failed = 1;
  }
  return failed;
}
