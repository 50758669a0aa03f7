// Writing and restoring a checkpoint against what the disk does by itself, interleaved in one run:
//
//   write     all parts stored (digested, written, synced, linked) and published
//             against write(2) of the same bytes and fsync, as dd conv=fsync does
//   restore   all bytes read past the page cache into memory, and digested
//             against read(2) past the page cache into the same memory
//   encrypted write, restore
//             the same with encryption, against without
//
//   checkpoint_bench [--mib 256] [--rounds 5] [--folder .]
//
// Prints bytes/s and processor time of both (best of all rounds) and the ratio; the goal is 0.9 or
// better. Order alternates, so that a disk that gets slower hits both.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_store.h"
#include "checkpoint/store/file/file_store.h"
#include "common/file.h"

namespace surefoot {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::int64_t mib = 256;
  int rounds = 5;
  std::string folder = ".";
};

struct State {
  CheckpointIdentity identity;
  std::vector<std::byte> bytes;
  std::vector<Digest> digests;
};

State make_state(std::int64_t mib) {
  State state;
  state.identity.job_id = "0123456789abcdef";
  state.identity.attempt = Attempt{1};
  state.identity.layout.add_section("parameters", DType::kF32, {{"weight", {mib, 1 << 18}, 0}});
  state.bytes.resize(static_cast<std::size_t>(state.identity.layout.bytes));
  std::mt19937_64 random(1);
  for (std::size_t at = 0; at + 8 <= state.bytes.size(); at += 8) {
    const std::uint64_t word = random();
    std::memcpy(state.bytes.data() + at, &word, 8);
  }
  for (std::int64_t chunk = 0; chunk < state.identity.layout.chunks(); ++chunk) {
    const ByteRange range = chunk_bytes({chunk, chunk + 1}, state.identity.layout.bytes);
    state.digests.push_back(
        digest(std::span<const std::byte>(state.bytes).subspan(range.begin, range.size())));
  }
  return state;
}

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "checkpoint_bench: %s\n", why.c_str());
  std::exit(1);
}

struct Cost {
  double seconds = 0;
  double cpu_seconds = 0;
};
double cpu_now() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}
template <class Work>
Cost cost_of(const Work& work) {
  const Time start = now();
  const double cpu = cpu_now();
  work();
  return {seconds(now() - start), cpu_now() - cpu};
}

void plain_write(const fs::path& path, std::span<const std::byte> bytes) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  while (!bytes.empty()) {
    const ssize_t count =
        ::write(fd.get(), bytes.data(), std::min<std::size_t>(bytes.size(), 4 << 20));
    if (count <= 0) fail("cannot write " + path.string());
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  if (::fsync(fd.get()) != 0) fail("cannot sync " + path.string());
}

void plain_read(const fs::path& path, std::span<std::byte> into) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  while (!into.empty()) {
    const ssize_t count =
        ::read(fd.get(), into.data(), std::min<std::size_t>(into.size(), 4 << 20));
    if (count <= 0) fail("cannot read " + path.string());
    into = into.subspan(static_cast<std::size_t>(count));
  }
}

void write_checkpoint(CheckpointStore& checkpoints, State& state, std::int64_t step) {
  state.identity.step = Step{step};
  const auto stored = checkpoints.store_part(state.identity, 0, 1, state.bytes, state.digests, {});
  if (!stored) fail(stored.error().message);
  const auto published = checkpoints.try_publish(Step{step}, Attempt{1}, 0, 1, std::nullopt, {});
  if (published.outcome != PublishOutcome::kPublished) fail(published.reason);
}

void restore(CheckpointStore& checkpoints, std::int64_t step, std::span<std::byte> into) {
  const auto manifest = checkpoints.read_manifest(Step{step}, {});
  if (!manifest) fail(manifest.error().message);
  if (const auto loaded = checkpoints.load(*manifest, into, {}); !loaded)
    fail(loaded.error().message);
}

// Other load on the machine only ever adds time, so the best run is the one to compare.
double best(const std::vector<Cost>& costs, double Cost::*what) {
  double least = costs.front().*what;
  for (const Cost& cost : costs) least = std::min(least, cost.*what);
  return least;
}

