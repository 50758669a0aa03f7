// How fast a snapshot is against what the memory allows: bytes/s of memcpy, of a digest, of digest
// while copying, of a digest by N processes' share, and of Snapshotter's commit, on 128 MiB, in one
// run. On CPU training writes its update straight into the slot, so what a snapshot adds to a step
// is commit alone.
#include <benchmark/benchmark.h>

#include <cstring>
#include <filesystem>

#include "checkpoint/snapshot.h"

namespace surefoot {
namespace {

constexpr std::int64_t kBytes = 128 << 20;

std::vector<std::byte>& source() {
  static std::vector<std::byte> bytes(kBytes, std::byte{0x5A});
  return bytes;
}
std::vector<std::byte>& target() {
  static std::vector<std::byte> bytes(kBytes, std::byte{1});
  return bytes;
}

void Memcpy(benchmark::State& state) {
  for (auto round : state) {
    std::memcpy(target().data(), source().data(), kBytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void DigestChunks(benchmark::State& state) {
  for (auto round : state) {
    for (std::int64_t from = 0; from < kBytes; from += kChunkBytes)
      benchmark::DoNotOptimize(digest(std::span(source()).subspan(from, kChunkBytes)));
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void CopyAndDigest(benchmark::State& state) {
  for (auto round : state) {
    for (std::int64_t from = 0; from < kBytes; from += kChunkBytes) {
      benchmark::DoNotOptimize(copy_and_digest(std::span(source()).subspan(from, kChunkBytes),
                                               std::span(target()).subspan(from, kChunkBytes)));
    }
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}

// Take, digest, publish: what a step with one worker pays for being kept.
void Commit(benchmark::State& state) {
  std::string folder = "/dev/shm/surefoot-bench-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return state.SkipWithError("no folder in /dev/shm");
  {
    ArenaSpec spec;
    spec.job_id = "bench";
    spec.state_bytes = kBytes;
    auto arena = Arena::create(folder + "/surefoot-bench", spec);
    if (!arena) {
      state.SkipWithError(arena.error().message.c_str());
    } else {
      (*arena)->set_gang({1, 1, 0, 1});
      Snapshotter snapshotter(**arena, Attempt{1}, 0, 1);
      Step step{0};
      for (auto round : state) {
        step = step.next();
        const Time deadline = now() + std::chrono::seconds(10);
        const bool good = snapshotter.begin(step, deadline).has_value() &&
                          snapshotter.commit(step.value, false, {}, deadline).has_value();
        if (!good) state.SkipWithError("no snapshot");
      }
      state.SetBytesProcessed(state.iterations() * kBytes);
    }
  }
  std::filesystem::remove_all(folder);
}

BENCHMARK(Memcpy)->Unit(benchmark::kMillisecond);
BENCHMARK(DigestChunks)->Unit(benchmark::kMillisecond);
BENCHMARK(CopyAndDigest)->Unit(benchmark::kMillisecond);
BENCHMARK(Commit)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace surefoot

BENCHMARK_MAIN();
