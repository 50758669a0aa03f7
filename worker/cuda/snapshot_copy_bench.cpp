// How fast a snapshot comes from the GPU into shared memory, as a job does it (registered pages of
// a tmpfs file, chunk by chunk, on a stream of its own), against one plain copy into memory of
// cudaMallocHost, in turn.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "checkpoint/layout.h"
#include "collectives/device_stream.h"
#include "worker/cuda/cuda_device.h"

namespace surefoot {
namespace {

constexpr std::int64_t kBytes = std::int64_t{1} << 30;
constexpr int kRounds = 10;

Time soon() {
  return now() + std::chrono::minutes(1);
}

// As the arena's: a file in /dev/shm, every page touched.
std::span<std::byte> shared_memory() {
  const int fd = ::memfd_create("snapshot_copy_bench", 0);
  SUREFOOT_CHECK(fd >= 0 && ::posix_fallocate(fd, 0, kBytes) == 0);
  void* base = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  SUREFOOT_CHECK(base != MAP_FAILED);
  return {static_cast<std::byte*>(base), static_cast<std::size_t>(kBytes)};
}

void report(const char* name, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  std::printf("%-44s median %7.2f ms  %6.1f GB/s\n", name, times[times.size() / 2] * 1e3,
              static_cast<double>(kBytes) / times[times.size() / 2] * 1e-9);
}

int run() {
  cudaStream_t stream = nullptr;
  SUREFOOT_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  auto device = CudaDevice::open(1, stream);
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    return 77;
  }
  const auto state = (*device)->allocate(kBytes, "the benchmark");
  SUREFOOT_CHECK(state.has_value());
  const auto arena = shared_memory();
  const Time begin = now();
  (*device)->pin(arena);
  std::printf("registering 1 GiB: %.0f ms\n", seconds(now() - begin) * 1e3);
  void* plain = nullptr;
  SUREFOOT_CHECK(cudaMallocHost(&plain, kBytes) == cudaSuccess);
  std::vector<ByteRange> chunks;
  for (std::int64_t at = 0; at < kBytes; at += kChunkBytes)
    chunks.push_back({at, at + kChunkBytes});

  std::vector<double> ours, theirs;
  for (int round = 0; round < kRounds; ++round) {
    Time since = now();
    SUREFOOT_CHECK((*device)->mark().has_value());
    SUREFOOT_CHECK((*device)->download(state->data(), arena, chunks, soon()).has_value());
    ours.push_back(seconds(now() - since));
    since = now();
    SUREFOOT_CHECK(cudaMemcpyAsync(plain, state->data(), kBytes, cudaMemcpyDeviceToHost, stream) ==
                   cudaSuccess);
    SUREFOOT_CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    theirs.push_back(seconds(now() - since));
  }
  report("a snapshot's copy, 1 GiB in chunks", ours);
  report("cudaMemcpyAsync to cudaMallocHost, 1 GiB", theirs);
  std::sort(ours.begin(), ours.end());
  std::sort(theirs.begin(), theirs.end());
  std::printf("ratio %.3f\n", theirs[theirs.size() / 2] / ours[ours.size() / 2]);
  return 0;
}

}  // namespace
}  // namespace surefoot

int main() {
  return surefoot::run();
}
