// How fast do the GPUs of this machine sum a vector together, here and now? For `surefoot doctor`.
//
//   CUDA_VISIBLE_DEVICES=0,1 mpirun -np 2 surefoot-gpu-links
//
// Each rank takes its GPU and brings up NCCL as a worker of that local rank does, without libtorch.
// Rank 0 prints {"ranks": 2, "bytes": 67108864, "seconds": 0.000177, "bus_bandwidth": 3.8e+11}:
// the time of one all-reduce (link_speed.h) and bytes/s. Leaves with 1, and a line that says why,
// when a GPU, NCCL or a sum fails; within kDeadline and kGrace whatever hangs.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "collectives/device_stream.h"
#include "collectives/mpi/mpi_communicator.h"
#include "collectives/watchdog.h"
#include "worker/cuda/cuda_device.h"
#include "worker/link_speed.h"

namespace surefoot {

// The default stream, which is libtorch's in a worker.
cudaStream_t computation_stream() {
  return nullptr;
}

namespace {

constexpr const char* kName = "surefoot-gpu-links";
constexpr std::int64_t kBytes = 64 << 20;  // as a bucket or several of a large model; arbitrary
// Eight GPUs that nothing keeps awake and NCCL among them take ten seconds or so to begin;
// generous. Before the end of `surefoot doctor`'s patience (launcher/doctor/gpu_peers.h).
constexpr Duration kDeadline = std::chrono::seconds(40);
constexpr Duration kGrace = std::chrono::seconds(3);

int number_of(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// All of what NCCL and CUDA may hang in is under the watchdog, leaving too.
Status run(Time deadline) {
  const int local_rank = number_of("OMPI_COMM_WORLD_LOCAL_RANK", 0);
  const int local_size = number_of("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  config::Job job;
  job.mutable_resources()->set_device(config::Resources::cuda);
  SUREFOOT_ASSIGN(const auto device, open_device(job, local_rank, local_size));
  SUREFOOT_ASSIGN(const auto communicator, MpiCommunicator::open(deadline));
  const auto failed = [](const std::string& reason) {
    std::fprintf(stderr, "%s: %s\n", kName, reason.c_str());
    ::_exit(1);
  };
  SUREFOOT_ASSIGN(auto stream,
                  device->connect(*communicator, {0, local_rank, local_size}, failed, deadline));
  SUREFOOT_ASSIGN(const LinkSpeed speed,
                  measure_links(*communicator, *device, *stream, kBytes, deadline));
  if (communicator->rank() == 0) {
    std::printf("{\"ranks\": %d, \"bytes\": %lld, \"seconds\": %.9f, \"bus_bandwidth\": %.4e}\n",
                speed.ranks, static_cast<long long>(speed.bytes), speed.seconds,
                speed.bus_bandwidth());
  }
  stream.reset();  // before the others leave, which it would take for a failure
  return communicator->close(deadline);
}

}  // namespace
}  // namespace surefoot

int main() {
  using namespace surefoot;
  const Time deadline = now() + kDeadline;
  const Watchdog watchdog(std::string(kName) + ": CUDA, NCCL or MPI", deadline + kGrace, 1);
  // mpirun that is killed must not leave a GPU taken.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Status done = run(deadline);
  if (!done) std::fprintf(stderr, "%s: %s\n", kName, done.error().message.c_str());
  std::fflush(nullptr);
  // CUDA's and NCCL's exit handlers can hang, and what they free the driver frees anyway.
  ::_exit(done ? 0 : 1);
}