void print(const char* what, std::int64_t bytes, const std::vector<Cost>& ours, const char* other,
           const std::vector<Cost>& plain) {
  const double mb = static_cast<double>(bytes) / 1e6;
  const double rate = mb / best(ours, &Cost::seconds);
  const double plain_rate = mb / best(plain, &Cost::seconds);
  std::printf("%-17s %6.0f MB/s, %.2f s of a core   %s %6.0f MB/s, %.2f s   ratio %.2f\n", what,
              rate, best(ours, &Cost::cpu_seconds), other, plain_rate,
              best(plain, &Cost::cpu_seconds), rate / plain_rate);
}

// Each twice, in an order that favours neither.
template <class Ours, class Plain>
void pair(int round, std::vector<Cost>& ours, std::vector<Cost>& plain, const Ours& run_ours,
          const Plain& run_plain) {
  for (const bool first : {round % 2 == 0, round % 2 == 1}) {
    if (first) ours.push_back(cost_of(run_ours));
    plain.push_back(cost_of(run_plain));
    if (!first) ours.push_back(cost_of(run_ours));
  }
}

// Checkpoints written, restored and removed with encryption and without, in turn.
void compare_encrypted(const Options& options, Store& store, State& state,
                       std::span<std::byte> into) {
  std::array<std::byte, kKeyBytes> key{};
  key[0] = std::byte{1};
  CheckpointStore sealed(store, state.identity.job_id,
                         std::make_shared<const KeyRing>(SealKey(key)));
  CheckpointStore open(store, state.identity.job_id);
  std::vector<Cost> write_sealed, write_open, read_sealed, read_open;
  // Steps 1 and 2 are sealed ones and open ones.
  const auto remove = [&](std::int64_t step) {
    if (auto removed = open.remove_step(Step{step}, {}); !removed) fail(removed.error().message);
  };
  for (int round = 0; round < options.rounds; ++round) {
    for (const bool first : {round % 2 == 0, round % 2 == 1}) {
      const auto seal = [&] { write_checkpoint(sealed, state, 1); };
      if (first) write_sealed.push_back(cost_of(seal));
      write_open.push_back(cost_of([&] { write_checkpoint(open, state, 2); }));
      if (!first) write_sealed.push_back(cost_of(seal));
      const auto unseal = [&] { restore(sealed, 1, into); };
      if (first) read_sealed.push_back(cost_of(unseal));
      read_open.push_back(cost_of([&] { restore(open, 2, into); }));
      if (!first) read_sealed.push_back(cost_of(unseal));
      if (!std::equal(into.begin(), into.end(), state.bytes.begin()))
        fail("what was restored differs");
      remove(1);
      remove(2);
    }
  }
  print("encrypted write", state.identity.layout.bytes, write_sealed, "open ", write_open);
  print("encrypted restore", state.identity.layout.bytes, read_sealed, "open ", read_open);
}

void run(const Options& options) {
  const fs::path folder =
      fs::path(options.folder) / ("checkpoint-bench-" + std::to_string(::getpid()));
  auto store = FileStore::open(folder / "store");
  if (!store) fail(store.error().message);
  State state = make_state(options.mib);
  CheckpointStore checkpoints(**store, state.identity.job_id);
  std::vector<std::byte> into(state.bytes.size());
  std::vector<Cost> write_ours, write_plain, read_ours, read_plain;
  const fs::path plain = folder / "plain";
  std::int64_t step = 0;
  for (int round = 0; round < options.rounds; ++round) {
    pair(
        round, write_ours, write_plain, [&] { write_checkpoint(checkpoints, state, ++step); },
        [&] { plain_write(plain, state.bytes); });
    pair(
        round, read_ours, read_plain, [&] { restore(checkpoints, step, into); },
        [&] { plain_read(plain, into); });
    if (into != state.bytes) fail("what was restored differs");
    for (const std::int64_t old : {step, step - 1}) {
      if (auto removed = checkpoints.remove_step(Step{old}, {}); !removed)
        fail(removed.error().message);
    }
    fs::remove(plain);
  }
  print("write", state.identity.layout.bytes, write_ours, "plain", write_plain);
  print("restore", state.identity.layout.bytes, read_ours, "plain", read_plain);
  compare_encrypted(options, **store, state, into);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace surefoot

int main(int count, char** arguments) {
  surefoot::Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string flag = arguments[i];
    if (flag == "--mib") options.mib = std::max(1L, std::atol(arguments[i + 1]));
    if (flag == "--rounds") options.rounds = std::max(1, std::atoi(arguments[i + 1]));
    if (flag == "--folder") options.folder = arguments[i + 1];
  }
  surefoot::run(options);
  return 0;
}
