// Run by mpirun: the contract, on as many ranks as there are.
#include "collectives/mpi/mpi_communicator.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "collectives/communicator_contract.h"

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
