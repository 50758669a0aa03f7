// What the tests of the arena share.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <random>

#include "checkpoint/arena.h"
#include "checkpoint/testing/temporary_folder.h"

namespace surefoot {

using surefoot::testing::TemporaryFolder;

inline ArenaSpec test_spec(std::int64_t state_bytes) {
  ArenaSpec spec;
  spec.job_id = "0123456789abcdef";
  spec.layout_digest = digest("layout");
  spec.training_hash = digest("training");
  spec.state_bytes = state_bytes;
  return spec;
}

// What the state of a step holds in these tests: 8-byte words made from step and place. A step adds
// the same to each.
inline constexpr std::uint64_t kStateOfAStep = 0x9E3779B97F4A7C15u;
inline void fill_state(std::span<std::byte> bytes, std::int64_t step, int share = 0,
                       int shares = 1) {
  const std::size_t words = bytes.size() / 8;
  for (std::size_t i = words * share / shares; i < words * (share + 1) / shares; ++i) {
    const std::uint64_t value = (static_cast<std::uint64_t>(step) + 1) * kStateOfAStep + i;
    std::memcpy(bytes.data() + i * 8, &value, 8);
  }
}
inline bool holds_state(std::span<const std::byte> bytes, std::int64_t step) {
  std::vector<std::byte> expected(bytes.size());
  fill_state(expected, step);
  return std::memcmp(expected.data(), bytes.data(), bytes.size()) == 0;
}

// Takes, fills, digests and publishes as one process would.
inline int publish_step(Arena& arena, std::int64_t attempt, std::int64_t step, bool pin = false) {
  auto slot = arena.take(Attempt{attempt}, Step{step});
  SUREFOOT_CHECK(slot.has_value());
  const auto bytes = arena.bytes(*slot);
  fill_state(bytes, step);
  const auto table = arena.chunk_digests(*slot);
  for (std::size_t chunk = 0; chunk < table.size(); ++chunk) {
    const std::size_t from = chunk * kChunkBytes;
    table[chunk] =
        digest(bytes.subspan(from, std::min<std::size_t>(kChunkBytes, bytes.size() - from)));
  }
  SUREFOOT_CHECK(arena.publish(*slot, Attempt{attempt}, Step{step}, step * 10, pin).has_value());
  return *slot;
}

// The way every reader goes: newest first, what fails is given up for the next older.
inline std::optional<int> newest_good(Arena& arena) {
  for (;;) {
    const auto slot = arena.newest_ready();
    if (!slot) return std::nullopt;
    if (arena.verify(*slot)) return slot;
    arena.discard(*slot);
  }
}

// Runs `body` in a child of its own; the child leaves with its result, or with the thread that has
// made it, however that ends: a test that is killed leaves nobody behind.
inline pid_t fork_child(const std::function<int()>& body) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  SUREFOOT_CHECK(child >= 0);
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it has died before it could be watched
  ::_exit(body());
}
inline int wait_for(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

class ArenaTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kStateBytes = 2 * kChunkBytes + 5000;
  void SetUp() override {
    folder_ = temporary_.path() / "surefoot-x";
    auto made = Arena::create(folder_, test_spec(kStateBytes));
    ASSERT_TRUE(made) << made.error().message;
    arena_ = std::move(*made);
  }
  TemporaryFolder temporary_;
  std::filesystem::path folder_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace surefoot
